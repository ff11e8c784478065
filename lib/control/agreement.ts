/**
 * From each rank's own reports to one decision: workers send theirs to rank 0, rank 0 tracks them all.
 */
import type { LocalReport } from '../decode/local-transfer.js';
import { CompletionTracker, type CompletionDecision } from '../decode/completion-tracker.js';
import { decodeCompletionReport, encodeCompletionReport } from './completion-report.js';
import type { RankGroup } from './rank-group.js';

export class Agreement {
  private readonly tracker: CompletionTracker | null;

  constructor(private readonly group: RankGroup | null) {
    this.tracker = group === null || group.rank === 0 ? new CompletionTracker(group?.size ?? 1) : null;
  }

  /** What this rank has to say about `id`. */
  report(id: number, { failed, safe }: LocalReport): void {
    const report = { requestId: id, rank: this.group?.rank ?? 0, failed, sourceSafe: safe };
    if (this.tracker !== null) this.tracker.report(report);
    else (this.group as RankGroup).report(encodeCompletionReport(report));
  }

  /** Rank 0: takes in what workers sent. Done before deadlines are looked at, so a finished transfer never times out. */
  collect(): void {
    if (this.tracker === null || this.group === null) return;
    for (const bytes of this.group.drainReports()) this.tracker.report(decodeCompletionReport(bytes));
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
