/** The dense feed-forward half of a layer: `down · (silu(gate · x) * (up · x))`. */
import type { Batch } from './batch.js';
import type { ModelConfig } from './config.js';
import { project, projectShards, rmsNorm, shardCount, silu } from './math.js';
import { sizeOf, type Range, type RankSlice } from './rank-slice.js';
import type { Sublayer } from './sublayer.js';
import type { SeededWeights } from './weights.js';

/** The gated block that a dense layer has once and an expert layer many times. */
export class GatedBlock {
  /** Rows of gate, then of up, of this rank's columns. */
  private readonly inputWeights: Float32Array;
  private readonly outputWeights: Float32Array;
  private readonly hidden: Float64Array;
  private readonly local: number;

  /** @param dim - width of the whole block, over all ranks */
  constructor(
    name: string,
    weights: SeededWeights,
    private readonly dModel: number,
    private readonly dim: number,
    private readonly shards: Range,
  ) {
    const input = { from: 0, to: dModel };
    const width = dim / shardCount;
    const columns = { from: shards.from * width, to: shards.to * width };
    const ups = { from: dim + columns.from, to: dim + columns.to };
    this.inputWeights = weights.matrix(`${name}.input`, [columns, ups], dModel, input);
    this.outputWeights = weights.matrix(`${name}.output`, [input], dim, columns);
    this.local = sizeOf(columns);
    this.hidden = new Float64Array(2 * this.local);
  }

  /** @param partialsAt - where shard 0 of this term lies */
  run(x: Float64Array, xAt: number, partials: Float32Array, partialsAt: number): void {
    const { hidden, local, dModel, shards } = this;
    project(this.inputWeights, 2 * local, dModel, x, xAt, hidden, 0);
    for (let i = 0; i < local; i++) hidden[i] = silu(hidden[i]!) * hidden[local + i]!;
    const at = partialsAt + shards.from * dModel;
    projectShards(this.outputWeights, dModel, sizeOf(shards), this.dim / shardCount, hidden, partials, at);
  }
}

export class FeedForward implements Sublayer {
  private readonly gain: Float32Array;
  private readonly block: GatedBlock;

  /** @param layer - its number in the model */
  constructor(
    private readonly config: ModelConfig,
    slice: RankSlice,
    layer: number,
    weights: SeededWeights,
  ) {
    const { dModel, feedForwardDim } = config;
    const name = `layers.${layer}.feedForward`;
    this.gain = weights.normGain(`${name}.norm`, { from: 0, to: dModel });
    this.block = new GatedBlock(name, weights, dModel, feedForwardDim, slice.shards);
  }

  computePartials(batch: Batch): void {
    const { dModel } = this.config;
    batch.terms = 1;
    for (let row = 0; row < batch.rows; row++) {
      rmsNorm(batch.residual, row * dModel, this.gain, 0, dModel, batch.normed, row * dModel);
      this.block.run(batch.normed, row * dModel, batch.partials, row * shardCount * dModel);
      batch.gates[row] = 1;
    }
  }
}
