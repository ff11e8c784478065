/**
 * A `RankGroup` whose ranks are processes: a star of Unix or TCP streams around rank 0.
 *
 * Everything a rank sends is checked before it counts. A rank that dies, breaks the protocol or stops taking what it is
 * sent is lost: the others learn which one it was (`failure`), and what the living agree on goes on reaching them.
 */
import { requireObject } from '../argument-shape.js';
import { argumentError, HandoffError } from '../errors.js';
import { completionReportBytes, decodeCompletionReport } from './completion-report.js';
import { decodePlacementReport } from './placement.js';
import type { RankGroup, RankReport, StepFrame } from './rank-group.js';
import type { RankConnection } from './ranks/connection.js';
import { frameKind } from './ranks/framing.js';
import { checkToken } from './ranks/handshake.js';
import { Gathering } from './ranks/gathering.js';
import { checkAddress, gatherWorkers, joinLeader, type RankAddress, type Rendezvous } from './ranks/rendezvous.js';
import { decodeStepFrame, encodeStepFrame } from './ranks/step-frame.js';
import { decodeWireValue, encodeWireValue } from './ranks/wire-value.js';

/** How a rank finds the others, and how much it lets them send. */
export interface SocketRankGroupOptions {
  /** This process's rank; rank 0 listens, the others connect. */
  readonly rank: number;
  readonly size: number;
  /** The same on all ranks. Rank 0 may ask for port 0 and learn the real one from `onListening`. */
  readonly address: RankAddress;
  /** A secret of at least 16 characters that only the ranks of this instance know. It never travels. */
  readonly token: string;
  /** How long all ranks together, and each gather, may take. Default 60,000 ms. */
  readonly setupTimeoutMs?: number;
  /** Bytes of one frame, the same on all ranks; a longer message takes several. Default 64 MiB. */
  readonly frameBytesMax?: number;
  /** Bytes of one message, and that may wait for one rank before it counts as lost. Default 256 MiB. */
  readonly backlogBytesMax?: number;
  /** Rank 0: it listens; where. */
  readonly onListening?: (address: RankAddress) => void;
}

/** Reports of one worker that rank 0 has not drained. */
const reportsMax = 1 << 20;
const noBytes = new Uint8Array(0);

/** See {@link SocketRankGroup.create}. */
export class SocketRankGroup implements RankGroup {
  onWake: (() => void) | null = null;
  #failure: HandoffError | null = null;
  #closed = false;
  #lastStep = 0;
  /** By rank. On a worker only rank 0's; a rank that is gone has none. */
  readonly #peers: (RankConnection | null)[];
  /** Ranks that closed their group on purpose. */
  readonly #departed = new Set<number>();
  readonly #reports: RankReport[][];
  readonly #frames: { readonly frame: StepFrame; readonly bytes: number }[] = [];
  #frameBytes = 0;
  readonly #gathering: Gathering;

  private constructor(
    readonly rank: number,
    readonly size: number,
    private readonly setup: Rendezvous,
    connections: readonly RankConnection[],
  ) {
    this.#reports = Array.from({ length: size }, () => []);
    this.#gathering = new Gathering(rank, size, setup.setupTimeoutMs, (error) => this.#fail(error));
    this.#peers = rank === 0 ? [null, ...connections] : [...connections];
    for (const [peer, connection] of this.#peers.entries()) {
      connection?.listen({
        onFrame: (kind, payload) => this.#take(peer, kind, payload),
        onEnd: (why) => this.#lose(peer, why),
      });
    }
  }

  /**
   * Resolves on every rank when all are there.
   *
   * @throws (rejects) `ARGUMENT_INVALID`; `RANK_SETUP_FAILED` when a rank is missing at the deadline or was refused
   */
  static async create(options: SocketRankGroupOptions): Promise<SocketRankGroup> {
    const setup = checkOptions(options);
    const { rank, size } = setup;
    if (size === 1) return new SocketRankGroup(rank, size, setup, []);
    return new SocketRankGroup(rank, size, setup, rank === 0 ? await gatherWorkers(setup) : [await joinLeader(setup)]);
  }

  /** Why the group is no longer whole: `RANK_LOST` with the rank, or a set-up that ran late. Null while all is well. */
  get failure(): HandoffError | null {
    return this.#failure;
  }

