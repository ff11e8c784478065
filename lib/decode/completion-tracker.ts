/**
 * Rank 0's view of how a handoff ended on every rank of the instance (spec 6.4), and the only source of decisions.
 *
 * Success is announced when every rank has reported and is safe. Failure is announced at the first failed report and
 * only once, with what is known of safety then; when every rank has reported and is safe, that is announced again. An
 * entry lives until then and leaves a tombstone, so that a late or repeated report cannot bring it back to life.
 *
 * Pure: no clock, no socket. Used on decode for imports and on prefill for pushes. A report costs O(1); a drain visits
 * only what may have something to say.
 */
import type { CompletionReport } from '../control/completion-report.js';
import { argumentError, HandoffError } from '../errors.js';
import { IdSet } from './id-set.js';

/** What all ranks will see as one record of the ordered log. */
export interface CompletionDecision {
  readonly requestId: number;
  readonly failed: boolean;
  /** Every rank has reported and none can touch memory any more. */
  readonly sourceSafe: boolean;
  /** Why rank 0 gave up, if it did; for the error's message only. */
  readonly reason: string | null;
}

/** Two ranks that placed one request differently: this instance has diverged. */
export interface PlacementConflict {
  readonly requestId: number;
  /** The rank that reported last. */
  readonly rank: number;
  /** The rank it differs from; rank 0 when it has reported. */
  readonly otherRank: number;
}

interface Entry {
  readonly requestId: number;
  /** Order of first mention: the order of decisions within one drain. */
  readonly sequence: number;
  /** By rank. */
  readonly results: (RankResult | undefined)[];
  /** Ranks that have reported and are safe. */
  safeCount: number;
  failed: boolean;
  reason: string | null;
  failureAnnounced: boolean;
  /** Two ranks placed it differently; told once. */
  diverged: boolean;
  /** Whether it waits for the next drain. */
  isDirty: boolean;
}

interface RankResult {
  readonly failed: boolean;
  /** Where it placed the request; null when it did not say. */
  readonly digest: bigint | null;
  sourceSafe: boolean;
}

export class CompletionTracker {
  readonly #worldSize: number;
  readonly #entries = new Map<number, Entry>();
  readonly #ended = new IdSet();
  #dirty: Entry[] = [];
  #conflicts: PlacementConflict[] = [];
  #sequence = 0;
  #lateReports = 0;

  /** @param worldSize - ranks of this instance, 1 or more */
  constructor(worldSize: number) {
    if (!Number.isSafeInteger(worldSize) || worldSize < 1)
      throw argumentError('worldSize', 'a number of ranks, 1 or more', worldSize);
    this.#worldSize = worldSize;
  }

  /** Requests that are not yet reported and safe on every rank. */
  get openCount(): number {
    return this.#entries.size;
  }

  /** Runs of ended ids kept as tombstones: at most one more than there are ids without an end. */
  get tombstoneRunCount(): number {
    return this.#ended.runCount;
  }

  /** Reports for requests that had ended already; ignored and counted. */
  get lateReports(): number {
    return this.#lateReports;
  }

  /**
   * Takes one rank's result. The same result may come again, and an unsafe one may become safe. A request that two ranks
   * placed differently has failed.
   *
   * @param digest - where the rank placed the request; null when it does not say
   * @throws `ARGUMENT_INVALID` for a rank outside the instance; `COMPLETION_CONTRADICTED` when a rank changes its result
   *   or takes back that it is safe. Nothing changes then.
   */
  report({ requestId, rank, failed, sourceSafe }: CompletionReport, digest: bigint | null = null): void {
    if (!Number.isSafeInteger(rank) || rank < 0 || rank >= this.#worldSize) {
      throw argumentError('report.rank', `a rank in [0, ${this.#worldSize - 1}]`, rank);
    }
    const entry = this.#open(requestId);
    if (entry === null) {
      this.#lateReports++;
      return;
    }
    const previous = entry.results[rank];
    if (previous === undefined) {
      this.#comparePlacement(entry, rank, digest);
      entry.results[rank] = { failed, sourceSafe, digest };
      if (sourceSafe) entry.safeCount++;
      if (failed) entry.failed = true;
    } else {
      if (previous.failed !== failed)
        throw contradiction(requestId, rank, 'result', outcome(previous.failed), outcome(failed));
      if (previous.sourceSafe && !sourceSafe) throw contradiction(requestId, rank, 'safety', 'safe', 'not safe');
      if (sourceSafe && !previous.sourceSafe) {
        previous.sourceSafe = true;
        entry.safeCount++;
      }
    }
    this.#touch(entry);
  }

