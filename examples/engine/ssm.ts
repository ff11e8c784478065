/**
 * A Mamba-2 style layer: causal convolution, selective state space, gated norm. Tokens of a request run one after the
 * other through its state in the slot, rounded to float32 after each, so chunks leave no trace.
 *
 * One thing differs from the usual kernel. A kernel that keeps `dConv` columns shifts the oldest out before it looks,
 * so a quarter of the transferred conv state can never matter. Here the convolution also weighs that oldest column
 * (`dConv + 1` taps): every transferred byte takes part in the next token, and a wrong one shows.
 */
import type { SsmDims } from 'state-handoff';
import type { Batch, Piece } from './batch.js';
import type { ModelConfig } from './config.js';
import { project, projectShards, rmsNorm, shardCount, silu, softplus } from './math.js';
import { sizeOf, type RankSlice } from './rank-slice.js';
import type { SsmMemory } from './ssm-memory.js';
import type { Sublayer } from './sublayer.js';
import type { SeededWeights } from './weights.js';

const { exp, floor, fround } = Math;

export class Ssm implements Sublayer {
  private readonly dims: SsmDims;
  private readonly gain: Float32Array;
  /** Rows `[z | x | B | C | dt]` of this rank. */
  private readonly inputWeights: Float32Array;
  private readonly outputWeights: Float32Array;
  /** `[channel][dConv + 1]`, oldest first, and one bias a channel. */
  private readonly taps: Float32Array;
  private readonly convBias: Float32Array;
  private readonly decayRates: Float32Array;
  private readonly stepBias: Float32Array;
  private readonly skip: Float32Array;
  private readonly groupGain: Float32Array;
  private readonly heads: number;
  private readonly groups: number;
  /** Widths of this rank: heads · headdim and groups · dState. */
  private readonly inner: number;
  private readonly groupWidth: number;
  private readonly projected: Float64Array;
  private readonly mixed: Float64Array;

  /**
   * @param layer - its number in the model
   * @param stateLayer - its number among the SSM layers of this rank
   */
  constructor(
    private readonly config: ModelConfig,
    private readonly slice: RankSlice,
    layer: number,
    weights: SeededWeights,
    private readonly memory: SsmMemory,
    private readonly stateLayer: number,
  ) {
    const dims = config.ssm!;
    const { nheads, headdim, dState, ngroups, dConv } = dims;
    const name = `layers.${layer}.ssm`;
    const input = { from: 0, to: config.dModel };
    const inner = nheads * headdim;
    const width = ngroups * dState;
    const inRange = { from: slice.ssmHeads.from * headdim, to: slice.ssmHeads.to * headdim };
    const groupRange = { from: slice.ssmGroups.from * dState, to: slice.ssmGroups.to * dState };
    const shift = (range: { from: number; to: number }, by: number) => ({ from: range.from + by, to: range.to + by });
    /** The bands x, B, C in global channel numbers. */
    const channels = [inRange, shift(groupRange, inner), shift(groupRange, inner + width)];
    const rows = [inRange, ...channels.map((band) => shift(band, inner)), shift(slice.ssmHeads, 2 * inner + 2 * width)];
    this.dims = dims;
    this.gain = weights.normGain(`${name}.norm`, input);
    this.inputWeights = weights.matrix(`${name}.input`, rows, config.dModel, input);
    this.outputWeights = weights.matrix(`${name}.output`, [input], inner, inRange);
    this.taps = weights.matrix(`${name}.taps`, channels, dConv + 1, { from: 0, to: dConv + 1 }, 0.3);
    // No tap is near zero, or its column would not matter; none is large, or the activation would swallow the others.
    for (let i = 0; i < this.taps.length; i++) this.taps[i]! += this.taps[i]! < 0 ? -0.2 : 0.2;
    this.convBias = weights.matrix(`${name}.convBias`, channels, 1, { from: 0, to: 1 }, 0.1);
    this.decayRates = weights.vector(`${name}.decayRates`, slice.ssmHeads, 0.05, 0.5);
    this.stepBias = weights.vector(`${name}.stepBias`, slice.ssmHeads, -1, 0);
    this.skip = weights.vector(`${name}.skip`, slice.ssmHeads, 0.5, 1.5);
    this.groupGain = weights.normGain(`${name}.groupNorm`, inRange);
    this.heads = sizeOf(slice.ssmHeads);
    this.groups = sizeOf(slice.ssmGroups);
    this.inner = this.heads * headdim;
    this.groupWidth = this.groups * dState;
    this.projected = new Float64Array(2 * this.inner + 2 * this.groupWidth + this.heads);
    this.mixed = new Float64Array(this.inner);
  }

