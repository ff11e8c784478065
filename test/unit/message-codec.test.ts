/** The codec's own promises: what older peers leave out, what is refused and how it is named, which bytes are written. */
import { decodeMessage, encodeMessage, placeOf, type WireProfile } from '../../lib/control/protocol/codec.js';
import { headerOf } from '../../lib/control/protocol/headers.js';
import type { Place } from '../../lib/control/protocol/message-fields.js';
import { decodeValue, encodeValue, joinMap, mapParts, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { Float64, type Wire } from '../../lib/control/protocol/wire-value.js';

const bytes = (...values: Wire[]): Uint8Array[] => values.map((value) => encodeValue(value));
const hex = (frames: readonly Uint8Array[]): string[] => frames.map((frame) => Buffer.from(frame).toString('hex'));
const none = wireMap({});

describe('what older peers leave out', () => {
  it('a multi-frame prompt without media, hashes and offload parameters', () => {
    const frames = bytes([20, 5, none], [1, 2]);
    const nothing = { mediaMeta: null, media: null, offloadParams: null };
    expect(decodeMessage('multi-frame', 'coordinator', frames)).toEqual({
      header: 'SUBMIT_REQUEST',
      requestId: 5,
      sampling: none,
      prompt: frames[1],
      blockHashes: null,
      ...nothing,
    });
    expect(decodeMessage('multi-frame', 'engine', frames)).toMatchObject(nothing);
  });

  it('the safety of a completed handoff', () => {
    const decode = (...rest: Wire[]) => decodeMessage('multi-frame', 'ranks', bytes([81, 5, ...rest]));
    expect(decode(false)).toMatchObject({ failed: false, sourceSafe: true });
    expect(decode(true)).toMatchObject({ failed: true, sourceSafe: false });
    expect(decode(true, true)).toMatchObject({ failed: true, sourceSafe: true });
  });

  it('the cached prefix of a push, the fence of a release, the coordinator that acknowledges', () => {
    expect(decodeMessage('single-frame', 'engine', bytes([26, 5, []]))).toMatchObject({ cachedPrefixBlocks: 0 });
    expect(decodeMessage('single-frame', 'engine', bytes([25, 5]))).toMatchObject({ instance: null });
    expect(decodeMessage('multi-frame', 'client', bytes([1]))).toEqual({ header: 'CONNECT_ACK', instance: null });
  });

  it('empty hashes are not the same as none', () => {
    const frames = bytes([20, 5, none, null], [1], [], null, null);
    expect(decodeMessage('multi-frame', 'coordinator', frames)).toMatchObject({ blockHashes: new BigInt64Array(0) });
  });
});

describe('bytes', () => {
  it.each<[WireProfile, Place, object, string[]]>([
    ['multi-frame', 'coordinator', { header: 'REGISTER' }, ['']],
    ['multi-frame', 'client', { header: 'CONNECT_ACK', instance: 'ab' }, ['9201a26162']],
    ['single-frame', 'client', { header: 'CONNECT_ACK', instance: 'ab' }, ['9101']],
    ['single-frame', 'engine', { header: 'REGISTRATION_ERROR', reason: 'no' }, ['921da26e6f']],
    ['single-frame', 'engine', { header: 'RELEASE_KV', requestId: 5, instance: null }, ['921905']],
    ['multi-frame', 'engine', { header: 'RELEASE_KV', requestId: 5, instance: 'ab' }, ['931905a26162']],
    [
      'multi-frame',
      'coordinator',
      { header: 'ENGINE_REPLY', replies: [{ requestId: 5, needsDetokenize: true, body: encodeValue(none) }] },
      ['92159192' + '05c3', '80'],
    ],
    [
      'multi-frame',
      'coordinator',
      { header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId: 5, body: encodeValue(none) }] },
      ['92169105', '80'],
    ],
  ])('%s to the %s: %j', (profile, place, message, expected) => {
    const frames = encodeMessage(profile, place, message as never);
    expect(hex(frames)).toEqual(expected);
    expect(decodeMessage(profile, place, frames)).toEqual(
      message.constructor === Object && expected[0] === '9101' ? { ...message, instance: null } : message,
    );
  });

  it('takes the declared number of bodies and ignores more', () => {
    const body = encodeValue(wireMap({ request_id: 5 }));
    const frames = [...bytes([21, [[5, false]]]), body, encodeValue('more')];
    expect(decodeMessage('multi-frame', 'coordinator', frames)).toEqual({
      header: 'ENGINE_REPLY',
      replies: [{ requestId: 5, needsDetokenize: false, body }],
    });
  });

  it('keeps integer-like keys in their order and floats apart from integers', () => {
    const value = new Map<string, Wire>([
      ['10', new Float64(2 ** 32)],
      ['9', 2 ** 32],
      ['a', 1.5],
    ]);
    const back = decodeValue(encodeValue(value)) as ReadonlyMap<string, Wire>;
    expect([...back.keys()]).toEqual(['10', '9', 'a']);
    expect(back.get('10')).toEqual(new Float64(2 ** 32));
    expect(back.get('9')).toBe(2 ** 32);
    expect(back.get('a')).toEqual(new Float64(1.5));
    expect(decodeValue(Uint8Array.of(0xca, 0x3f, 0x80, 0, 0))).toEqual(new Float64(1));
  });

  it('joins what it takes apart', () => {
    const value = encodeValue(wireMap({ a: [1, 2], b: none }));
    expect(joinMap(mapParts(value)!)).toEqual(value);
    expect(mapParts(encodeValue([1]))).toBeNull();
  });
});

