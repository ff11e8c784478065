/**
 * What the control plane's msgpack can say, without loss: integers and floats are two things, maps keep their order and
 * integer-like keys, 64-bit integers keep all their digits.
 */

/** A float64 on the wire, whole or not. Decoding gives every float this way, so that `1.0` does not come back as `1`. */
export class Float64 {
  constructor(readonly value: number) {}
}

/** A map on the wire, in the order in which it was written. */
export type WireMap = ReadonlyMap<string, Wire>;

/**
 * A decoded value. Integers are `number` while that holds them exactly and `bigint` beyond; floats are {@link Float64};
 * bytes are `Uint8Array`. For encoding, a `number` with a fraction is a float too.
 */
export type Wire = null | boolean | number | bigint | string | Float64 | Uint8Array | readonly Wire[] | WireMap;

/**
 * One value still in its msgpack bytes: exactly one value from the first byte to the last, structure and bounds checked.
 * It passes through a coordinator as it came, whatever profile it came in; `wire-bytes.ts` reads parts of it.
 */
export type Opaque = Uint8Array;
