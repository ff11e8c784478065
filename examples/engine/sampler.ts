/**
 * From logits to a token. A draw depends on the request's seed and the token's position and on nothing else, so it is
 * the same on whichever engine, in whichever batch, and with or without proposals.
 */
import { argmax } from './math.js';
import type { Sampling } from './sampling.js';
import { uniformAt } from './weights.js';

const { exp, fround, log, min } = Math;

export class Sampler {
  private readonly order: Int32Array;
  private readonly weights: Float64Array;

  constructor(private readonly vocabSize: number) {
    this.order = new Int32Array(vocabSize);
    this.weights = new Float64Array(vocabSize);
  }

  /** @param position - of the token that is drawn, in its sequence */
  sample(logits: Float32Array, at: number, sampling: Sampling, position: number): number {
    if (sampling.temperature === 0 || sampling.topK === 1) return argmax(logits, at, this.vocabSize);
    const { order, weights } = this;
    const { temperature, topK, topP } = sampling;
    const peak = logits[at + argmax(logits, at, this.vocabSize)]!;
    for (let token = 0; token < this.vocabSize; token++) {
      order[token] = token;
      weights[token] = exp((logits[at + token]! - peak) / temperature);
    }
    let count = this.vocabSize;
    if (topK > 0 || topP > 0) {
      // Most likely first, the lower token among equals.
      order.sort((a, b) => weights[b]! - weights[a]! || a - b);
      if (topK > 0) count = min(count, topK);
      if (topP > 0) count = this.nucleus(count, topP);
    }
    const draw = uniformAt(sampling.seed, position) * this.total(count);
    let sum = 0;
    for (let i = 0; i < count; i++) {
      sum += weights[order[i]!]!;
      if (draw < sum) return order[i]!;
    }
    return order[count - 1]!;
  }

  /** Natural logarithm of the model's probability of `token`, before temperature and filters. */
  logProb(logits: Float32Array, at: number, token: number): number {
    const peak = logits[at + argmax(logits, at, this.vocabSize)]!;
    let total = 0;
    for (let i = 0; i < this.vocabSize; i++) total += exp(logits[at + i]! - peak);
    return fround(logits[at + token]! - peak - log(total));
  }

  private total(count: number): number {
    let total = 0;
    for (let i = 0; i < count; i++) total += this.weights[this.order[i]!]!;
    return total;
  }

  /** How many of the likeliest tokens it takes to reach a share of `topP`. */
  private nucleus(count: number, topP: number): number {
    const wanted = topP * this.total(count);
    let sum = 0;
    for (let i = 0; i < count; i++) {
      sum += this.weights[this.order[i]!]!;
      if (sum >= wanted) return i + 1;
    }
    return count;
  }
}
