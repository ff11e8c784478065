/** The bytes between ranks: exact examples, every refusal by name. */
import type { LogRecord, StepFrame } from '../../lib/control/rank-group.js';
import { FrameReader, frameBytes } from '../../lib/control/ranks/framing.js';
import {
  checkWelcome,
  decodeHello,
  decodeJoin,
  encodeHello,
  encodeJoin,
  encodeWelcome,
  newNonce,
} from '../../lib/control/ranks/handshake.js';
import { decodeStepFrame, encodeStepFrame } from '../../lib/control/ranks/step-frame.js';
import { decodeWireValue, encodeWireValue, wireDepthMax } from '../../lib/control/ranks/wire-value.js';

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
const unhex = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text.replaceAll(' ', ''), 'hex'));
const refused = (message: string) => expect.objectContaining({ code: 'ARGUMENT_INVALID', message });

describe('wire values', () => {
  test.each([
    [null, '00'],
    [undefined, '01'],
    [false, '02'],
    [true, '03'],
    [-2, '04 fffffffe'],
    [-0, '05 8000000000000000'],
    [2 ** 31, '05 41e0000000000000'],
    [-1n, '06 ffffffffffffffff'],
    [(1n << 64n) - 1n, '07 ffffffffffffffff'],
    ['é', '08 00000002 c3a9'],
    [Uint8Array.of(7), '09 00000001 07'],
    [Int32Array.of(-2), '0a 00000001 feffffff'],
    [BigInt64Array.of(1n), '0b 00000001 0100000000000000'],
    [[true], '0c 00000001 03'],
    [{ a: null }, '0d 00000001 00000001 61 00'],
  ])('%p is %s', (value, text) => {
    expect(hex(encodeWireValue(value))).toBe(text.replaceAll(' ', ''));
    expect(decodeWireValue(unhex(text))).toStrictEqual(value);
  });

  test.each([
    [() => undefined, 'value: expected plain data, got a function'],
    [{ a: [Symbol('s')] }, 'value.a[0]: expected plain data, got Symbol(s)'],
    [new Map(), 'value: expected plain data, got a Map'],
    [{ when: new Date(0) }, 'value.when: expected plain data, got a Date'],
    [new Float64Array(1), 'value: expected plain data, got a Float64Array'],
    [1n << 64n, 'value: expected a 64-bit integer, got 18446744073709551616n'],
    [-(1n << 63n) - 1n, 'value: expected a 64-bit integer, got -9223372036854775809n'],
  ])('refuses to encode %p', (value, message) => {
    expect(() => encodeWireValue(value)).toThrow(refused(message));
  });

  test.each([
    ['', 'value at byte 0: expected 1 more bytes, got 0'],
    ['0e', 'value at byte 1: expected a known kind of value, got 14'],
    ['0000', 'value at byte 1: expected no more bytes, got 1'],
    ['04 0000', 'value at byte 1: expected 4 more bytes, got 2'],
    ['08 00000002 61', 'value at byte 5: expected at most 1 entries, got 2'],
    ['08 00000001 ff', 'value at byte 6: expected UTF-8, got a Uint8Array'],
    ['0a 40000000 00', 'value at byte 5: expected at most 0 entries, got 1073741824'],
    ['0b ffffffff', 'value at byte 5: expected at most 0 entries, got 4294967295'],
    ['0c ffffffff', 'value at byte 5: expected at most 0 entries, got 4294967295'],
    ['0d 00000002 00000000 00', 'value at byte 5: expected at most 1 entries, got 2'],
    ['0d 00000002 00000000 00 00000000 00', 'value at byte 14: expected each key once, got ""'],
  ])('refuses to decode %p', (text, message) => {
    expect(() => decodeWireValue(unhex(text))).toThrow(refused(message));
  });

  test('nests so deep and no deeper, both ways', () => {
    let deepest: unknown = 1;
    for (let i = 0; i < wireDepthMax; i += 1) deepest = i % 2 === 0 ? [deepest] : { a: deepest };
    const bytes = encodeWireValue(deepest);
    expect(decodeWireValue(bytes)).toStrictEqual(deepest);
    expect(() => encodeWireValue([deepest])).toThrow(`expected at most ${wireDepthMax} levels, got "more"`);
    const deeper = Buffer.concat([Uint8Array.of(12, 0, 0, 0, 1), bytes]);
    expect(() => decodeWireValue(deeper)).toThrow(`expected at most ${wireDepthMax} levels, got "more"`);
  });

  test('a cycle is refused as too deep', () => {
    const cycle: unknown[] = [];
    cycle.push(cycle);
    expect(() => encodeWireValue(cycle)).toThrow(`at most ${wireDepthMax} levels`);
  });

  test('nothing inherited becomes a field', () => {
    const decoded = decodeWireValue(
      encodeWireValue(Object.defineProperty({}, '__proto__', { value: { a: 1 }, enumerable: true })),
    ) as Record<string, unknown>;
    expect(decoded['a']).toBeUndefined();
    expect(Object.keys(decoded)).toEqual(['__proto__']);
  });
});

