/**
 * The forward pass of one rank among several: the same steps as `Model.forward`, with messages between them.
 *
 * Tensor ranks hand around the partial sums of their shards after each half of a layer; a stage hands its residual
 * stream to the next; the last stage hands logits back, so that every rank draws the same tokens and all schedulers stay
 * equal. Nothing is added on the way, so no bit depends on who computed what.
 */
import { badInput } from './bad-input.js';
import type { Batch } from './batch.js';
import { exchange } from './collectives.js';
import type { ModelConfig } from './config.js';
import type { EngineMemory } from './engine-memory.js';
import { ExpertExchange } from './expert-exchange.js';
import { Experts } from './experts.js';
import { shardCount } from './math.js';
import { absorb, type Model } from './model.js';
import { bytesIn, numbersOf, receive, type Peers, type Steps } from './peers.js';
import type { RankPlace } from './rank-place.js';
import { rankSlice, singleRank, sizeOf, type Parallelism, type RankSlice } from './rank-slice.js';

/**
 * The forward pass of an engine's rank; null when it is alone.
 *
 * @throws `ARGUMENT_INVALID` when the memory is not that of the rank's place, or lacks a slot that the place needs
 */
export function rankForward(
  config: ModelConfig,
  memory: EngineMemory,
  model: Model,
  ranks: { readonly place: RankPlace; readonly peers: Peers } | undefined,
): RankForward | null {
  const { parallelism } = memory.slice;
  const place = ranks?.place.parallelism ?? singleRank;
  for (const field of Object.keys(singleRank) as (keyof Parallelism)[]) {
    if (parallelism[field] === place[field]) continue;
    throw badInput(`memory.slice.parallelism.${field}`, `${place[field]}, as the rank's place`, parallelism[field]);
  }
  if (ranks === undefined) return null;
  if (ranks.peers.size !== ranks.place.worldSize || ranks.peers.rank !== ranks.place.rank) {
    const expected = `rank ${ranks.place.rank} of ${ranks.place.worldSize}`;
    throw badInput('ranks.peers', expected, `rank ${ranks.peers.rank} of ${ranks.peers.size}`);
  }
  if (ranks.place.sharesExperts && memory.ssm !== null && memory.dummySlot === null) {
    const expected = 'one slot more than requests get, for steps without a request';
    throw badInput('memory.physicalSlots', expected, memory.ssm.physicalSlots);
  }
  return new RankForward(config, model, ranks.place, ranks.peers);
}

export class RankForward {
  private readonly slice: RankSlice;
  private readonly experts: ExpertExchange | null;

  constructor(
    private readonly config: ModelConfig,
    private readonly model: Model,
    private readonly place: RankPlace,
    private readonly peers: Peers,
  ) {
    this.slice = rankSlice(config, place.parallelism);
    const { ep, tp, expertTp } = place.shape;
    // Experts that are cut like everything else need nobody but the tensor ranks.
    this.experts = ep === 1 && expertTp === tp ? null : new ExpertExchange(config, place, peers);
  }

  /** Leaves logits and hidden rows in the batch, on every rank. */
  *run(batch: Batch): Steps<void> {
    const { model, slice } = this;
    if (slice.isFirstStage) model.embed(batch);
    else yield* this.takeResidual(batch);
    for (const sublayer of model.sublayers) {
      if (this.experts !== null && sublayer instanceof Experts) {
        yield* this.experts.run(sublayer, batch);
      } else {
        sublayer.computePartials(batch);
        yield* this.gatherShards(batch);
      }
      absorb(batch, this.config.dModel);
    }
    if (slice.isLastStage) {
      model.readOutRows(batch);
      yield* this.gatherVocabulary(batch);
      this.giveLogits(batch);
    } else {
      this.giveResidual(batch);
      yield* this.takeLogits(batch);
    }
  }

  private giveResidual({ residual, rows }: Batch): void {
    const next = this.place.stageRanks[this.place.stage + 1]!;
    this.peers.send(next, bytesIn(residual.slice(0, rows * this.config.dModel)));
  }

  private *takeResidual({ residual, rows }: Batch): Steps<void> {
    const before = this.place.stageRanks[this.place.stage - 1]!;
    const bytes = yield* receive(this.peers, before);
    residual.set(numbersOf('float64', bytes, before, rows * this.config.dModel));
  }

  /** `[row][term][own shards][dModel]` of each tensor rank into `batch.partials` of all. */
  private *gatherShards({ partials, rows, terms }: Batch): Steps<void> {
    const { dModel } = this.config;
    const whole = shardCount * dModel;
    const part = sizeOf(this.slice.shards) * dModel;
    const give = (): Uint8Array => {
      const own = new Float32Array(rows * terms * part);
      const at = this.slice.shards.from * dModel;
      for (let i = 0; i < rows * terms; i++) {
        own.set(partials.subarray(i * whole + at, i * whole + at + part), i * part);
      }
      return bytesIn(own);
    };
    yield* exchange(this.peers, this.place.tensorRanks, give, (from, bytes) => {
      const theirs = numbersOf('float32', bytes, from, rows * terms * part);
      const at = this.place.tensorRanks.indexOf(from) * part;
      for (let i = 0; i < rows * terms; i++) partials.set(theirs.subarray(i * part, (i + 1) * part), i * whole + at);
    });
  }

  /** `[logit row][own part of the vocabulary]` of each tensor rank into `batch.logits` of all. */
  private *gatherVocabulary({ logits, logitRows }: Batch): Steps<void> {
    const { vocabSize } = this.config;
    const { from: first, to: end } = this.slice.vocabulary;
    const part = end - first;
    const give = (): Uint8Array => {
      const own = new Float32Array(logitRows * part);
      for (let row = 0; row < logitRows; row++) {
        own.set(logits.subarray(row * vocabSize + first, row * vocabSize + end), row * part);
      }
      return bytesIn(own);
    };
    yield* exchange(this.peers, this.place.tensorRanks, give, (from, bytes) => {
      const theirs = numbersOf('float32', bytes, from, logitRows * part);
      const at = this.place.tensorRanks.indexOf(from) * part;
      for (let row = 0; row < logitRows; row++) {
        logits.set(theirs.subarray(row * part, (row + 1) * part), row * vocabSize + at);
      }
    });
  }

  private giveLogits({ logits, hidden, logitRows }: Batch): void {
    const { vocabSize, dModel } = this.config;
    for (const rank of this.place.stageRanks.slice(0, -1)) {
      this.peers.send(rank, bytesIn(logits.slice(0, logitRows * vocabSize)));
      this.peers.send(rank, bytesIn(hidden.slice(0, logitRows * dModel)));
    }
  }

  private *takeLogits({ logits, hidden, logitRows }: Batch): Steps<void> {
    const { vocabSize, dModel } = this.config;
    const last = this.place.stageRanks.at(-1)!;
    logits.set(numbersOf('float32', yield* receive(this.peers, last), last, logitRows * vocabSize));
    hidden.set(numbersOf('float64', yield* receive(this.peers, last), last, logitRows * dModel));
  }
}