describe('what is refused', () => {
  const deep = (levels: number): Wire => (levels === 0 ? 1 : [deep(levels - 1)]);
  it.each<[string, WireProfile, Place, Uint8Array[], string]>([
    ['no frame', 'multi-frame', 'engine', [], 'frames: expected at least one frame'],
    ['an empty list', 'multi-frame', 'engine', bytes([]), 'frames[0]: expected a header'],
    [
      'an empty frame to an engine',
      'multi-frame',
      'engine',
      [new Uint8Array(0)],
      'frames[0] at byte 0: expected 1 bytes more',
    ],
    [
      'an unknown header',
      'multi-frame',
      'engine',
      bytes([19]),
      'frames[0][0]: expected a header value of the protocol, got 19',
    ],
    ['a header that is no number', 'multi-frame', 'engine', bytes(['20']), 'frames[0][0]: expected a header value'],
    [
      'a message of another place',
      'multi-frame',
      'engine',
      bytes([0]),
      'expected a message to the engine, got "CONNECT"',
    ],
    ['a field too many', 'single-frame', 'engine', bytes([23, 5, 6]), 'frames[0]: expected at most 1 fields, got 2'],
    ['a field too few', 'single-frame', 'engine', bytes([20, 5, 'p']), 'sampling: expected a value'],
    ['a frame too many', 'single-frame', 'engine', bytes([23, 5], 1), 'frames: expected one frame'],
    ['a frame too many', 'multi-frame', 'engine', bytes([23, 5], 1), 'frames: expected at most 1 frames'],
    ['no prompt', 'multi-frame', 'engine', bytes([20, 5, none]), 'prompt: expected a frame'],
    [
      'a negative id',
      'single-frame',
      'engine',
      bytes([23, -1]),
      'requestId: expected an integer in [0, 2^53 - 1], got -1',
    ],
    ['a float id', 'single-frame', 'engine', bytes([23, new Float64(5)]), 'requestId: expected an integer'],
    ['an id of 64 bits', 'single-frame', 'engine', bytes([23, 2n ** 60n]), 'requestId: expected an integer'],
    ['a prompt that is a map', 'single-frame', 'engine', bytes([20, 5, none, none]), 'prompt: expected text or a list'],
    ['metadata that is a list', 'single-frame', 'engine', bytes([24, 5, 'p', none, [], []]), 'kvMeta: expected a map'],
    [
      'blocks that are a map',
      'single-frame',
      'engine',
      bytes([24, 5, 'p', none, none, none]),
      'sourceBlockIds: expected a list',
    ],
    ['an empty owner', 'multi-frame', 'coordinator', bytes([36, 'i', '']), 'owner: expected text of 1 to 512'],
    [
      'a flag that is a number',
      'multi-frame',
      'coordinator',
      bytes([31, 5, 1]),
      'sourceSafe: expected true or false, got 1',
    ],
    ['a body too few', 'multi-frame', 'coordinator', bytes([21, [[5, true]]]), 'frames[1]: expected a body'],
    ['a body without its id', 'single-frame', 'coordinator', bytes([21, [none]]), 'request_id: expected an integer'],
    ['entries that are no pairs', 'multi-frame', 'coordinator', bytes([21, [[5]]], none), 'expected id and flag'],
    [
      'bytes after the message',
      'single-frame',
      'engine',
      [Uint8Array.of(0x92, 23, 5, 5)],
      'expected the end, got 1 bytes more',
    ],
    [
      'a hash beyond int64',
      'multi-frame',
      'coordinator',
      bytes([20, 5, none, null], [1], [2n ** 63n], null, null),
      'a signed 64-bit integer',
    ],
    [
      'more levels',
      'single-frame',
      'coordinator',
      bytes([100, wireMap({ a: 1 })]).map(() => Uint8Array.from([0x92, 100, ...Array<number>(40).fill(0x91), 1])),
      'at most 32 levels',
    ],
    [
      'a length beyond the frame',
      'single-frame',
      'engine',
      [Uint8Array.of(0x94, 20, 5, 0xdd, 0x7f, 255, 255, 255)],
      'at most 0 bytes of entries, got 2147483647 entries',
    ],
    [
      'an extension type',
      'single-frame',
      'engine',
      [Uint8Array.of(0x94, 20, 5, 0xd4, 1, 1, 0x80)],
      'frames[0] at byte 3: expected a value, got 212',
    ],
    [
      'a key twice',
      'single-frame',
      'engine',
      [Uint8Array.of(0x94, 20, 5, 0xa0, 0x82, 0xa1, 0x61, 1, 0xa1, 0x61, 2)],
      'expected the key "a" once',
    ],
    [
      'a key that is a number',
      'single-frame',
      'engine',
      [Uint8Array.of(0x94, 20, 5, 0xa0, 0x81, 1, 1)],
      'a key that is a string',
    ],
    ['text that is no UTF-8', 'single-frame', 'engine', [Uint8Array.of(0x92, 29, 0xa1, 0xff)], 'text in UTF-8'],
    [
      'a held handoff in no state',
      'single-frame',
      'coordinator',
      bytes([
        27,
        'prefill',
        'x',
        [],
        wireMap({ instance: 'i', incarnation: 'n', transports: [], held: [wireMap({ state: 'lost' })] }),
      ]),
      'extension.held[0].state: expected "pinned", "importing" or "quarantined", got "lost"',
    ],
    [
      'a nameless engine',
      'single-frame',
      'coordinator',
      bytes([27, 'prefill', 'x', [], wireMap({ instance: '' })]),
      'extension.transports: expected a list',
    ],
  ])('%s (%s)', (_title, profile, place, frames, text) => {
    const decode = () => decodeMessage(profile, place, frames);
    expect(decode).toThrow(text);
    expect(decode).toThrow(expect.objectContaining({ code: 'MESSAGE_INVALID' }));
  });

  it.each<[string, WireProfile, Place, object, string]>([
    [
      'media in one frame',
      'single-frame',
      'engine',
      {
        header: 'SUBMIT_REQUEST',
        requestId: 1,
        prompt: encodeValue('p'),
        sampling: none,
        mediaMeta: encodeValue(1),
        media: null,
        offloadParams: null,
      },
      'mediaMeta: expected null in the single-frame profile',
    ],
    [
      'another place',
      'multi-frame',
      'client',
      { header: 'PAUSE' },
      'message.header: expected a message to the client, got "PAUSE"',
    ],
    [
      'no header',
      'multi-frame',
      'client',
      { header: 'HELLO' },
      'message.header: expected a header of the protocol, got "HELLO"',
    ],
    [
      'an id out of range',
      'multi-frame',
      'engine',
      { header: 'ABORT_REQUEST', requestId: 2 ** 53 },
      'requestId: expected an integer',
    ],
    [
      'a body under another id',
      'single-frame',
      'coordinator',
      {
        header: 'ENGINE_REPLY',
        replies: [{ requestId: 1, needsDetokenize: true, body: encodeValue(wireMap({ request_id: 2 })) }],
      },
      "[0].body.request_id: expected 1, the entry's own id",
    ],
    [
      'a body that is no map',
      'multi-frame',
      'coordinator',
      { header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId: 1, body: encodeValue(1) }] },
      '[0].body: expected a map',
    ],
    [
      'an integer of 65 bits',
      'multi-frame',
      'client',
      { header: 'STATUS_REPLY', status: wireMap({ a: 1n << 64n }) },
      'status.a: expected an integer of 64 bits',
    ],
    [
      'a number beyond 2^53',
      'multi-frame',
      'client',
      { header: 'STATUS_REPLY', status: wireMap({ a: 2 ** 60 }) },
      'status.a: expected a bigint',
    ],
    [
      'half a character',
      'multi-frame',
      'client',
      { header: 'STATUS_REPLY', status: wireMap({ a: '\ud800' }) },
      'status.a: expected text without lone surrogates',
    ],
    [
      'a function',
      'multi-frame',
      'client',
      { header: 'STATUS_REPLY', status: new Map([['a', () => 1]]) },
      'status.a: expected a value of the protocol, got a function',
    ],
    [
      'a date',
      'multi-frame',
      'client',
      { header: 'STATUS_REPLY', status: new Map([['a', new Date()]]) },
      'status.a: expected a value of the protocol, got a Date',
    ],
    [
      'a key that is no text',
      'multi-frame',
      'client',
      { header: 'STATUS_REPLY', status: new Map([[1, 1]]) },
      'status: expected keys that are strings',
    ],
    [
      'more levels',
      'multi-frame',
      'client',
      { header: 'STATUS_REPLY', status: wireMap({ a: deep(40) }) },
      'status.a: expected at most 32 levels',
    ],
  ])('%s, when it is ours to say', (_title, profile, place, message, text) => {
    const encode = () => encodeMessage(profile, place, message as never);
    expect(encode).toThrow(text);
    expect(encode).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID' }));
    // What was half written is not in the next message.
    expect(hex(encodeMessage('single-frame', 'engine', { header: 'PAUSE' }))).toEqual(['9128']);
  });

  it('values that make more of themselves than is allowed', () => {
    const many = Uint8Array.from([0xdd, 0, 4, 0, 0, ...new Uint8Array(1 << 18)]);
    expect(() => decodeValue(many)).toThrow('expected at most 262144 values, got more');
  });
});