  computePartials(batch: Batch): void {
    const { dModel } = this.config;
    const shards = sizeOf(this.slice.shards);
    const width = (this.dims.nheads * this.dims.headdim) / shardCount;
    batch.terms = 1;
    let row = 0;
    for (const piece of batch.pieces) {
      for (let i = 0; i < piece.count; i++, row++) {
        rmsNorm(batch.residual, row * dModel, this.gain, 0, dModel, batch.normed, row * dModel);
        project(this.inputWeights, this.projected.length, dModel, batch.normed, row * dModel, this.projected, 0);
        this.convolve(piece.slot);
        this.scan(piece.slot);
        this.gateAndNorm();
        const partialsAt = (row * shardCount + this.slice.shards.from) * dModel;
        projectShards(this.outputWeights, dModel, shards, width, this.mixed, batch.partials, partialsAt);
        batch.gates[row] = 1;
        this.keepSnapshot(piece, i);
      }
    }
  }

  /** `[x | B | C]` of this token through the convolution, in place; the state moves on by one column. */
  private convolve(slot: number): void {
    const { projected, taps } = this;
    const { numbers, base, slotStride, rowStride, dimStride, rows, dims } = this.memory.conv[this.stateLayer]!;
    let tap = 0;
    for (let channel = 0; channel < rows; channel++) {
      const input = projected[this.inner + channel]!;
      let at = base + slot * slotStride + channel * rowStride;
      let sum = this.convBias[channel]!;
      for (let dim = 0; dim < dims; dim++, at += dimStride) {
        sum += taps[tap++]! * numbers[at]!;
        numbers[at] = dim + 1 < dims ? numbers[at + dimStride]! : input;
      }
      sum += taps[tap++]! * input;
      projected[this.inner + channel] = silu(sum);
    }
  }

  /** `h = decay · h + step · x ⊗ B` and `y = C · h + skip · x` for every head. */
  private scan(slot: number): void {
    const { projected, mixed } = this;
    const { headdim, dState } = this.dims;
    const { numbers, base, slotStride, rowStride, dimStride } = this.memory.recurrent[this.stateLayer]!;
    const inputs = this.inner;
    const keys = 2 * this.inner;
    const queries = keys + this.groupWidth;
    const steps = queries + this.groupWidth;
    for (let head = 0; head < this.heads; head++) {
      const group = floor((head * this.groups) / this.heads) * dState;
      const step = softplus(projected[steps + head]! + this.stepBias[head]!);
      const decay = exp(-step * this.decayRates[head]!);
      let at = base + slot * slotStride + head * rowStride;
      for (let i = head * headdim; i < (head + 1) * headdim; i++) {
        const x = projected[inputs + i]!;
        let y = this.skip[head]! * x;
        for (let n = 0; n < dState; n++, at += dimStride) {
          const state = fround(decay * numbers[at]! + step * x * projected[keys + group + n]!);
          numbers[at] = state;
          y += state * projected[queries + group + n]!;
        }
        mixed[i] = y;
      }
    }
  }

  /** `y · silu(z)`, then a norm over each group alone, which is why tensor parallelism may split groups. */
  private gateAndNorm(): void {
    const { mixed, projected } = this;
    for (let i = 0; i < this.inner; i++) mixed[i] = mixed[i]! * silu(projected[i]!);
    const size = this.inner / this.groups;
    for (let at = 0; at < this.inner; at += size) rmsNorm(mixed, at, this.groupGain, at, size, mixed, at);
  }

  private keepSnapshot(piece: Piece, index: number): void {
    if (piece.snapshots === null) return;
    const { memory, stateLayer } = this;
    const at = index * memory.slotNumbers + memory.layerOffset(stateLayer);
    memory.readLayer(stateLayer, piece.slot, piece.snapshots, at);
  }
}
