/**
 * Rank groups of one process that are not quite as they should be: one that has lost a rank, as `SocketRankGroup` shows it
 * when a process dies, at a moment that a test chooses; and one of a peer that says less.
 */
import { decodeCompletionReport } from '../../lib/control/completion-report.js';
import type { RankGroup, RankReport, StepFrame } from '../../lib/control/rank-group.js';
import { HandoffError } from '../../lib/errors.js';

/** A rank's view of its group that does what the view inside it does; tests override what they want otherwise. */
export class AroundRankGroup implements RankGroup {
  failure: HandoffError | null = null;

  constructor(protected readonly inner: RankGroup) {}

  get rank(): number {
    return this.inner.rank;
  }

  get size(): number {
    return this.inner.size;
  }

  get onWake(): (() => void) | null {
    return this.inner.onWake;
  }

  set onWake(wake: (() => void) | null) {
    this.inner.onWake = wake;
  }

  allGather(value: unknown): Promise<readonly unknown[]> {
    return this.inner.allGather(value);
  }

  report(report: RankReport): void {
    this.inner.report(report);
  }

  drainReports(): readonly RankReport[] {
    return this.inner.drainReports();
  }

  publish(frame: StepFrame): void {
    this.inner.publish(frame);
  }

  nextFrame(): StepFrame | null {
    return this.inner.nextFrame();
  }

  close(): void {
    this.inner.close();
  }
}

export class LostRankGroup extends AroundRankGroup {
  private lostRank = -1;
  /** What had come before. */
  private arrived: readonly RankReport[] = [];

  /** From now on nothing comes from that rank. */
  lose(rank: number): void {
    if (this.rank === 0) this.arrived = super.drainReports();
    this.lostRank = rank;
    this.failure = new HandoffError('RANK_LOST', `rank ${rank} is lost`, {
      sourceSafe: false,
      targetSafe: false,
      details: { rank },
    });
    this.onWake?.();
  }

  override report(report: RankReport): void {
    if (this.lostRank !== 0) super.report(report);
  }

  override drainReports(): readonly RankReport[] {
    const { arrived } = this;
    this.arrived = [];
    const later = super.drainReports();
    return [...arrived, ...later.filter(({ completion }) => decodeCompletionReport(completion).rank !== this.lostRank)];
  }

  override nextFrame(): StepFrame | null {
    if (this.lostRank === 0) throw this.failure as HandoffError;
    return super.nextFrame();
  }
}

/** A rank that sends no digest of where it placed a request, as a Megatron peer does. */
export class PlainRankGroup extends AroundRankGroup {
  override report({ completion }: RankReport): void {
    super.report({ completion, placement: null });
  }
}
