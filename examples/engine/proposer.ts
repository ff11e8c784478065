/**
 * The multi-token-prediction head: guesses the tokens after the next one from the residual stream and the token just
 * sampled. It keeps no state of its own, so proposals are all of it that travels in a handoff.
 *
 * A wrong guess costs time and nothing else: the model itself accepts or refuses every proposal.
 */
import type { ModelConfig } from './config.js';
import { argmax, project, rmsNorm } from './math.js';
import type { SeededWeights } from './weights.js';

export class Proposer {
  private readonly mixWeights: Float32Array;
  private readonly tokenGain: Float32Array;
  private readonly hiddenGain: Float32Array;
  private readonly joined: Float64Array;
  private readonly hidden: Float64Array;
  private readonly logits: Float32Array;

  constructor(
    private readonly config: ModelConfig,
    weights: SeededWeights,
    private readonly embedding: Float64Array,
    private readonly readOut: (hidden: Float64Array, at: number, logits: Float32Array, logitsAt: number) => void,
  ) {
    const { dModel, vocabSize } = config;
    const input = { from: 0, to: dModel };
    this.mixWeights = weights.matrix('proposer.mix', [input], 2 * dModel, { from: 0, to: 2 * dModel }, 0.25);
    this.tokenGain = weights.normGain('proposer.tokenNorm', input);
    this.hiddenGain = weights.normGain('proposer.hiddenNorm', input);
    this.joined = new Float64Array(2 * dModel);
    this.hidden = new Float64Array(dModel);
    this.logits = new Float32Array(vocabSize);
  }

  /**
   * Writes `count` guesses of what follows `token`.
   *
   * @param hidden - residual stream at the position whose logits `token` was sampled from
   */
  propose(
    hidden: Float64Array,
    hiddenAt: number,
    token: number,
    count: number,
    into: Int32Array,
    intoAt: number,
  ): void {
    const { dModel, vocabSize } = this.config;
    let last = token;
    for (let i = 0; i < count; i++) {
      rmsNorm(this.embedding, last * dModel, this.tokenGain, 0, dModel, this.joined, 0);
      if (i === 0) rmsNorm(hidden, hiddenAt, this.hiddenGain, 0, dModel, this.joined, dModel);
      else rmsNorm(this.hidden, 0, this.hiddenGain, 0, dModel, this.joined, dModel);
      project(this.mixWeights, dModel, 2 * dModel, this.joined, 0, this.hidden, 0);
      for (let j = 0; j < dModel; j++) this.hidden[j] = this.hidden[j]! + this.embedding[last * dModel + j]!;
      this.readOut(this.hidden, 0, this.logits, 0);
      last = argmax(this.logits, 0, vocabSize);
      into[intoAt + i] = last;
    }
  }
}
