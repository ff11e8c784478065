/**
 * A `RankGroup` whose ranks all live in this process: for single-process engines, tests and simulations.
 *
 * Values are structured-cloned on the way, so ranks share no object. Each channel (worker to rank 0, rank 0 to worker)
 * keeps its order; a `delivery` policy can hold a channel back so that ranks see the log at different times.
 */
import { requireObject } from '../argument-shape.js';
import { argumentError, HandoffError } from '../errors.js';
import { completionReportBytes } from './completion-report.js';
import { placementReportBytes } from './placement.js';
import type { RankGroup, RankReport, StepFrame } from './rank-group.js';

/** What travels: a report to rank 0, or a frame from it. */
export type MessageKind = 'report' | 'frame';

/** How messages between the ranks of one process are delivered. */
export interface InProcessRankGroupOptions {
  /**
   * Asked once a message. `rank` is the worker at the other end of rank 0: the one that sent a report, or the one that
   * is to get a frame. `held` messages, and all that follow them on the same channel, wait for `deliver`.
   */
  readonly delivery?: (rank: number, kind: MessageKind) => 'now' | 'held';
}

interface Channel<T> {
  arrived: T[];
  held: T[];
}

interface Gather {
  readonly values: unknown[];
  readonly given: boolean[];
  count: number;
  readonly waiting: { resolve: (values: readonly unknown[]) => void; reject: (error: HandoffError) => void }[];
}

/** What the ranks of one group share. */
class Hub {
  readonly ranks: InProcessRankGroup[] = [];
  readonly reports: Channel<RankReport>[];
  readonly frames: Channel<StepFrame>[];
  readonly gathers: Gather[] = [];
  lastStep = 0;

  constructor(
    readonly size: number,
    readonly delivery: (rank: number, kind: MessageKind) => 'now' | 'held',
  ) {
    this.reports = Array.from({ length: size }, () => ({ arrived: [], held: [] }));
    this.frames = Array.from({ length: size }, () => ({ arrived: [], held: [] }));
  }

  /** Returns true when the message can be seen by its receiver already. */
  send<T>(channel: Channel<T>, message: T, rank: number, kind: MessageKind): boolean {
    // What follows a held message waits behind it: a channel never reorders.
    if (channel.held.length > 0 || this.delivery(rank, kind) === 'held') {
      channel.held.push(message);
      return false;
    }
    channel.arrived.push(message);
    return true;
  }
}

/** See {@link InProcessRankGroup.create}. */
export class InProcessRankGroup implements RankGroup {
  onWake: (() => void) | null = null;
  /** Ranks of one process do not get lost. */
  readonly failure = null;
  readonly #hub: Hub;
  #gathersDone = 0;
  #closed = false;

  private constructor(
    hub: Hub,
    readonly rank: number,
  ) {
    this.#hub = hub;
  }

  /**
   * All ranks of one new group, by rank.
   *
   * @throws `ARGUMENT_INVALID` when `size` is no positive integer
   */
  static create(size: number, options: InProcessRankGroupOptions = {}): InProcessRankGroup[] {
    if (!Number.isSafeInteger(size) || size < 1) throw argumentError('size', 'a positive integer', size);
    requireObject('options', options);
    const hub = new Hub(size, options.delivery ?? (() => 'now'));
    for (let rank = 0; rank < size; rank++) hub.ranks.push(new InProcessRankGroup(hub, rank));
    return hub.ranks;
  }

  get size(): number {
    return this.#hub.size;
  }

  /** Messages that a `delivery` policy holds back between rank 0 and this worker. */
  get heldCount(): number {
    return this.#hub.frames[this.rank]!.held.length + this.#hub.reports[this.rank]!.held.length;
  }