  /**
   * @throws (rejects) `CLOSED`; `ARGUMENT_INVALID` for what is no plain value; `RANK_LOST`; `RANK_SETUP_FAILED` at the
   *   deadline, and then the group is no longer whole
   */
  async allGather(value: unknown): Promise<readonly unknown[]> {
    this.#requireOpen('allGather');
    if (this.#failure !== null) throw this.#failure;
    const bytes = encodeWireValue(value, 'value');
    if (this.#departed.size > 0) throw this.#closedError('allGather');
    const gathered = this.#gathering.start(bytes);
    if (this.rank === 0) this.#sendGathered();
    else this.#peers[0]?.send(frameKind.gather, bytes);
    return gathered;
  }

  /** @throws `ARGUMENT_INVALID` on rank 0 or when it is no report of this rank; `CLOSED` */
  report(report: RankReport): void {
    this.#requireOpen('report');
    if (this.rank === 0) throw argumentError('report: rank', 'a worker (rank above 0)', this.rank);
    requireSender(report, this.rank);
    const { completion, placement } = report;
    this.#peers[0]?.send(frameKind.report, placement === null ? completion : Buffer.concat([completion, placement]));
  }

  /** By rank, and in order within a rank. @throws `NOT_RANK_ZERO`, `CLOSED` */
  drainReports(): readonly RankReport[] {
    this.#requireRankZero('drainReports');
    return this.#reports.flatMap((reports) => reports.splice(0));
  }

  /**
   * Sends to all that are still there. A rank that closed its group may miss a frame without records, and no other.
   *
   * @throws `NOT_RANK_ZERO`; `ARGUMENT_INVALID` when `frame.step` is not one past the last, or a record is no plain data;
   *   `CLOSED`
   */
  publish(frame: StepFrame): void {
    this.#requireRankZero('publish');
    if (frame.step !== this.#lastStep + 1) throw argumentError('frame.step', String(this.#lastStep + 1), frame.step);
    const bytes = encodeStepFrame(frame);
    this.#lastStep = frame.step;
    for (const connection of this.#peers) connection?.send(frameKind.step, bytes);
    if (frame.records.length === 0) return;
    for (const rank of this.#departed) this.#lose(rank, 'it closed its group and cannot apply the log any more');
  }

  /**
   * The next frame; null when it has not come.
   *
   * @throws `ARGUMENT_INVALID` on rank 0; `CLOSED`; `RANK_LOST` when rank 0 is lost and all its frames were taken
   */
  nextFrame(): StepFrame | null {
    this.#requireOpen('nextFrame');
    if (this.rank === 0) throw argumentError('nextFrame: rank', 'a worker (rank above 0)', this.rank);
    const next = this.#frames.shift();
    if (next === undefined) {
      if (this.#peers[0] === null && this.#failure !== null) throw this.#failure;
      return null;
    }
    this.#frameBytes -= next.bytes;
    return next.frame;
  }

  /** Idempotent. Tells the others that it is on purpose; open gathers are rejected (`CLOSED`). */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.onWake = null;
    this.#gathering.end(this.#closedError('allGather'));
    for (const [peer, connection] of this.#peers.entries()) {
      connection?.send(frameKind.bye, noBytes);
      connection?.close();
      this.#peers[peer] = null;
    }
  }

  #take(peer: number, kind: number, payload: Uint8Array): void {
    if (kind === frameKind.bye) return this.#depart(peer);
    if (this.rank === 0) this.#takeFromWorker(peer, kind, payload);
    else this.#takeFromLeader(kind, payload);
  }

  #takeFromWorker(peer: number, kind: number, payload: Uint8Array): void {
    switch (kind) {
      case frameKind.report: {
        const reports = this.#reports[peer] as RankReport[];
        const bytes = Uint8Array.from(payload);
        const report = {
          completion: bytes.subarray(0, completionReportBytes),
          placement: bytes.length <= completionReportBytes ? null : bytes.subarray(completionReportBytes),
        };
        requireSender(report, peer);
        if (reports.length >= reportsMax) throw argumentError('reports', `at most ${reportsMax} undrained`, 'more');
        reports.push(report);
        this.onWake?.();
        return;
      }
      case frameKind.gather:
        this.#gathering.add(peer, payload);
        return this.#sendGathered();
      default:
        throw argumentError('frame kind', 'one that a worker sends', kind);
    }
  }

  #takeFromLeader(kind: number, payload: Uint8Array): void {
    switch (kind) {
      case frameKind.step: {
        const frame = decodeStepFrame(payload);
        if (frame.step !== this.#lastStep + 1)
          throw argumentError('frame.step', String(this.#lastStep + 1), frame.step);
        this.#lastStep = frame.step;
        this.#frames.push({ frame, bytes: payload.length });
        this.#frameBytes += payload.length;
        if (this.#frameBytes > this.setup.backlogBytesMax)
          throw argumentError('frames', `at most ${this.setup.backlogBytesMax} bytes that were not applied`, 'more');
        this.onWake?.();
        return;
      }
      case frameKind.gathered:
        return this.#gathering.settle(payload);
      case frameKind.lost: {
        const [rank, why] = decodeLoss(payload, this.size);
        return this.#fail(lost(rank, this.size, why));
      }
      default:
        throw argumentError('frame kind', 'one that rank 0 sends', kind);
    }
  }

  #sendGathered(): void {
    for (let values = this.#gathering.takeComplete(); values !== null; values = this.#gathering.takeComplete()) {
      for (const connection of this.#peers) connection?.send(frameKind.gathered, values);
    }
  }

  /** A rank went on purpose: what is sent to it is dropped, as with every closed group. */
  #depart(peer: number): void {
    this.#departed.add(peer);
    this.#peers[peer]?.destroy();
    this.#peers[peer] = null;
    this.#gathering.end(this.#closedError('allGather'));
    this.onWake?.();
  }

  #lose(peer: number, why: string): void {
    this.#peers[peer]?.destroy();
    this.#peers[peer] = null;
    this.#departed.delete(peer);
    const told = encodeWireValue([peer, why]);
    for (const connection of this.#peers) if (this.rank === 0) connection?.send(frameKind.lost, told);
    this.#fail(lost(peer, this.size, why));
  }

  #fail(error: HandoffError): void {
    if (this.#closed || this.#failure !== null) return;
    this.#failure = error;
    this.#gathering.end(error);
    this.onWake?.();
  }

  #requireRankZero(call: string): void {
    this.#requireOpen(call);
    if (this.rank === 0) return;
    throw new HandoffError('NOT_RANK_ZERO', `${call}: expected rank 0, got rank ${this.rank}`, {
      details: { rank: this.rank },
    });
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

/** A report may only speak for the rank that sent it. */
function requireSender({ completion, placement }: RankReport, rank: number): void {
  const report = decodeCompletionReport(completion);
  if (report.rank !== rank) throw argumentError('report.rank', `rank ${rank}, who sent it`, report.rank);
  if (placement === null) return;
  const beside = decodePlacementReport(placement);
  if (beside.rank !== rank) throw argumentError('placement.rank', `rank ${rank}, who sent it`, beside.rank);
}

function lost(rank: number, size: number, why: string): HandoffError {
  return new HandoffError(
    'RANK_LOST',
    `rank ${rank} of ${size} is lost because ${why}; this instance must be restarted`,
    { sourceSafe: false, targetSafe: false, details: { rank } },
  );
}

function decodeLoss(payload: Uint8Array, size: number): [rank: number, why: string] {
  const pair = decodeWireValue(payload, 'loss');
  const [rank, why] = Array.isArray(pair) ? (pair as unknown[]) : [];
  if (typeof rank !== 'number' || !Number.isInteger(rank) || rank < 1 || rank >= size)
    throw argumentError('loss.rank', `a rank in [1, ${size - 1}]`, rank);
  if (typeof why !== 'string') throw argumentError('loss.why', 'a reason', why);
  return [rank, why.slice(0, 1024)];
}

function checkOptions(options: SocketRankGroupOptions): Rendezvous {
  requireObject('options', options);
  const { rank, size } = options;
  if (!Number.isSafeInteger(size) || size < 1 || size > 4096)
    throw argumentError('options.size', 'a number of ranks, 1 to 4096', size);
  if (!Number.isSafeInteger(rank) || rank < 0 || rank >= size)
    throw argumentError('options.rank', `a rank in [0, ${size - 1}]`, rank);
  const setup = {
    rank,
    size,
    address: checkAddress(options.address),
    token: checkToken(options.token),
    setupTimeoutMs: bound('setupTimeoutMs', options.setupTimeoutMs, 60_000, 1, 0x7fff_ffff),
    frameBytesMax: bound('frameBytesMax', options.frameBytesMax, 64 << 20, 1024, 0x7fff_ffff),
    backlogBytesMax: bound('backlogBytesMax', options.backlogBytesMax, 256 << 20, 1024, Number.MAX_SAFE_INTEGER),
    onListening: options.onListening ?? (() => undefined),
  };
  if (rank > 0 && 'port' in setup.address && setup.address.port === 0)
    throw argumentError('options.address.port', 'the port on which rank 0 listens', 0);
  return setup;
}

function bound(name: string, value: number | undefined, fallback: number, minimum: number, maximum: number): number {
  const chosen = value ?? fallback;
  if (!Number.isSafeInteger(chosen) || chosen < minimum || chosen > maximum)
    throw argumentError(`options.${name}`, `an integer in [${minimum}, ${maximum}]`, value);
  return chosen;
}
