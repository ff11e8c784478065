/**
 * Seeded weights. Every row of every tensor has its own stream of random numbers, named by model seed, tensor and row,
 * so a rank that owns some rows or columns computes exactly the entries that the whole tensor has there.
 */
import type { Range } from './rank-slice.js';

const { imul, sqrt } = Math;

/** A hash of two 32-bit words into one (Murmur3's finalizer over their mix). */
export function mixWords(a: number, b: number): number {
  let word = imul(a ^ imul(b, 0x9e3779b1), 0x85ebca6b);
  word = imul(word ^ (word >>> 13), 0xc2b2ae35) ^ imul(b, 0x27d4eb2f);
  word = imul(word ^ (word >>> 16), 0x7feb352d);
  word = imul(word ^ (word >>> 15), 0x846ca68b);
  return (word ^ (word >>> 16)) >>> 0;
}

/** Uniform in [0, 1), a pure function of both words. */
export function uniformAt(seed: number, index: number): number {
  return mixWords(mixWords(seed, 0x5bd1e995), index) / 2 ** 32;
}

function tensorSeed(seed: number, name: string): number {
  let word = seed;
  for (let i = 0; i < name.length; i++) word = mixWords(word, name.charCodeAt(i));
  return word;
}

export class SeededWeights {
  constructor(private readonly seed: number) {}

  /**
   * Rows and columns of a matrix with entries of variance `gain² / fullColumns`, row-major.
   *
   * @param rows - several ranges are stacked
   */
  matrix(name: string, rows: readonly Range[], fullColumns: number, columns: Range, gain = 1): Float32Array {
    const width = columns.to - columns.from;
    const matrix = new Float32Array(rows.reduce((sum, { from, to }) => sum + to - from, 0) * width);
    const amplitude = gain * sqrt(3 / fullColumns);
    const tensor = tensorSeed(this.seed, name);
    let at = 0;
    for (const { from, to } of rows) {
      for (let row = from; row < to; row++) {
        const stream = mixWords(tensor, row);
        for (let column = columns.from; column < columns.to; column++) {
          matrix[at++] = amplitude * (2 * uniformAt(stream, column) - 1);
        }
      }
    }
    return matrix;
  }

  /** Entries uniform in [low, high). */
  vector(name: string, range: Range, low: number, high: number): Float32Array {
    const tensor = tensorSeed(this.seed, name);
    const vector = new Float32Array(range.to - range.from);
    for (let i = range.from; i < range.to; i++) vector[i - range.from] = low + (high - low) * uniformAt(tensor, i);
    return vector;
  }

  /** Gain of a norm: near one, all different. */
  normGain(name: string, range: Range): Float32Array {
    return this.vector(name, range, 0.8, 1.2);
  }
}
