/**
 * From each rank's own reports to one decision: workers send theirs to rank 0, rank 0 tracks them all.
 *
 * Beside each result goes a digest of where the rank placed the request; ranks that differ have diverged, and a request of
 * which that is known is never agreed.
 */
import { CompletionTracker, type CompletionDecision, type PlacementConflict } from '../decode/completion-tracker.js';
import type { LocalReport } from '../decode/local-transfer.js';
import { argumentError } from '../errors.js';
import { decodeCompletionReport, encodeCompletionReport } from './completion-report.js';
import { decodePlacementReport, encodePlacementReport } from './placement.js';
import type { RankGroup, RankReport } from './rank-group.js';

export class Agreement {
  private readonly tracker: CompletionTracker | null;

  constructor(private readonly group: RankGroup | null) {
    this.tracker = group === null || group.rank === 0 ? new CompletionTracker(group?.size ?? 1) : null;
  }

  /** What this rank has to say about `id`, and where it placed it (null: it is not compared). */
  report(id: number, { failed, safe }: LocalReport, digest: bigint | null): void {
    const report = { requestId: id, rank: this.group?.rank ?? 0, failed, sourceSafe: safe };
    if (this.tracker !== null) {
      this.tracker.report(report, digest);
      return;
    }
    (this.group as RankGroup).report({
      completion: encodeCompletionReport(report),
      placement: digest === null ? null : encodePlacementReport({ requestId: id, rank: report.rank, digest }),
    });
  }

  /**
   * Rank 0: takes in what workers sent. Done before deadlines are looked at, so a finished transfer never times out.
   *
   * @throws the first thing that was wrong with a report, after all others were taken: `ARGUMENT_INVALID`,
   *   `COMPLETION_CONTRADICTED`
   */
  collect(): void {
    const { tracker } = this;
    if (tracker === null || this.group === null) return;
    const failures: unknown[] = [];
    for (const report of this.group.drainReports()) {
      try {
        take(tracker, report);
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  }

  /** Rank 0: ranks that placed a request differently, each request once. */
  conflicts(): readonly PlacementConflict[] {
    return this.tracker?.takeConflicts() ?? [];
  }

  /** Rank 0 gives up on `id`. False when all ranks have already succeeded. */
  fail(id: number, reason: string): boolean {
    return this.tracker?.fail(id, reason) ?? false;
  }

  /** Rank 0: `id` ended before any rank could report it. */
  retire(id: number): void {
    this.tracker?.retire(id);
  }

  /** Rank 0: new decisions, in the order they became due. */
  decisions(): readonly CompletionDecision[] {
    return this.tracker?.drain() ?? [];
  }
}

function take(tracker: CompletionTracker, { completion, placement }: RankReport): void {
  const report = decodeCompletionReport(completion);
  if (placement === null) return tracker.report(report);
  const { requestId, rank, digest } = decodePlacementReport(placement);
  if (requestId !== report.requestId)
    throw argumentError('placement.requestId', `${report.requestId}, as in the report beside it`, requestId);
  if (rank !== report.rank) throw argumentError('placement.rank', `${report.rank}, as in the report beside it`, rank);
  tracker.report(report, digest);
}
