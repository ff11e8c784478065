/** What ranks say to each other survives its bytes whatever it is, and whatever bytes come end in a refusal or in what was sent. */
import { inspect, isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import { failureCodes, type LogRecord } from '../../lib/control/rank-group.js';
import { FrameReader, frameBytes } from '../../lib/control/ranks/framing.js';
import { decodeStepFrame, encodeStepFrame } from '../../lib/control/ranks/step-frame.js';
import { decodeWireValue, encodeWireValue } from '../../lib/control/ranks/wire-value.js';
import { isHandoffError } from '../../lib/errors.js';

const int32 = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
const int64 = fc.bigInt({ min: -(1n << 63n), max: (1n << 63n) - 1n });
const key = fc.oneof(fc.string({ maxLength: 8 }), fc.constantFrom('__proto__', 'constructor', 'length', ''));

/** Maps as a peer may make them: `__proto__` is an own key like any other. */
const map = (value: fc.Arbitrary<unknown>): fc.Arbitrary<object> =>
  fc
    .uniqueArray(fc.tuple(key, value), { maxLength: 4, selector: ([name]) => name })
    .map((entries) => Object.fromEntries(entries));

const plain = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: 'small' },
    fc.constant(null),
    fc.constant(undefined),
    fc.boolean(),
    int32,
    fc.double(),
    fc.bigInt({ min: -(1n << 63n), max: (1n << 64n) - 1n }),
    fc.string({ unit: 'grapheme' }),
    fc.uint8Array({ maxLength: 20 }),
    fc.array(int32, { maxLength: 8 }).map((values) => Int32Array.from(values)),
    fc.array(int64, { maxLength: 8 }).map((values) => BigInt64Array.from(values)),
    fc.array(tie('value'), { maxLength: 4 }),
    map(tie('value')),
  ),
})).value;

/** Jest's own equality trips over a key named `constructor`. */
function expectSame(got: unknown, sent: unknown): void {
  if (!isDeepStrictEqual(got, sent)) throw new Error(`got ${inspect(got)}, sent ${inspect(sent)}`);
}

const isPlainOnly = { noNullPrototype: true };
const attemptId = fc.integer({ min: 1, max: Number.MAX_SAFE_INTEGER });
const record: fc.Arbitrary<LogRecord> = fc.oneof(
  fc.record(
    {
      kind: fc.constant('add' as const),
      attemptId,
      requestId: fc.oneof(fc.string({ maxLength: 256 }), fc.maxSafeInteger()),
      prompt: fc.array(int32, { minLength: 1, maxLength: 8 }).map((tokens) => Int32Array.from(tokens)),
      samplingParams: map(plain).map((params) => ({ ...params, num_tokens_to_generate: 3 })),
      kvMeta: map(plain) as fc.Arbitrary<Record<string, unknown>>,
      sourceBlockIds: fc.array(fc.nat(), { maxLength: 8 }),
      blockHashes: fc.array(int64, { maxLength: 4 }).map((values) => BigInt64Array.from(values)),
    },
    isPlainOnly,
  ),
  fc.record(
    {
      kind: fc.constant('abort' as const),
      attemptId,
      reason: fc.constantFrom('caller' as const, 'queue-deadline' as const),
    },
    isPlainOnly,
  ),
  fc.record(
    {
      kind: fc.constant('decision' as const),
      attemptId,
      failed: fc.boolean(),
      sourceSafe: fc.boolean(),
      reason: fc.option(fc.string()),
    },
    isPlainOnly,
  ),
  fc.record(
    {
      kind: fc.constant('release' as const),
      handoffId: attemptId,
      reason: fc.constantFrom('released' as const, 'expired' as const, 'attested' as const),
    },
    isPlainOnly,
  ),
  fc.record(
    {
      kind: fc.constant('push' as const),
      handoffId: attemptId,
      targets: fc.array(map(plain), { maxLength: 3 }),
      cachedPrefixBlocks: fc.nat(1 << 20),
      targetInstance: fc.option(fc.string()),
      targetIncarnation: fc.option(fc.string()),
    },
    isPlainOnly,
  ),
  fc.record({ kind: fc.constant('push-safe' as const), pushId: attemptId }, isPlainOnly),
  fc.record(
    {
      kind: fc.constant('instance-failed' as const),
      code: fc.constantFrom(...failureCodes),
      rank: fc.option(fc.nat(2 ** 31 - 1)),
      attemptId: fc.option(attemptId),
      reason: fc.string(),
    },
    isPlainOnly,
  ),
  fc.record(
    { kind: fc.constant('carried' as const), message: map(plain) as fc.Arbitrary<Record<string, unknown>> },
    isPlainOnly,
  ),
  fc.record(
    { kind: fc.constant('attest-dead' as const), instance: fc.string(), incarnation: fc.string() },
    isPlainOnly,
  ),
);
const frame = fc.record({ step: attemptId, records: fc.array(record, { maxLength: 4 }) }, isPlainOnly);

