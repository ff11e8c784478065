/**
 * How engines are ranked for a request, in both generations of the reference (spec 1.6), as data: what is compared, in
 * which order, with which default weight. Pure: facts in, an order out.
 */

/** Which revision of the reference a coordinator follows: its scoring, its safety rules, its transport rules. */
export type Behaviour = 'gen-b' | 'gen-c';

/** What one engine looks like to one request. */
export interface EngineFacts {
  /** Share of the prompt's blocks: up to the last one that any engine holds, for those that hold it (Gen B). */
  readonly match: number;
  /** Number of the recording that assigned it that block; 0 when it does not hold it. */
  readonly recency: number;
  /** Leading blocks held without a gap, of all blocks of the prompt (Gen C). */
  readonly depthShare: number;
  /** Requests that hold a reservation. */
  readonly active: number;
  /** Requests that wait for one. */
  readonly queued: number;
  readonly slotsUsed: number;
  /** Of requests and SSM slots, whichever is scarcer, in [0, 1]. */
  readonly freeFraction: number;
  /** `active + queued` against the mean of all engines asked. */
  readonly relativeLoad: number;
}

/** A number of which more is better. */
export type Criterion = (facts: EngineFacts, alpha: number) => number;

/** One generation's rules. */
export interface Scoring {
  /** Weight of {@link Scoring.score}'s two sides when the configuration gives none. */
  readonly alphaDefault: number;
  readonly affinityTtlMs: number | null;
  /** Which of the facts about a prompt's blocks it looks at: `match` and `recency`, or `depthShare`. */
  readonly prefix: 'deepest' | 'leading';
  readonly score: Criterion;
  /** For engines without roles: the score, then what breaks ties; of equals the first engine wins. */
  readonly aggregated: readonly Criterion[];
  /** For a pool of one role, where equals take turns. */
  readonly pooled: readonly Criterion[];
  /** The pool's criteria when prefixes do not count. */
  readonly pooledByLoad: readonly Criterion[];
}

const leastLoaded: Criterion = ({ active, queued }) => -(active + queued);
const fewestQueued: Criterion = ({ queued }) => -queued;
const fewestActive: Criterion = ({ active }) => -active;
const fewestSlots: Criterion = ({ slotsUsed }) => -slotsUsed;
const mostRecent: Criterion = ({ recency }) => recency;
const mostFree: Criterion = ({ freeFraction }) => freeFraction;

const scoreB: Criterion = ({ match, freeFraction }, alpha) => alpha * match + (1 - alpha) * freeFraction;
const scoreC: Criterion = ({ depthShare, relativeLoad }, alpha) => depthShare - alpha * relativeLoad;

/** The rules of both generations. */
export const scorings: Readonly<Record<Behaviour, Scoring>> = {
  'gen-b': {
    alphaDefault: 0.5,
    affinityTtlMs: null,
    prefix: 'deepest',
    score: scoreB,
    aggregated: [scoreB, mostRecent],
    pooled: [scoreB, mostRecent, fewestQueued, fewestActive, fewestSlots],
    pooledByLoad: [mostFree, fewestQueued, fewestActive, fewestSlots],
  },
  'gen-c': {
    alphaDefault: 1,
    affinityTtlMs: 300_000,
    prefix: 'leading',
    score: scoreC,
    aggregated: [scoreC, leastLoaded],
    pooled: [scoreC, leastLoaded, mostFree],
    pooledByLoad: [leastLoaded, mostFree],
  },
};

/** Without prefixes an aggregated request goes where the fewest are, in either generation. */
export const aggregatedByLoad: readonly Criterion[] = [leastLoaded];

/**
 * The best of some engines; of equals the one that comes first from `first` on, round the list.
 *
 * @returns its index
 */
export function best(
  facts: readonly EngineFacts[],
  criteria: readonly Criterion[],
  alpha: number,
  first: number,
): number {
  let winner = first % facts.length;
  for (let turn = 1; turn < facts.length; turn++) {
    const challenger = (first + turn) % facts.length;
    if (beats(facts[challenger]!, facts[winner]!, criteria, alpha)) winner = challenger;
  }
  return winner;
}

function beats(challenger: EngineFacts, winner: EngineFacts, criteria: readonly Criterion[], alpha: number): boolean {
  for (const criterion of criteria) {
    const [mine, theirs] = [criterion(challenger, alpha), criterion(winner, alpha)];
    if (mine !== theirs) return mine > theirs;
  }
  return false;
}
