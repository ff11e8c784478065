/**
 * Grouped-query attention with rotary positions over the paged KV pool.
 *
 * Keys are visited in position order in tiles of a fixed size that start at position 0, with a running softmax in
 * float64. Neither block size, nor chunks, nor which blocks came from a cache changes the order of a single addition.
 */
import type { Batch } from './batch.js';
import type { ModelConfig } from './config.js';
import type { KvLayerAddress } from './kv-memory.js';
import { project, projectShards, rmsNorm, shardCount } from './math.js';
import { sizeOf, type RankSlice } from './rank-slice.js';
import type { Sublayer } from './sublayer.js';
import type { SeededWeights } from './weights.js';

const { exp, floor, min, sqrt } = Math;

/** Keys that share one step of the running softmax. */
const tileTokens = 16;

export class Attention implements Sublayer {
  private readonly gain: Float32Array;
  /** Each head's output is normed alone: an average over many keys stays as loud as one key. */
  private readonly headGain: Float32Array;
  /** Rows of Q, K and V of this rank's heads. */
  private readonly inputWeights: Float32Array;
  /** Columns of this rank's shards. */
  private readonly outputWeights: Float32Array;
  private readonly heads: number;
  private readonly kvHeads: number;
  /** Local KV head of each local head. */
  private readonly kvHeadOf: Int32Array;
  private readonly projected: Float64Array;
  private readonly mixed: Float64Array;
  private readonly offsets = new Int32Array(tileTokens);
  private readonly scores = new Float64Array(tileTokens);
  private readonly peaks: Float64Array;
  private readonly totals: Float64Array;
  private readonly sums: Float64Array;

  /** @param layer - its number in the model */
  constructor(
    private readonly config: ModelConfig,
    private readonly slice: RankSlice,
    layer: number,
    weights: SeededWeights,
    private readonly kv: KvLayerAddress,
    private readonly blockSize: number,
  ) {
    const { dModel, attention } = config;
    const { heads, kvHeads, headDim } = attention;
    const name = `layers.${layer}.attention`;
    const input = { from: 0, to: dModel };
    const rowsOf = (first: number, range: { from: number; to: number }) => ({
      from: (first + range.from) * headDim,
      to: (first + range.to) * headDim,
    });
    this.gain = weights.normGain(`${name}.norm`, input);
    const rows = [rowsOf(0, slice.heads), rowsOf(heads, slice.kvHeads), rowsOf(heads + kvHeads, slice.kvHeads)];
    this.inputWeights = weights.matrix(`${name}.input`, rows, dModel, input);
    const columns = { from: slice.heads.from * headDim, to: slice.heads.to * headDim };
    this.outputWeights = weights.matrix(`${name}.output`, [input], heads * headDim, columns);
    this.headGain = weights.normGain(`${name}.headNorm`, columns);
    this.heads = sizeOf(slice.heads);
    this.kvHeads = sizeOf(slice.kvHeads);
    this.kvHeadOf = Int32Array.from(
      { length: this.heads },
      (_, head) => floor(((slice.heads.from + head) * kvHeads) / heads) - slice.kvHeads.from,
    );
    this.projected = new Float64Array((this.heads + 2 * this.kvHeads) * headDim);
    this.mixed = new Float64Array(this.heads * headDim);
    this.peaks = new Float64Array(this.heads);
    this.totals = new Float64Array(this.heads);
    this.sums = new Float64Array(this.heads * headDim);
  }

  computePartials(batch: Batch): void {
    const { dModel, attention } = this.config;
    const { headDim, heads } = attention;
    const rows = (this.heads + 2 * this.kvHeads) * headDim;
    const shards = sizeOf(this.slice.shards);
    batch.terms = 1;
    for (let row = 0; row < batch.rows; row++) {
      rmsNorm(batch.residual, row * dModel, this.gain, 0, dModel, batch.normed, row * dModel);
      project(this.inputWeights, rows, dModel, batch.normed, row * dModel, this.projected, 0);
      const { blocks } = batch.pieces[batch.pieceOf[row]!]!;
      const position = batch.positions[row]!;
      this.rotate(batch, row);
      this.store(blocks, position);
      this.attend(blocks, position);
      const partialsAt = (row * shardCount + this.slice.shards.from) * dModel;
      const width = (heads * headDim) / shardCount;
      projectShards(this.outputWeights, dModel, shards, width, this.mixed, batch.partials, partialsAt);
      batch.gates[row] = 1;
    }
  }

