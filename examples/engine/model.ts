/**
 * The forward pass over a batch: embedding, layers, read-out.
 *
 * One rank runs {@link Model.forward}. Several ranks run the same steps with messages between them (`rank-forward.ts`).
 * No bit of the result depends on how many there are.
 */
import type { Batch } from './batch.js';
import { Attention } from './attention.js';
import { checkModel, type ModelConfig } from './config.js';
import { Experts } from './experts.js';
import { FeedForward } from './feed-forward.js';
import type { KvMemory } from './kv-memory.js';
import { combineShards, project, rmsNorm, shardCount } from './math.js';
import { Proposer } from './proposer.js';
import { sizeOf, type Range, type RankSlice } from './rank-slice.js';
import { Ssm } from './ssm.js';
import type { SsmMemory } from './ssm-memory.js';
import type { Sublayer } from './sublayer.js';
import { SeededWeights } from './weights.js';

/** How much of the stream a sublayer adds; small, so that a token's own embedding stays audible to the last layer. */
const sublayerGain = 0.5;
const unprintableBias = -8;

export class Model {
  /** The halves of this rank's layers, in order. */
  readonly sublayers: readonly Sublayer[];
  readonly proposer: Proposer;
  private readonly embedding: Float64Array;
  private readonly readOutGain: Float32Array;
  /** Of this rank's part of the vocabulary. */
  private readonly readOutWeights: Float32Array;
  /** Of all of it: the proposing head guesses on every rank alike, and asks no other rank. */
  private readonly proposingWeights: Float32Array;
  /** Added to each logit. Random weights speak in random bytes; this keeps to those a terminal can show. */
  private readonly readOutBias: Float32Array;
  private readonly normed: Float64Array;

  /** @throws `ARGUMENT_INVALID` naming the field of the configuration */
  constructor(
    readonly config: ModelConfig,
    private readonly slice: RankSlice,
    kv: KvMemory,
    ssm: SsmMemory | null,
  ) {
    checkModel(config);
    const { dModel, vocabSize } = config;
    const weights = new SeededWeights(config.seed);
    const input = { from: 0, to: dModel };
    const whole = { from: 0, to: vocabSize };
    const sublayers: Sublayer[] = [];
    let attentionLayer = 0;
    let ssmLayer = 0;
    for (let layer = slice.layers.from; layer < slice.layers.to; layer++) {
      const { mixer, feedForward } = config.layers[layer]!;
      sublayers.push(
        mixer === 'attention'
          ? new Attention(config, slice, layer, weights, kv.layers[attentionLayer++]!, kv.shape.blockSize)
          : new Ssm(config, slice, layer, weights, ssm!, ssmLayer++),
        feedForward === 'dense'
          ? new FeedForward(config, slice, layer, weights)
          : new Experts(config, slice, layer, weights),
      );
    }
    this.sublayers = sublayers;
    this.embedding = new Float64Array(weights.matrix('embedding', [whole], dModel, input, Math.sqrt(dModel)));
    this.readOutGain = weights.normGain('readOut.norm', input);
    this.readOutWeights = weights.matrix('readOut', [slice.vocabulary], dModel, input);
    const suffices = sizeOf(slice.vocabulary) === vocabSize || config.numSpeculativeTokens === 0;
    this.proposingWeights = suffices ? this.readOutWeights : weights.matrix('readOut', [whole], dModel, input);
    this.readOutBias = Float32Array.from({ length: vocabSize }, (_, token) =>
      isPrintable(token) ? 0 : unprintableBias,
    );
    this.normed = new Float64Array(dModel);
    this.proposer = new Proposer(config, weights, this.embedding, (hidden, at, logits, logitsAt) =>
      this.readOut(this.proposingWeights, whole, hidden, at, logits, logitsAt),
    );
  }

  /** Runs the batch and leaves logits and hidden rows in it; writes KV and SSM state of every token on the way. */
  forward(batch: Batch): void {
    this.embed(batch);
    for (const sublayer of this.sublayers) {
      sublayer.computePartials(batch);
      absorb(batch, this.config.dModel);
    }
    this.readOutRows(batch);
  }

  /** First stage. */
  embed(batch: Batch): void {
    const { dModel } = this.config;
    for (let row = 0; row < batch.rows; row++) {
      const token = batch.tokens[row]!;
      batch.residual.set(this.embedding.subarray(token * dModel, (token + 1) * dModel), row * dModel);
    }
  }

  /** Last stage. Fills this rank's part of the vocabulary. */
  readOutRows(batch: Batch): void {
    const { dModel, vocabSize } = this.config;
    for (let row = 0; row < batch.rows; row++) {
      const logitRow = batch.logitRowOf[row]!;
      if (logitRow < 0) continue;
      batch.hidden.set(batch.residual.subarray(row * dModel, (row + 1) * dModel), logitRow * dModel);
      const { readOutWeights, slice } = this;
      this.readOut(readOutWeights, slice.vocabulary, batch.residual, row * dModel, batch.logits, logitRow * vocabSize);
    }
  }

  private readOut(
    weights: Float32Array,
    { from, to }: Range,
    hidden: Float64Array,
    at: number,
    logits: Float32Array,
    logitsAt: number,
  ): void {
    const { dModel } = this.config;
    rmsNorm(hidden, at, this.readOutGain, 0, dModel, this.normed, 0);
    project(weights, to - from, dModel, this.normed, 0, logits, logitsAt + from);
    for (let token = from; token < to; token++) logits[logitsAt + token]! += this.readOutBias[token]!;
  }
}

function isPrintable(token: number): boolean {
  return token === 10 || (token >= 32 && token < 127);
}

/** Adds a finished sublayer to the residual stream: shards by the fixed tree, then terms in order. */
export function absorb(batch: Batch, dModel: number): void {
  const { residual, partials, gates, terms } = batch;
  for (let row = 0; row < batch.rows; row++) {
    for (let i = 0; i < dModel; i++) {
      let sum = 0;
      for (let term = 0; term < terms; term++) {
        const output = combineShards(partials, (row * terms + term) * shardCount * dModel + i, dModel);
        sum += gates[row * terms + term]! * output;
      }
      residual[row * dModel + i]! += sublayerGain * sum;
    }
  }
}
