/**
 * An expert layer whose experts live on several ranks: each token travels to the ranks that hold its experts, and what
 * they make of it travels back.
 *
 * The tensor ranks of an instance share the work of asking: row `r` is asked for by tensor rank `r mod tp`, which then
 * hands the answers to the others. An instance without work takes part all the same, since others may want its experts.
 */
import { badInput } from './bad-input.js';
import type { Batch } from './batch.js';
import { exchange } from './collectives.js';
import type { ModelConfig } from './config.js';
import type { Experts } from './experts.js';
import { shardCount } from './math.js';
import { bytesIn, numbersOf, type Peers, type Steps } from './peers.js';
import type { RankPlace } from './rank-place.js';

/** Tokens that one rank sends to another: which expert, and what goes into it. */
interface Asked {
  readonly experts: number[];
  /** Rows of `batch.partials` that the answers belong to. */
  readonly places: number[];
}

export class ExpertExchange {
  private readonly scratch: Float32Array;
  /** Numbers of one answer: the shards of one rank. */
  private readonly answerSize: number;

  constructor(
    private readonly config: ModelConfig,
    private readonly place: RankPlace,
    private readonly peers: Peers,
  ) {
    this.scratch = new Float32Array(shardCount * config.dModel);
    this.answerSize = (shardCount / place.shape.expertTp) * config.dModel;
  }

  /** Leaves all shards of all terms in `batch.partials`, as `computePartials` and the tensor ranks' exchange would. */
  *run(experts: Experts, batch: Batch): Steps<void> {
    const { peers, place } = this;
    experts.route(batch);
    const asked = this.sortByOwner(batch);
    const questions = new Map<number, Float64Array>();
    const named = new Map<number, Int32Array>();
    yield* exchange(
      peers,
      place.expertRanks,
      (to) => bytesIn(Int32Array.from(asked.get(to)!.experts)),
      (from, bytes) => named.set(from, numbersOf('int32', bytes, from)),
    );
    yield* exchange(
      peers,
      place.expertRanks,
      (to) => bytesIn(this.inputsOf(batch, asked.get(to)!)),
      (from, bytes) =>
        questions.set(from, numbersOf('float64', bytes, from, named.get(from)!.length * this.config.dModel)),
    );
    yield* exchange(
      peers,
      place.expertRanks,
      (to) => bytesIn(this.answer(experts, named.get(to)!, questions.get(to)!)),
      (from, bytes) => {
        const theirs = asked.get(from)!;
        const count = theirs.places.length * this.answerSize;
        this.keep(batch, from, theirs, numbersOf('float32', bytes, from, count));
      },
    );
    const own = asked.get(peers.rank)!;
    const answers = this.answer(experts, Int32Array.from(own.experts), this.inputsOf(batch, own));
    this.keep(batch, peers.rank, own, answers);
    yield* this.shareRows(batch);
  }

  private sortByOwner(batch: Batch): ReadonlyMap<number, Asked> {
    const { place } = this;
    const asked = new Map<number, Asked>(place.expertRanks.map((rank) => [rank, { experts: [], places: [] }]));
    for (let row = place.tensorRank; row < batch.rows; row += place.shape.tp) {
      for (let term = 0; term < batch.terms; term++) {
        const expert = batch.chosen[row * batch.terms + term]!;
        for (const owner of place.expertOwners(expert, this.config.experts!.count)) {
          asked.get(owner)!.experts.push(expert);
          asked.get(owner)!.places.push(row * batch.terms + term);
        }
      }
    }
    return asked;
  }

  private inputsOf({ normed, terms }: Batch, { places }: Asked): Float64Array {
    const { dModel } = this.config;
    const inputs = new Float64Array(places.length * dModel);
    for (const [index, at] of places.entries()) {
      const row = Math.floor(at / terms);
      inputs.set(normed.subarray(row * dModel, (row + 1) * dModel), index * dModel);
    }
    return inputs;
  }

  private answer(experts: Experts, named: Int32Array, inputs: Float64Array): Float32Array {
    const { scratch, answerSize, place } = this;
    const first = place.parallelism.expertTpRank * answerSize;
    const answers = new Float32Array(named.length * answerSize);
    for (const [index, expert] of named.entries()) {
      if (!experts.has(expert)) throw badInput('expert', 'one that this rank holds', expert, 'DIVERGENCE');
      experts.run(expert, inputs, index * this.config.dModel, scratch, 0);
      answers.set(scratch.subarray(first, first + answerSize), index * answerSize);
    }
    return answers;
  }

  private keep({ partials }: Batch, from: number, { places }: Asked, answers: Float32Array): void {
    const { answerSize, place } = this;
    const shards = (place.expertRanks.indexOf(from) % place.shape.expertTp) * answerSize;
    for (const [index, at] of places.entries()) {
      const answer = answers.subarray(index * answerSize, (index + 1) * answerSize);
      partials.set(answer, at * shardCount * this.config.dModel + shards);
    }
  }

  /** From the tensor rank that asked for a row to the others. */
  private *shareRows({ partials, rows, terms }: Batch): Steps<void> {
    const { place } = this;
    const { tp } = place.shape;
    const rowSize = terms * shardCount * this.config.dModel;
    const rowsOf = (tensorRank: number): number => Math.max(0, Math.ceil((rows - tensorRank) / tp));
    const give = (): Uint8Array => {
      const own = new Float32Array(rowsOf(place.tensorRank) * rowSize);
      for (let i = 0; i < rowsOf(place.tensorRank); i++) {
        const row = place.tensorRank + i * tp;
        own.set(partials.subarray(row * rowSize, (row + 1) * rowSize), i * rowSize);
      }
      return bytesIn(own);
    };
    yield* exchange(this.peers, place.tensorRanks, give, (from, bytes) => {
      const tensorRank = place.tensorRanks.indexOf(from);
      const theirs = numbersOf('float32', bytes, from, rowsOf(tensorRank) * rowSize);
      for (let i = 0; i < rowsOf(tensorRank); i++) {
        partials.set(theirs.subarray(i * rowSize, (i + 1) * rowSize), (tensorRank + i * tp) * rowSize);
      }
    });
  }
}
