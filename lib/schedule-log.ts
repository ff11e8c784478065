/**
 * The one ordered log of an instance (law 4): everything that changes an allocator, a slot pool, a hash reservation or
 * a FIFO is the effect of a record, applied in the same order on every rank.
 *
 * Three carriers: `local` (one rank; a record applies at once), `group` (rank 0 publishes one frame a step, each worker
 * applies one a step), `host` (the host engine's own broadcast carries what rank 0 drains). An instance uses one.
 */
import { argumentError, HandoffError } from './errors.js';
import { invariant } from './invariant.js';
import type { LogRecord, RankGroup } from './control/rank-group.js';

export type LogCarrier = 'local' | 'group' | 'host';

export interface ScheduleLogHooks {
  /** Applies one record; `index` is its place in the log. */
  readonly apply: (record: LogRecord, index: number) => void;
}

export class ScheduleLog {
  private index = 0;
  private step = 0;
  private applying = false;
  /** Records about to be applied here, in log order. */
  private readonly waiting: LogRecord[] = [];
  /** Rank 0, `group` carrier: records for the next frame; they apply when it does, and not before. */
  private unpublished: LogRecord[] = [];
  private notifications: LogRecord[] = [];

  constructor(
    readonly carrier: LogCarrier,
    private readonly group: RankGroup | null,
    private readonly hooks: ScheduleLogHooks,
  ) {
    invariant(carrier !== 'group' || group !== null, 'the group carrier needs a group');
  }

  get rank(): number {
    return this.group?.rank ?? 0;
  }

  /** How many records and steps have been applied. Equal on all ranks at equal history. */
  get logIndex(): number {
    return this.index;
  }

  get stepIndex(): number {
    return this.step;
  }

  /** Records on rank 0 that no frame or notification has carried yet. */
  get pendingRecords(): readonly LogRecord[] {
    if (this.carrier === 'host') return this.notifications;
    return this.carrier === 'group' ? this.unpublished : this.waiting;
  }

  /**
   * A record that rank 0 alone decides: it reaches every rank through the carrier.
   *
   * @throws `NOT_RANK_ZERO` elsewhere
   */
  decide(record: LogRecord): void {
    this.requireRankZero(record.kind);
    if (this.carrier === 'host') {
      this.notifications.push(record);
      return;
    }
    if (this.carrier === 'group') {
      this.unpublished.push(record);
      return;
    }
    this.waiting.push(record);
    this.applyWaiting();
  }

  /**
   * A record that the host engine's own order already carries to every rank (an add or a release under the `host`
   * carrier); with the other carriers the same as `decide`.
   */
  submit(record: LogRecord): void {
    if (this.carrier !== 'host') {
      this.decide(record);
      return;
    }
    this.waiting.push(record);
    this.applyWaiting();
  }

  /** Rank 0, `host` carrier: what the host engine must put into its next broadcast. @throws `LOG_CARRIER_MIXED` */
  drainNotifications(): readonly LogRecord[] {
    this.requireHostCarrier('drainHandoffCompletionNotifications');
    const drained = this.notifications;
    this.notifications = [];
    return drained;
  }

  /** Every rank, `host` carrier: a record at its place in the host engine's broadcast. @throws `LOG_CARRIER_MIXED` */
  record(record: LogRecord): void {
    this.requireHostCarrier('recordHandoffCompletionNotification');
    checkNotification(record);
    this.waiting.push(record);
    this.applyWaiting();
  }

  /** Whether `beginStep` would find its frame. Always so on rank 0. */
  get stepReady(): boolean {
    return this.carrier !== 'group' || this.rank === 0 || this.nextFrame !== null || this.peekFrame();
  }

  private nextFrame: ReturnType<RankGroup['nextFrame']> = null;

  private peekFrame(): boolean {
    this.nextFrame = (this.group as RankGroup).nextFrame();
    return this.nextFrame !== null;
  }

  /**
   * The scheduling point: publishes (rank 0) or takes (workers) the step's frame and applies its records. False when a
   * worker's frame has not arrived; nothing changed then.
   */
  beginStep(): boolean {
    if (this.carrier === 'group') {
      if (this.rank === 0) {
        const records = this.unpublished;
        this.unpublished = [];
        (this.group as RankGroup).publish({ step: this.step + 1, records });
        this.waiting.push(...records);
      } else {
        if (!this.stepReady || this.nextFrame === null) return false;
        const frame = this.nextFrame;
        this.nextFrame = null;
        if (frame.step !== this.step + 1) {
          throw new HandoffError(
            'DIVERGENCE',
            `rank ${this.rank} expected the frame of step ${this.step + 1} and got that of step ${frame.step}`,
            {
              sourceSafe: false,
              targetSafe: false,
            },
          );
        }
        this.waiting.push(...frame.records);
      }
    }
    this.applyWaiting();
    this.step += 1;
    this.index += 1;
    return true;
  }

  requireRankZero(what: string): void {
    if (this.rank === 0) return;
    throw new HandoffError(
      'NOT_RANK_ZERO',
      `${what} must come from rank 0 because only rank 0 writes the schedule log; this is rank ${this.rank}`,
    );
  }

  private requireHostCarrier(what: string): void {
    if (this.carrier === 'host') return;
    throw new HandoffError(
      'LOG_CARRIER_MIXED',
      `${what} belongs to the host engine's own broadcast, but this instance's log is carried by ${this.carrier === 'group' ? 'its rank group' : 'its only rank'}; choose one in setupKvTransfer`,
    );
  }

  /** Records that an effect causes wait until the record before them is done. */
  private applyWaiting(): void {
    if (this.applying) return;
    this.applying = true;
    const failures: unknown[] = [];
    for (let record = this.waiting.shift(); record !== undefined; record = this.waiting.shift()) {
      this.index += 1;
      try {
        this.hooks.apply(record, this.index);
      } catch (error) {
        // What one record's effects ran into is no reason to lose the records behind it.
        failures.push(error);
      }
    }
    this.applying = false;
    if (failures.length > 0) throw failures[0];
  }
}

/** Fields of what `drainNotifications` gives, by kind; an add or a push is the host engine's own to carry. */
const notificationFields: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  abort: { attemptId: 'number', reason: 'string' },
  decision: { attemptId: 'number', failed: 'boolean', sourceSafe: 'boolean' },
  release: { handoffId: 'number', reason: 'string' },
  'push-safe': { pushId: 'number' },
  'attest-dead': { instance: 'string', incarnation: 'string' },
  carried: { message: 'object' },
  'instance-failed': { code: 'string', reason: 'string' },
};

function checkNotification(record: LogRecord): void {
  const fields = notificationFields[(record as Partial<LogRecord> | null)?.kind ?? ''];
  if (fields === undefined)
    throw argumentError('notification', 'what drainHandoffCompletionNotifications gave', record);
  for (const [field, type] of Object.entries(fields)) {
    const value = (record as unknown as Record<string, unknown>)[field];
    if (typeof value !== type || (type === 'number' && !Number.isSafeInteger(value)))
      throw argumentError(`notification.${field}`, `a ${type}`, value);
  }
}