describe('step frames', () => {
  const add: LogRecord = {
    kind: 'add',
    attemptId: 1,
    requestId: 'r',
    prompt: Int32Array.of(1, 2),
    samplingParams: {},
    kvMeta: {},
    sourceBlockIds: [0],
    blockHashes: BigInt64Array.of(),
  };

  test('an empty frame is small', () => {
    expect(hex(encodeStepFrame({ step: 7, records: [] }))).toBe('0c00000002' + '0400000007' + '0c00000000');
  });

  const wrong = (record: object): Uint8Array => encodeWireValue([1, [record]]);
  test.each<[string, Uint8Array]>([
    ['frame: expected a step and its records, got 1', encodeWireValue(1)],
    ['frame: expected a step and its records, got an array of 1', encodeWireValue([1])],
    ['frame.step: expected an integer of at least 1, got 0', encodeWireValue([0, []])],
    ['frame.step: expected an integer of at least 1, got 1.5', encodeWireValue([1.5, []])],
    ['frame.records: expected a list of at most 1048576, got null', encodeWireValue([1, null])],
    ['frame.records[0]: expected a record of the schedule log, got 5', encodeWireValue([1, [5]])],
    [
      'frame.records[0].handoffId: expected an integer of at least 1, got "1"',
      wrong({ kind: 'release', handoffId: '1', reason: 'released' }),
    ],
    ['frame.records[0].extra: expected no such field, got 1', wrong({ kind: 'push-safe', pushId: 1, extra: 1 })],
    ['frame.records[0].pushId: expected an integer of at least 1, got undefined', wrong({ kind: 'push-safe' })],
    [
      'frame.records[0].reason: expected released or expired or attested, got "lost"',
      wrong({ kind: 'release', handoffId: 1, reason: 'lost' }),
    ],
    [
      'frame.records[0].reason: expected caller or queue-deadline, got 4',
      wrong({ kind: 'abort', attemptId: 1, reason: 4 }),
    ],
    [
      'frame.records[0].failed: expected true or false, got 1',
      wrong({ kind: 'decision', attemptId: 1, failed: 1, sourceSafe: true, reason: null }),
    ],
    [
      'frame.records[0].sourceSafe: expected true or false, got null',
      wrong({ kind: 'decision', attemptId: 1, failed: true, sourceSafe: null, reason: null }),
    ],
    [
      'frame.records[0].instance: expected at most 256 characters, got null',
      wrong({ kind: 'attest-dead', instance: null, incarnation: 'x' }),
    ],
    ['frame.records[0].message: expected a map, got 7', wrong({ kind: 'carried', message: 7 })],
    ['frame.records[0].prompt: expected tokens, got an array of 2', wrong({ ...add, prompt: [1, 2] })],
    ['frame.records[0].prompt: expected tokens, got a Int32Array', wrong({ ...add, prompt: new Int32Array() })],
    ['frame.records[0].blockHashes: expected hashes, got an array of 0', wrong({ ...add, blockHashes: [] })],
    ['frame.records[0].kvMeta: expected a map, got an array of 0', wrong({ ...add, kvMeta: [] })],
    [
      'frame.records[0].sourceBlockIds: expected a list of at most 1048576 block ids, got an array of 1',
      wrong({ ...add, sourceBlockIds: [-1] }),
    ],
    [
      'requestId: expected an integer, or at most 256 characters, got undefined',
      wrong({ ...add, requestId: undefined }),
    ],
    ['samplingParams: expected an object, got null', wrong({ ...add, samplingParams: null })],
    [
      'frame.records[0].targetInstance: expected null or at most 256 characters, got 1',
      wrong({
        kind: 'push',
        handoffId: 1,
        targets: [],
        cachedPrefixBlocks: 0,
        targetInstance: 1,
        targetIncarnation: null,
      }),
    ],
    [
      'frame.records[0].cachedPrefixBlocks: expected a number of blocks, got -1',
      wrong({
        kind: 'push',
        handoffId: 1,
        targets: [],
        cachedPrefixBlocks: -1,
        targetInstance: null,
        targetIncarnation: null,
      }),
    ],
    [
      'frame.records[0].targets: expected a list of at most 1024 descriptors, got an object',
      wrong({
        kind: 'push',
        handoffId: 1,
        targets: {},
        cachedPrefixBlocks: 0,
        targetInstance: null,
        targetIncarnation: null,
      }),
    ],
    [
      'frame.records[0].code: expected DIVERGENCE or RANK_LOST or RANK_SETUP_FAILED, got "ABORTED"',
      wrong({ kind: 'instance-failed', code: 'ABORTED', rank: 1, attemptId: null, reason: '' }),
    ],
    [
      'frame.records[0].rank: expected null or a rank, got -1',
      wrong({ kind: 'instance-failed', code: 'DIVERGENCE', rank: -1, attemptId: null, reason: '' }),
    ],
    [
      'frame.records[0].attemptId: expected null or an attempt id, got 0',
      wrong({ kind: 'instance-failed', code: 'DIVERGENCE', rank: 1, attemptId: 0, reason: '' }),
    ],
    [
      'frame.records[0].reason: expected at most 4096 characters, got null',
      wrong({ kind: 'instance-failed', code: 'DIVERGENCE', rank: 1, attemptId: 1, reason: null }),
    ],
  ])('%s', (message, bytes) => {
    expect(() => decodeStepFrame(bytes)).toThrow(refused(message));
  });

  test.each(['constructor', 'adds', 5])('refuses a record of kind %p', (kind) => {
    expect(() => decodeStepFrame(wrong({ kind }))).toThrow(/records\[0\]\.kind: expected one of add, abort, decision/);
  });

  test('says which record cannot travel', () => {
    const frame: StepFrame = { step: 1, records: [{ ...add, samplingParams: { bias: () => 1 } }] };
    expect(() => encodeStepFrame(frame)).toThrow(
      refused('frame[1][0].samplingParams.bias: expected plain data, got a function'),
    );
  });
});

