/**
 * Who is who among the ranks of an engine: which ranks share a stage, which stage comes before and after, and which
 * ranks hold which experts.
 *
 * A world is `dp` instances, one after the other; an instance is `pp` stages of `tp` tensor ranks. Each stage's experts
 * are spread over the stage's ranks of all instances: `expertTp` neighbours hold the shards of one set of experts, `ep`
 * such sets are all experts, and what is left over repeats them.
 */
import { badInput, requireInteger } from './bad-input.js';
import type { Parallelism } from './rank-slice.js';

export interface RankShape {
  readonly tp: number;
  readonly pp: number;
  readonly ep: number;
  readonly expertTp: number;
  readonly dp: number;
  /** Layers of each of the `pp` stages, none allowed; left out or null: as even as can be. */
  readonly stages?: readonly number[] | null;
}

/** Fills in what is left out: one of everything, and experts cut like the rest. @throws `ARGUMENT_INVALID` */
export function rankShape({
  tp = 1,
  ep = 1,
  dp = 1,
  expertTp = tp,
  stages = null,
  ...rest
}: Partial<RankShape>): RankShape {
  const pp = rest.pp ?? stages?.length ?? 1;
  for (const [name, size] of Object.entries({ tp, pp, ep, dp, expertTp })) requireInteger(name, size, 1, 1024);
  if ((tp * dp) % (expertTp * ep) !== 0) {
    throw badInput('expertTp * ep', `a divisor of the ${tp * dp} ranks of a stage over all instances`, expertTp * ep);
  }
  return { tp, pp, ep, expertTp, dp, stages };
}

const upTo = (count: number): number[] => Array.from({ length: count }, (_, index) => index);

export class RankPlace {
  readonly instance: number;
  readonly stage: number;
  readonly tensorRank: number;
  readonly parallelism: Parallelism;
  /** Ranks of this instance, stage by stage; the first one leads. */
  readonly instanceRanks: readonly number[];
  /** Of this stage, this one included. */
  readonly tensorRanks: readonly number[];
  /** The ranks with this tensor rank, by stage. */
  readonly stageRanks: readonly number[];
  /** The first rank of each instance. */
  readonly leaders: readonly number[];
  /** Ranks that hold this stage's experts for this rank: set by set, within a set by shard. */
  readonly expertRanks: readonly number[];

  constructor(
    readonly shape: RankShape,
    readonly rank: number,
  ) {
    const { tp, pp, ep, expertTp, dp } = shape;
    const each = tp * pp;
    requireInteger('rank', rank, 0, dp * each - 1);
    this.instance = Math.floor(rank / each);
    this.stage = Math.floor((rank % each) / tp);
    this.tensorRank = rank % tp;
    const first = this.instance * each;
    this.instanceRanks = upTo(each).map((index) => first + index);
    this.tensorRanks = upTo(tp).map((index) => first + this.stage * tp + index);
    this.stageRanks = upTo(pp).map((stage) => first + stage * tp + this.tensorRank);
    this.leaders = upTo(dp).map((instance) => instance * each);
    const inStage = this.instance * tp + this.tensorRank;
    const replica = Math.floor(inStage / (expertTp * ep));
    this.expertRanks = upTo(expertTp * ep).map((index) => {
      const at = replica * expertTp * ep + index;
      return Math.floor(at / tp) * each + this.stage * tp + (at % tp);
    });
    this.parallelism = {
      tpSize: tp,
      tpRank: this.tensorRank,
      ppSize: pp,
      ppRank: this.stage,
      stages: shape.stages ?? null,
      epSize: ep,
      epRank: Math.floor((inStage % (expertTp * ep)) / expertTp),
      expertTpSize: expertTp,
      expertTpRank: inStage % expertTp,
      globalRank: rank,
    };
  }

  get worldSize(): number {
    return this.shape.dp * this.shape.tp * this.shape.pp;
  }

  /** Place in the instance: what the handoff SDK calls its rank. */
  get instanceRank(): number {
    return this.stage * this.shape.tp + this.tensorRank;
  }

  get isLeader(): boolean {
    return this.instanceRank === 0;
  }

  /** Whether an expert layer needs ranks of other instances, so that all of them have to step together. */
  get sharesExperts(): boolean {
    return this.expertRanks.some((rank) => !this.instanceRanks.includes(rank));
  }

  /** The ranks that hold the shards of an expert, in the order of the shards. */
  expertOwners(expert: number, expertCount: number): readonly number[] {
    const { ep, expertTp } = this.shape;
    const set = Math.floor((expert * ep) / expertCount);
    return this.expertRanks.slice(set * expertTp, (set + 1) * expertTp);
  }
}