  /**
   * Rank 0 gives up on a request (a deadline, an abort): it has failed, whatever ranks report from now on. Their
   * reports still say when its memory is safe.
   *
   * @returns false when it is too late: the request has ended, or every rank has already reported success and is safe
   */
  fail(requestId: number, reason: string): boolean {
    const entry = this.#open(requestId);
    if (entry === null || (this.#isSafe(entry) && !entry.failed)) return false;
    if (!entry.failed) {
      entry.failed = true;
      entry.reason = reason;
      this.#touch(entry);
    }
    return true;
  }

  /**
   * Says that no rank will report this id: its request ended before any transfer. Keeps tombstones few.
   *
   * @throws `COMPLETION_CONTRADICTED` when a rank has reported it
   */
  retire(requestId: number): void {
    if (this.#entries.has(requestId)) {
      throw new HandoffError(
        'COMPLETION_CONTRADICTED',
        `request ${requestId} cannot be retired because a rank has reported on it`,
        {
          details: { requestId },
        },
      );
    }
    this.#ended.add(requestId);
  }

  /** Decisions that became due since the last call, in the order in which their requests were first mentioned. */
  drain(): CompletionDecision[] {
    if (this.#dirty.length === 0) return [];
    const due = this.#dirty.sort((a, b) => a.sequence - b.sequence);
    this.#dirty = [];
    const decisions: CompletionDecision[] = [];
    for (const entry of due) {
      entry.isDirty = false;
      const { requestId, failed, reason } = entry;
      const sourceSafe = this.#isSafe(entry);
      decisions.push({ requestId, failed, sourceSafe, reason });
      if (failed) entry.failureAnnounced = true;
      if (sourceSafe) {
        this.#entries.delete(requestId);
        this.#ended.add(requestId);
      }
    }
    return decisions;
  }

  /** Conflicts since the last call; the first of each request. */
  takeConflicts(): PlacementConflict[] {
    const conflicts = this.#conflicts;
    if (conflicts.length > 0) this.#conflicts = [];
    return conflicts;
  }

  #comparePlacement(entry: Entry, rank: number, digest: bigint | null): void {
    if (digest === null || entry.diverged) return;
    const otherRank = entry.results.findIndex((other) => other !== undefined && (other.digest ?? digest) !== digest);
    if (otherRank < 0) return;
    entry.diverged = true;
    entry.failed = true;
    this.#conflicts.push({ requestId: entry.requestId, rank, otherRank });
  }

  /** The entry of a request, made on first mention; null when the request has ended. */
  #open(requestId: number): Entry | null {
    if (!Number.isSafeInteger(requestId) || requestId < 0)
      throw argumentError('requestId', 'a safe integer, 0 or more', requestId);
    const known = this.#entries.get(requestId);
    if (known !== undefined) return known;
    if (this.#ended.has(requestId)) return null;
    const entry: Entry = {
      requestId,
      sequence: this.#sequence++,
      results: [],
      safeCount: 0,
      failed: false,
      reason: null,
      failureAnnounced: false,
      diverged: false,
      isDirty: false,
    };
    this.#entries.set(requestId, entry);
    return entry;
  }

  #isSafe(entry: Entry): boolean {
    return entry.safeCount === this.#worldSize;
  }

  /** What makes a decision due stays true until the drain. */
  #touch(entry: Entry): void {
    if (entry.isDirty || !(this.#isSafe(entry) || (entry.failed && !entry.failureAnnounced))) return;
    entry.isDirty = true;
    this.#dirty.push(entry);
  }
}

function outcome(failed: boolean): string {
  return failed ? 'failed' : 'succeeded';
}

function contradiction(requestId: number, rank: number, what: string, before: string, now: string): HandoffError {
  return new HandoffError(
    'COMPLETION_CONTRADICTED',
    `the ${what} of request ${requestId} changed on rank ${rank} from ${before} to ${now}; ranks of this instance have diverged`,
    { sourceSafe: false, targetSafe: false, details: { requestId, rank } },
  );
}