  /** @throws `CLOSED` */
  allGather(value: unknown): Promise<readonly unknown[]> {
    if (this.#closed) return Promise.reject(this.#closedError('allGather'));
    const { gathers, size, ranks } = this.#hub;
    if (ranks.some((rank) => rank.#closed)) return Promise.reject(this.#closedError('allGather'));
    const index = this.#gathersDone++;
    const gather = (gathers[index] ??= {
      values: new Array<unknown>(size).fill(undefined),
      given: new Array<boolean>(size).fill(false),
      count: 0,
      waiting: [],
    });
    gather.values[this.rank] = structuredClone(value);
    gather.given[this.rank] = true;
    gather.count++;
    return new Promise((resolve, reject) => {
      gather.waiting.push({ resolve, reject });
      if (gather.count < size) return;
      for (const waiting of gather.waiting) waiting.resolve(structuredClone(gather.values));
      gather.waiting.length = 0;
    });
  }

  /** @throws `ARGUMENT_INVALID` on rank 0 or when it is no report; `CLOSED` */
  report({ completion, placement }: RankReport): void {
    this.#requireOpen('report');
    if (this.rank === 0) throw argumentError('report: rank', 'a worker (rank above 0)', this.rank);
    requireLength('report.completion', completion, completionReportBytes);
    if (placement !== null) requireLength('report.placement', placement, placementReportBytes);
    const first = this.#hub.ranks[0]!;
    if (first.#closed) return;
    const copy = {
      completion: Uint8Array.from(completion),
      placement: placement === null ? null : Uint8Array.from(placement),
    };
    if (this.#hub.send(this.#hub.reports[this.rank]!, copy, this.rank, 'report')) first.onWake?.();
  }

  /** By rank, and in order within a rank. @throws `NOT_RANK_ZERO`, `CLOSED` */
  drainReports(): readonly RankReport[] {
    this.#requireRankZero('drainReports');
    const drained: RankReport[] = [];
    for (const channel of this.#hub.reports) {
      if (channel.arrived.length === 0) continue;
      drained.push(...channel.arrived);
      channel.arrived = [];
    }
    return drained;
  }

  /** @throws `NOT_RANK_ZERO`; `ARGUMENT_INVALID` when `frame.step` is not one past the last; `CLOSED` */
  publish(frame: StepFrame): void {
    this.#requireRankZero('publish');
    const hub = this.#hub;
    if (frame.step !== hub.lastStep + 1) throw argumentError('frame.step', String(hub.lastStep + 1), frame.step);
    hub.lastStep = frame.step;
    for (let rank = 1; rank < hub.size; rank++) {
      const worker = hub.ranks[rank]!;
      if (worker.#closed) continue;
      if (hub.send(hub.frames[rank]!, cloneFrame(frame), rank, 'frame')) worker.onWake?.();
    }
  }

  /** @throws `ARGUMENT_INVALID` on rank 0; `CLOSED` */
  nextFrame(): StepFrame | null {
    this.#requireOpen('nextFrame');
    if (this.rank === 0) throw argumentError('nextFrame: rank', 'a worker (rank above 0)', this.rank);
    return this.#hub.frames[this.rank]!.arrived.shift() ?? null;
  }

  /**
   * Lets held messages between rank 0 and this worker arrive, oldest first. Returns how many arrived.
   *
   * @param kind - which direction: what this worker reported, or the frames it is to get
   * @param count - at most so many; all when left out
   */
  deliver(kind: MessageKind, count = Infinity): number {
    const hub = this.#hub;
    const moved = kind === 'frame' ? move(hub.frames[this.rank]!, count) : move(hub.reports[this.rank]!, count);
    const receiver = kind === 'frame' ? this : hub.ranks[0]!;
    if (moved > 0 && !receiver.#closed) receiver.onWake?.();
    return moved;
  }

  /** Idempotent. Gathers that wait for this rank are rejected (`CLOSED`); what others send to it is dropped. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.onWake = null;
    for (const gather of this.#hub.gathers) {
      if (gather.count === this.#hub.size) continue;
      for (const waiting of gather.waiting) waiting.reject(this.#closedError('allGather'));
      gather.waiting.length = 0;
    }
  }

  #requireRankZero(call: string): void {
    this.#requireOpen(call);
    if (this.rank !== 0) {
      throw new HandoffError('NOT_RANK_ZERO', `${call}: expected rank 0, got rank ${this.rank}`, {
        details: { rank: this.rank },
      });
    }
  }

  #requireOpen(call: string): void {
    if (this.#closed) throw this.#closedError(call);
  }

  #closedError(call: string): HandoffError {
    return new HandoffError('CLOSED', `${call} failed because a rank of the group is closed; create a new group`, {
      details: { rank: this.rank },
    });
  }
}

function requireLength(path: string, bytes: Uint8Array, length: number): void {
  if (bytes.byteLength !== length) throw argumentError(path, `${length} bytes`, bytes.byteLength);
}

/** Empty frames are most of all frames and hold nothing to share. */
function cloneFrame(frame: StepFrame): StepFrame {
  return frame.records.length === 0 ? { step: frame.step, records: [] } : structuredClone(frame);
}

function move<T>(channel: Channel<T>, count: number): number {
  const moved = channel.held.splice(0, count);
  channel.arrived.push(...moved);
  return moved.length;
}
