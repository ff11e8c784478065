/**
 * The codec of the control plane: every message comes back from its bytes in both profiles; values agree with another
 * msgpack; bytes that nobody wrote are refused with one code, in bounded time and memory.
 */
import fc from 'fast-check';
import { Packr, Unpackr } from 'msgpackr';
import { decodeMessage, encodeMessage } from '../../lib/control/protocol/codec.js';
import { decodeValue, encodeValue, mapParts, replaceParts } from '../../lib/control/protocol/wire-bytes.js';
import { Float64, type Wire } from '../../lib/control/protocol/wire-value.js';
import { anyMessage, anyWire, inSingleFrame } from '../support/message-arbitraries.js';
import { fuzzCodec } from '../support/fuzz-codec.js';

const unpackr = new Unpackr({ mapsAsObjects: false, int64AsType: 'bigint', useRecords: false });
const packr = new Packr({ mapsAsObjects: false, useRecords: false, variableMapSize: true });

/** What msgpackr makes of the same value: it knows no whole float and gives 64-bit forms as bigints. */
function asOther(value: Wire): unknown {
  if (value instanceof Float64) return value.value;
  if (typeof value === 'number' && (value > 0xffff_ffff || value < -0x8000_0000)) return BigInt(value);
  if (Array.isArray(value)) return (value as readonly Wire[]).map(asOther);
  if (value instanceof Map)
    return new Map([...(value as ReadonlyMap<string, Wire>)].map(([key, inner]) => [key, asOther(inner)]));
  return value;
}

const bytesOf = (value: unknown): unknown =>
  Buffer.isBuffer(value)
    ? Uint8Array.from(value)
    : Array.isArray(value)
      ? value.map(bytesOf)
      : value instanceof Map
        ? new Map([...(value as Map<string, unknown>)].map(([key, inner]) => [key, bytesOf(inner)]))
        : value;

it('gives every value back, in the bytes that another msgpack reads as the same', () => {
  fc.assert(
    fc.property(anyWire, (value) => {
      const bytes = encodeValue(value);
      expect(decodeValue(bytes)).toEqual(value);
      expect(bytesOf(unpackr.unpack(bytes))).toEqual(asOther(value));
    }),
    { numRuns: 500 },
  );
});

it('writes token lists, text and small maps as another msgpack does', () => {
  const plain = fc.oneof(
    fc.array(fc.integer({ min: -(2 ** 31), max: 2 ** 32 - 1 })),
    fc.string({ unit: 'binary' }),
    fc.array(fc.tuple(fc.string(), fc.boolean()), { maxLength: 15 }).map((entries) => new Map(entries)),
  );
  fc.assert(
    fc.property(plain, (value) => {
      expect(Buffer.from(encodeValue(value))).toEqual(packr.pack(value));
    }),
  );
});

it('gives every message back, in both profiles', () => {
  fc.assert(
    fc.property(anyMessage, ({ place, message }) => {
      const multi = encodeMessage('multi-frame', place, message as never);
      const heard = decodeMessage('multi-frame', place, multi);
      expect({ blockHashes: null, ...heard }).toEqual({ blockHashes: null, ...message });
      const said = inSingleFrame(message);
      const single = encodeMessage('single-frame', place, said as never);
      expect(single).toHaveLength(1);
      expect({ blockHashes: null, ...decodeMessage('single-frame', place, single) }).toEqual({
        blockHashes: null,
        ...said,
      });
    }),
    { numRuns: 1500 },
  );
});

it('passes bodies, prompts and metadata through as the bytes received', () => {
  fc.assert(
    fc.property(anyMessage, ({ place, message }) => {
      const frames = encodeMessage('multi-frame', place, message as never);
      const again = encodeMessage('multi-frame', place, decodeMessage('multi-frame', place, frames));
      expect(again.map((frame) => Buffer.from(frame))).toEqual(frames.map((frame) => Buffer.from(frame)));
    }),
    { numRuns: 300 },
  );
});

it('replaces parts of a map and leaves the bytes of the others', () => {
  const map = fc
    .array(fc.tuple(fc.string(), anyWire), { maxLength: 20 })
    .map((entries) => new Map<string, Wire>(entries));
  fc.assert(
    fc.property(map, map, (value, changes) => {
      const parts = new Map([...changes].map(([key, inner]) => [key, encodeValue(inner)]));
      const changed = replaceParts(encodeValue(value), parts);
      expect(decodeValue(changed)).toEqual(new Map([...value, ...changes]));
      expect([...(mapParts(changed) ?? [])].map(([key]) => key)).toEqual([...new Map([...value, ...changes]).keys()]);
    }),
  );
});

it('refuses bytes that nobody wrote with one code', () => {
  const { accepted } = fuzzCodec(7, 40_000);
  // Enough pass that what is behind the first check is reached as well.
  expect(accepted).toBeGreaterThan(500);
});