it('knows the place of what a coordinator says by its header', () => {
  expect(placeOf({ header: 'REGISTRATION_ERROR', reason: '' })).toBe('engine');
  expect(placeOf({ header: 'REQUEST_ERROR', requestId: 1, reason: '', sourceSafe: true })).toBe('client');
  expect(placeOf({ header: 'ABORT_REQUEST', requestId: 1 })).toBe('engine');
  expect(placeOf({ header: 'CONNECT_ACK', instance: null })).toBe('client');
  expect(() => headerOf(null)).toThrow('frames[0][0]: expected a header value');
});

describe('what is read quickly is read as exactly', () => {
  it('short texts: each as it is written, whatever came before, and never what is no UTF-8', () => {
    for (let round = 0; round < 2; round++) {
      for (let number = 0; number < 3000; number++) {
        const text = `k${number}é`;
        expect(decodeValue(encodeValue(text))).toBe(text);
      }
    }
    for (let round = 0; round < 2; round++)
      expect(() => decodeValue(Uint8Array.of(0xa2, 0x41, 0xc3))).toThrow('text in UTF-8');
  });

  it('long lists: cut at any byte they are refused, and whole they are passed on', () => {
    const prompt = encodeValue([5, 200, 300, 70_000, 2 ** 40, null, 1.5, 'a', 66_000, 300, 7]);
    const submit = (tokens: Uint8Array) =>
      decodeMessage('multi-frame', 'coordinator', [encodeValue([20, 5, none, null]), tokens]);
    expect(submit(prompt)).toMatchObject({ prompt });
    for (let cut = 1; cut < prompt.length; cut++) expect(() => submit(prompt.subarray(0, cut))).toThrow(/^frames\[1\]/);
    expect(() => submit(Uint8Array.from([...prompt, 1]))).toThrow('expected the end');
  });

  it('hashes: both forms of 64 bits, every sign, and not what exceeds it', () => {
    const hashes = BigInt64Array.of(0n, -1n, 5n, 2n ** 62n + 3n, -(2n ** 63n), 2n ** 63n - 1n, -(2n ** 33n), 2n ** 32n);
    const frames = bytes([20, 5, none, null], [1], [...hashes], null, null);
    expect(decodeMessage('multi-frame', 'coordinator', frames)).toMatchObject({ blockHashes: hashes });
    const large = bytes([20, 5, none, null], [1], [2n ** 63n], null, null);
    expect(() => decodeMessage('multi-frame', 'coordinator', large)).toThrow('signed 64-bit');
  });
});