describe('framing', () => {
  test('five bytes and the payload', () => {
    expect(hex(frameBytes(9, Uint8Array.of(1, 2)))).toBe('00000002' + '09' + '0102');
  });

  test('a length above the bound is refused before its payload comes', () => {
    const reader = new FrameReader(4);
    expect(() => reader.push(unhex('00000005 01'), () => undefined)).toThrow(
      refused('frame: expected at most 4 bytes, got 5'),
    );
    const fine = new FrameReader(4);
    const got: number[] = [];
    fine.push(unhex('00000004 01 00000000 00000000 02'), (kind) => got.push(kind));
    expect(got).toEqual([1, 2]);
  });

  test('the bound may grow from one frame to the next', () => {
    const reader = new FrameReader(0);
    const got: number[] = [];
    reader.push(unhex('00000000 01 00000001 02 ff'), (kind) => {
      got.push(kind);
      reader.payloadMax = 1;
    });
    expect(got).toEqual([1, 2]);
  });
});

describe('the introduction of a rank', () => {
  const token = 'a secret of this instance';
  const helloNonce = newNonce();
  const claim = { rank: 2, size: 4, nonce: newNonce() };
  const setupFailed = (message: string) => expect.objectContaining({ code: 'RANK_SETUP_FAILED', message });

  test('both ends learn that the other knows the token', () => {
    expect(decodeHello(encodeHello(helloNonce))).toEqual(Uint8Array.from(helloNonce));
    const join = encodeJoin(token, helloNonce, claim);
    expect(decodeJoin(join, token, helloNonce, 4)).toEqual({ ...claim, nonce: Uint8Array.from(claim.nonce) });
    checkWelcome(encodeWelcome(token, helloNonce, claim), token, helloNonce, claim);
    expect(Buffer.from(join).includes(token)).toBe(false);
  });

  test('no answer of one meeting serves in another', () => {
    const join = encodeJoin(token, helloNonce, claim);
    expect(() => decodeJoin(join, token, newNonce(), 4)).toThrow(
      setupFailed("token: expected the instance's, got another"),
    );
    // A proof of the one end is none of the other.
    const echoed = join.subarray(join.length - 32);
    expect(() => checkWelcome(echoed, token, helloNonce, claim)).toThrow(
      setupFailed("token of rank 0: expected the instance's, got another"),
    );
    expect(() => checkWelcome(new Uint8Array(0), token, helloNonce, claim)).toThrow(
      setupFailed("token of rank 0: expected the instance's, got another"),
    );
  });

  test.each<[string, (join: Uint8Array) => void]>([
    ["token: expected the instance's, got another", (join) => (join[11]! ^= 1)], // another rank than was proved
    ["token: expected the instance's, got another", (join) => (join[16]! ^= 1)],
    ["token: expected the instance's, got another", (join) => (join[40]! ^= 1)],
    ["join: expected a rank's, got something else", (join) => (join[0]! ^= 1)],
    ['version: expected 1, got 2', (join) => (join[7] = 2)],
  ])('%s', (message, change) => {
    const join = encodeJoin(token, helloNonce, claim);
    change(join);
    expect(() => decodeJoin(join, token, helloNonce, 4)).toThrow(setupFailed(message));
  });

  test.each<[string, Uint8Array]>([
    ["token: expected the instance's, got another", encodeJoin('another secret of some length', helloNonce, claim)],
    ['size: expected 4, got 5', encodeJoin(token, helloNonce, { ...claim, size: 5 })],
    ['rank: expected 1 to 3, got 4', encodeJoin(token, helloNonce, { ...claim, rank: 4 })],
    ['rank: expected 1 to 3, got 0', encodeJoin(token, helloNonce, { ...claim, rank: 0 })],
    ['join: expected 64 bytes, got 63', encodeJoin(token, helloNonce, claim).subarray(0, 63)],
    ["join: expected a rank's, got something else", new Uint8Array(3)],
  ])('%s', (message, join) => {
    expect(() => decodeJoin(join, token, helloNonce, 4)).toThrow(setupFailed(message));
  });

  test('what is no rank 0 is refused', () => {
    expect(() => decodeHello(unhex('474554202f20485454502f312e31'))).toThrow(
      setupFailed("hello: expected a rank's, got something else"),
    );
    expect(() => decodeHello(encodeHello(helloNonce).subarray(0, 20))).toThrow(
      setupFailed('hello: expected 24 bytes, got 20'),
    );
  });
});