/** What `decode` makes of bytes that nobody vouches for: a value, or null for a refusal. Anything else is a failure. */
function judged<T>(decode: (bytes: Uint8Array) => T, bytes: Uint8Array): { value: T } | null {
  try {
    return { value: decode(bytes) };
  } catch (error) {
    if (!isHandoffError(error) || error.code !== 'ARGUMENT_INVALID') throw error;
    return null;
  }
}

test('every plain value comes back as it was, in memory of its own', () => {
  fc.assert(
    fc.property(plain, (value) => {
      const bytes = encodeWireValue(value);
      const back = decodeWireValue(Uint8Array.from(bytes));
      expectSame(back, value);
      bytes.fill(0xff);
      expectSame(back, value);
    }),
    { numRuns: 400 },
  );
});

test('every frame comes back as it was', () => {
  fc.assert(
    fc.property(frame, (sent) => {
      expectSame(decodeStepFrame(encodeStepFrame(sent)), sent);
    }),
    { numRuns: 400 },
  );
});

test('no cut of a value or a frame is taken for one', () => {
  fc.assert(
    fc.property(frame, fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }), (sent, where) => {
      const bytes = encodeStepFrame(sent);
      const cut = bytes.subarray(0, Math.floor(bytes.length * where));
      expect(judged(decodeStepFrame, cut)).toBeNull();
      expect(judged(decodeWireValue, cut)).toBeNull();
      expect(judged(decodeWireValue, Buffer.concat([bytes, Uint8Array.of(0)]))).toBeNull();
    }),
    { numRuns: 300 },
  );
});

test('whatever bytes come, a refusal or a sound frame comes of them', () => {
  const changed = fc
    .tuple(frame, fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 4 }))
    .map(([sent, changes]) => {
      const bytes = Uint8Array.from(encodeStepFrame(sent));
      for (const [at, value] of changes) bytes[at % bytes.length] = value;
      return bytes;
    });
  fc.assert(
    fc.property(fc.oneof(changed, fc.uint8Array({ maxLength: 200 })), (bytes) => {
      judged(decodeWireValue, bytes);
      const taken = judged(decodeStepFrame, bytes);
      if (taken === null) return;
      // What was taken can be sent on, and says the same again.
      expectSame(decodeStepFrame(encodeStepFrame(taken.value)), taken.value);
    }),
    { numRuns: 1000 },
  );
});

test('a stream gives the frames that were put into it, however it is cut', () => {
  const payload = fc.uint8Array({ maxLength: 40 });
  fc.assert(
    fc.property(
      fc.array(fc.tuple(fc.nat(255), payload), { maxLength: 6 }),
      fc.array(fc.integer({ min: 1, max: 12 }), { minLength: 1, maxLength: 30 }),
      (sent, cuts) => {
        const stream = Buffer.concat(sent.map(([kind, bytes]) => frameBytes(kind, bytes)));
        const reader = new FrameReader(40);
        const got: [number, number[]][] = [];
        for (let at = 0, turn = 0; at < stream.length; turn += 1) {
          const end = Math.min(stream.length, at + (cuts[turn % cuts.length] as number));
          reader.push(stream.subarray(at, end), (kind, bytes) => got.push([kind, [...bytes]]));
          at = end;
        }
        expect(got).toEqual(sent.map(([kind, bytes]) => [kind, [...bytes]]));
        expect(reader.pendingBytes).toBe(0);
      },
    ),
    { numRuns: 300 },
  );
});
