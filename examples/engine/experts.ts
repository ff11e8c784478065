/**
 * A mixture of experts: each token visits a few, and their outputs are added in the order of their ids, never in the
 * order of their scores or of the ranks that own them.
 */
import type { Batch } from './batch.js';
import type { ModelConfig } from './config.js';
import { GatedBlock } from './feed-forward.js';
import { project, rmsNorm, shardCount } from './math.js';
import type { RankSlice } from './rank-slice.js';
import type { Sublayer } from './sublayer.js';
import type { SeededWeights } from './weights.js';

const { exp } = Math;

export class Experts implements Sublayer {
  private readonly gain: Float32Array;
  private readonly router: Float32Array;
  /** By expert id; undefined where another rank owns it. */
  private readonly blocks: readonly (GatedBlock | undefined)[];
  private readonly scores: Float32Array;
  private readonly chosen: Int32Array;

  /** @param layer - its number in the model */
  constructor(
    private readonly config: ModelConfig,
    slice: RankSlice,
    layer: number,
    weights: SeededWeights,
  ) {
    const { dModel } = config;
    const { count, perToken, dim } = config.experts!;
    const name = `layers.${layer}.experts`;
    const input = { from: 0, to: dModel };
    this.gain = weights.normGain(`${name}.norm`, input);
    this.router = weights.matrix(`${name}.router`, [{ from: 0, to: count }], dModel, input);
    this.blocks = Array.from({ length: count }, (_, id) => {
      if (id < slice.experts.from || id >= slice.experts.to) return undefined;
      return new GatedBlock(`${name}.${id}`, weights, dModel, dim, slice.expertShards);
    });
    this.scores = new Float32Array(count);
    this.chosen = new Int32Array(perToken);
  }

  computePartials(batch: Batch): void {
    const { dModel } = this.config;
    this.route(batch);
    for (let at = 0; at < batch.rows * batch.terms; at++) {
      const row = Math.floor(at / batch.terms);
      this.run(batch.chosen[at]!, batch.normed, row * dModel, batch.partials, at * shardCount * dModel);
    }
  }

  /** Norms the rows and chooses the experts of each: `batch.normed`, `terms`, `gates` and `chosen`. */
  route(batch: Batch): void {
    const { dModel } = this.config;
    const terms = this.chosen.length;
    batch.terms = terms;
    for (let row = 0; row < batch.rows; row++) {
      rmsNorm(batch.residual, row * dModel, this.gain, 0, dModel, batch.normed, row * dModel);
      project(this.router, this.scores.length, dModel, batch.normed, row * dModel, this.scores, 0);
      this.choose(batch.gates, row * terms);
      batch.chosen.set(this.chosen, row * terms);
    }
  }

  /** Whether this rank holds shards of an expert. */
  has(expert: number): boolean {
    return this.blocks[expert] !== undefined;
  }

  /** What this rank's shards of one expert make of `x`; nothing when the expert lives elsewhere. */
  run(expert: number, x: Float64Array, xAt: number, partials: Float32Array, partialsAt: number): void {
    this.blocks[expert]?.run(x, xAt, partials, partialsAt);
  }

  /** The best-scored experts in id order (the lower id among equals), and their softmax as gates. */
  private choose(gates: Float64Array, gatesAt: number): void {
    const { scores, chosen } = this;
    const taken = chosen.length;
    for (let term = 0; term < taken; term++) {
      let best = -1;
      for (let id = 0; id < scores.length; id++) {
        if (chosen.indexOf(id) >= 0 && chosen.indexOf(id) < term) continue;
        if (best < 0 || scores[id]! > scores[best]!) best = id;
      }
      chosen[term] = best;
    }
    const peak = scores[chosen[0]!]!;
    chosen.sort();
    let total = 0;
    for (let term = 0; term < taken; term++) total += exp(scores[chosen[term]!]! - peak);
    for (let term = 0; term < taken; term++) gates[gatesAt + term] = exp(scores[chosen[term]!]! - peak) / total;
  }
}