  /** Turns the pairs `(i, i + headDim / 2)` of queries and keys by the row's position. */
  private rotate(batch: Batch, row: number): void {
    const { projected } = this;
    const { headDim } = this.config.attention;
    const pairs = headDim / 2;
    const turned = (this.heads + this.kvHeads) * headDim;
    for (let head = 0; head < turned; head += headDim) {
      for (let pair = 0; pair < pairs; pair++) {
        const cosine = batch.cosines[row * pairs + pair]!;
        const sine = batch.sines[row * pairs + pair]!;
        const a = projected[head + pair]!;
        const b = projected[head + pair + pairs]!;
        projected[head + pair] = a * cosine - b * sine;
        projected[head + pair + pairs] = a * sine + b * cosine;
      }
    }
  }

  private keyOffset(blocks: Int32Array, position: number): number {
    const index = floor(position / this.blockSize);
    return blocks[index]! * this.kv.blockStride + (position - index * this.blockSize) * this.kv.tokenStride;
  }

  private store(blocks: Int32Array, position: number): void {
    const { kv, projected } = this;
    const { headDim } = this.config.attention;
    const offset = this.keyOffset(blocks, position);
    for (let head = 0; head < this.kvHeads; head++) {
      const key = (this.heads + head) * headDim;
      const value = key + this.kvHeads * headDim;
      let to = offset + head * kv.headStride;
      for (let dim = 0; dim < headDim; dim++, to += kv.dimStride) {
        kv.numbers[kv.keys + to] = projected[key + dim]!;
        kv.numbers[kv.values + to] = projected[value + dim]!;
      }
    }
  }

  private attend(blocks: Int32Array, position: number): void {
    const { peaks, totals, sums, offsets } = this;
    const { headDim } = this.config.attention;
    peaks.fill(-Infinity);
    totals.fill(0);
    sums.fill(0);
    for (let from = 0; from <= position; from += tileTokens) {
      const count = min(tileTokens, position + 1 - from);
      for (let i = 0; i < count; i++) offsets[i] = this.keyOffset(blocks, from + i);
      for (let head = 0; head < this.heads; head++) this.attendTile(head, count);
    }
    for (let head = 0; head < this.heads; head++) {
      const at = head * headDim;
      for (let dim = at; dim < at + headDim; dim++) this.mixed[dim] = sums[dim]! / totals[head]!;
      rmsNorm(this.mixed, at, this.headGain, at, headDim, this.mixed, at);
    }
  }

  /** One step of the running softmax of one head over the `count` keys at `offsets`. */
  private attendTile(head: number, count: number): void {
    const { kv, projected, scores, offsets, sums } = this;
    const { numbers, dimStride } = kv;
    const { headDim } = this.config.attention;
    const scale = 1 / sqrt(headDim);
    const query = head * headDim;
    const headOffset = this.kvHeadOf[head]! * kv.headStride;
    const before = this.peaks[head]!;
    let peak = before;
    for (let i = 0; i < count; i++) {
      let key = kv.keys + offsets[i]! + headOffset;
      let score = 0;
      for (let dim = 0; dim < headDim; dim++, key += dimStride) score += projected[query + dim]! * numbers[key]!;
      scores[i] = score * scale;
      if (!(scores[i]! <= peak)) peak = scores[i]!;
    }
    const fade = exp(before - peak);
    let total = this.totals[head]! * fade;
    for (let dim = query; dim < query + headDim; dim++) sums[dim]! *= fade;
    for (let i = 0; i < count; i++) {
      const weight = exp(scores[i]! - peak);
      total += weight;
      let value = kv.values + offsets[i]! + headOffset;
      for (let dim = query; dim < query + headDim; dim++, value += dimStride) sums[dim]! += weight * numbers[value]!;
    }
    this.totals[head] = total;
    this.peaks[head] = peak;
  }
}
