/**
 * The arithmetic that makes results independent of how work is split.
 *
 * Every contraction is cut into the same eight shards. A shard is summed in index order in float64 and rounded once to
 * float32; the eight are added by one fixed binary tree. A rank that owns 1, 2 or 4 neighbouring shards of eight owns a
 * subtree or its leaves, so tensor parallelism moves partial sums around and never changes a bit of the result.
 *
 * Nothing else is rounded to float32, so that a change in the last bit of one transferred number does not get lost.
 */

/** Shards of every contraction, on one rank as on eight. */
export const shardCount = 8;

// Bound once, here and elsewhere: in a sandbox (Jest has one) every access to a global is slow.
const { exp, fround, log1p, sqrt } = Math;

/** A store into a Float32Array rounds once, which is exactly what a shard wants. */
const sums = new Float32Array(shardCount);

/** `((0+1)+(2+3))+((4+5)+(6+7))` in float32, over eight values `stride` apart. */
export function combineShards(values: Float32Array, at: number, stride: number): number {
  const a = fround(values[at]! + values[at + stride]!);
  const b = fround(values[at + 2 * stride]! + values[at + 3 * stride]!);
  const c = fround(values[at + 4 * stride]! + values[at + 5 * stride]!);
  const d = fround(values[at + 6 * stride]! + values[at + 7 * stride]!);
  return fround(fround(a + b) + fround(c + d));
}

/** `y[r] = weights[r] · x` for `rows` rows of `columns` columns. `columns` is a multiple of eight. */
export function project(
  weights: Float32Array,
  rows: number,
  columns: number,
  x: Float64Array,
  xAt: number,
  y: Float32Array | Float64Array,
  yAt: number,
): void {
  const width = columns / shardCount;
  let at = 0;
  for (let row = 0; row < rows; row++) {
    let from = xAt;
    for (let shard = 0; shard < shardCount; shard++) {
      let sum = 0;
      for (const end = from + width; from < end; from++) sum += weights[at++]! * x[from]!;
      sums[shard] = sum;
    }
    y[yAt + row] = combineShards(sums, 0, 1);
  }
}

/**
 * The partial sums of `shards` neighbouring shards of a contraction, `width` columns each: `partials[s · rows + r]`.
 * `weights` and `x` hold only these columns. {@link combineShards} finishes the job when all eight are there.
 */
export function projectShards(
  weights: Float32Array,
  rows: number,
  shards: number,
  width: number,
  x: Float64Array,
  partials: Float32Array,
  partialsAt: number,
): void {
  let at = 0;
  for (let row = 0; row < rows; row++) {
    let from = 0;
    for (let shard = 0; shard < shards; shard++) {
      let sum = 0;
      for (const end = from + width; from < end; from++) sum += weights[at++]! * x[from]!;
      partials[partialsAt + shard * rows + row] = sum;
    }
  }
}

/** Root-mean-square norm of `size` values; `x` and `y` may be the same place. */
export function rmsNorm(
  x: Float64Array,
  xAt: number,
  gain: Float32Array,
  gainAt: number,
  size: number,
  y: Float64Array,
  yAt: number,
): void {
  let squares = 0;
  for (let i = 0; i < size; i++) squares += x[xAt + i]! * x[xAt + i]!;
  const scale = 1 / sqrt(squares / size + 1e-5);
  for (let i = 0; i < size; i++) y[yAt + i] = x[xAt + i]! * scale * gain[gainAt + i]!;
}

export function silu(x: number): number {
  return x / (1 + exp(-x));
}

export function softplus(x: number): number {
  return x > 20 ? x : log1p(exp(x));
}

/** The largest entry; the lowest index among equals. */
export function argmax(values: Float32Array, at: number, count: number): number {
  let best = 0;
  for (let i = 1; i < count; i++) if (values[at + i]! > values[at + best]!) best = i;
  return best;
}
