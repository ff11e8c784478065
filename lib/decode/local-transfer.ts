/**
 * This rank's own part of one import: gates, the transport's handles, and the reports it owes.
 *
 * It never touches an allocator. What it learns becomes reports to rank 0 and nothing else (law: local handles only
 * produce reports).
 */
import type { Fence } from '../engine-context.js';
import { engineCallError } from '../engine-call-error.js';
import { HandoffError, isHandoffError } from '../errors.js';
import type { Peer, TransferHandle, TransferRequest, Transport } from '../transfer/transport.js';

/**
 * - `gated`: nothing has started; a connection or a fence is awaited.
 * - `active`: bytes may be moving.
 * - `landed`: all bytes are here and quiet.
 * - `failedActive`: failed, memory may still be written.
 * - `failedQuiet`: failed, and nothing of it touches memory.
 */
export type LocalTransferState = 'gated' | 'active' | 'landed' | 'failedActive' | 'failedQuiet';

/** One source rank's share of the transfer. */
export interface TransferLeg {
  readonly transport: Transport;
  readonly peer: Peer;
  readonly request: TransferRequest;
  /** Called once when the transfer is forgotten: its connection may be closed to make room. */
  readonly release?: () => void;
}

/** What this rank tells rank 0 about an attempt. */
export interface LocalReport {
  readonly failed: boolean;
  readonly safe: boolean;
}

export class LocalTransfer {
  state: LocalTransferState = 'gated';
  error: HandoffError | null = null;
  /** Errors thrown by a transport's own poll; kept for `inspect`, never fatal. */
  pollErrors = 0;
  private readonly handles: TransferHandle[] = [];
  /** A start that threw without saying that its targets are safe: nothing can ever prove this memory quiet. */
  private unprovable = false;
  private reported: LocalReport | null = null;
  private cancelled = false;

  constructor(
    readonly attemptId: number,
    private readonly legs: readonly TransferLeg[],
    private readonly gates: readonly Fence[],
    /** When the handshake must be over, in the clock's milliseconds. */
    readonly handshakeDeadline: number,
    private readonly start: (leg: TransferLeg) => TransferHandle,
    private readonly onPollError: (error: unknown) => void,
  ) {}

  /** A transfer that failed before anything was posted. */
  static failed(attemptId: number, error: HandoffError): LocalTransfer {
    const transfer = new LocalTransfer(attemptId, [], [], Infinity, unreachableStart, () => undefined);
    transfer.error = error;
    transfer.state = 'failedQuiet';
    return transfer;
  }

  get bytesDone(): number {
    return this.handles.reduce((sum, handle) => sum + handle.bytesDone, 0);
  }

  get transportNames(): readonly string[] {
    return [...new Set(this.legs.map((leg) => leg.transport.name))];
  }

  /** What the engine must await before it reads what landed; null when nothing. */
  get landed(): Fence | null {
    const fences = this.handles.flatMap(({ landed }) => (landed === undefined || landed === null ? [] : [landed]));
    if (fences.length === 0) return null;
    return { isComplete: () => fences.every((fence) => fence.isComplete()) };
  }

  /** The transfer is over and its memory is somebody's again: its connections may go. */
  releaseLegs(): void {
    for (const leg of this.legs) leg.release?.();
  }

  /** Handles to watch once the transfer is active. */
  get activeHandles(): readonly TransferHandle[] {
    return this.handles;
  }

  /** Makes whatever progress is possible without waiting. */
  poll(now: number): void {
    if (this.state === 'gated') {
      try {
        this.pollGates(now);
      } catch (error) {
        // A fence or a connection that cannot be asked never opens; nothing has started yet.
        this.fail(engineCallError(error));
      }
    }
    if (this.state === 'active' || this.state === 'failedActive') this.pollHandles();
  }

  /** The report that is owed since the last call, or null. Each distinct report is made once. */
  takeReport(): LocalReport | null {
    const report = this.currentReport();
    if (report === null || (this.reported?.failed === report.failed && this.reported.safe === report.safe)) return null;
    this.reported = report;
    return report;
  }

  /** Stops what can be stopped. Idempotent; the outcome shows in the state. */
  cancel(): void {
    if (this.cancelled) return;
    this.cancelled = true;
    if (this.state === 'gated') {
      this.fail(new HandoffError('TRANSFER_CANCELLED', 'the transfer was cancelled before it started'));
      return;
    }
    for (const handle of this.handles) handle.cancel();
  }

  /** Attested: whoever could touch memory for this transfer is dead. */
  peerAttestedDead(): void {
    for (const handle of this.handles) handle.peerAttestedDead();
    if (this.unprovable) {
      this.unprovable = false;
      if (this.handles.length === 0 && this.state === 'failedActive') this.state = 'failedQuiet';
    }
  }

  private currentReport(): LocalReport | null {
    switch (this.state) {
      case 'landed':
        return { failed: false, safe: true };
      case 'failedQuiet':
        return { failed: true, safe: true };
      case 'failedActive':
        return { failed: true, safe: false };
      default:
        return null;
    }
  }

  private pollGates(now: number): void {
    for (const leg of this.legs) {
      const status = leg.peer.status();
      if (status === 'failed') {
        this.fail(leg.peer.error ?? new HandoffError('PEER_UNREACHABLE', 'the source cannot be reached'));
        return;
      }
      if (status === 'connecting') return this.pollHandshakeDeadline(now);
    }
    if (!this.gates.every((gate) => gate.isComplete())) return this.pollHandshakeDeadline(now);
    this.begin();
  }

  private pollHandshakeDeadline(now: number): void {
    if (now < this.handshakeDeadline) return;
    this.fail(
      new HandoffError('HANDSHAKE_DEADLINE', 'the transfer did not start in time; the source or a fence is late'),
    );
  }

  /** Nothing may start after one leg failed to: what did start is cancelled and awaited. */
  private begin(): void {
    this.state = 'active';
    for (const leg of this.legs) {
      try {
        this.handles.push(this.start(leg));
      } catch (cause) {
        this.noteStartFailure(cause);
        return;
      }
    }
  }

  private noteStartFailure(cause: unknown): void {
    const error = isHandoffError(cause)
      ? cause
      : new HandoffError('TRANSFER_FAILED', `the transport failed to start because ${describe(cause)}`, {
          cause,
          targetSafe: false,
          sourceSafe: false,
        });
    if (!error.targetSafe) {
      const cleanup = (error.details['cleanupHandles'] ?? []) as readonly TransferHandle[];
      if (cleanup.length === 0) this.unprovable = true;
      this.handles.push(...cleanup);
    }
    for (const handle of this.handles) handle.cancel();
    this.error ??= error;
    this.state = 'failedActive';
  }

  private pollHandles(): void {
    let active = false;
    let failed = this.state === 'failedActive';
    let quiet = !this.unprovable;
    for (const handle of this.handles) {
      const status = this.pollHandle(handle);
      if (status === 'active') active = true;
      if (status === 'failed-active' || status === 'failed-quiet') {
        failed = true;
        this.error ??=
          handle.error ?? new HandoffError('TRANSFER_FAILED', 'the transport reported a failure without a reason');
      }
      if (status === 'active' || status === 'failed-active') quiet = false;
    }
    if (failed) {
      // One leg's failure ends all: the others are stopped, and only when every one is quiet is the memory.
      if (this.state !== 'failedActive') for (const handle of this.handles) handle.cancel();
      this.state = quiet ? 'failedQuiet' : 'failedActive';
    } else if (!active) {
      this.state = 'landed';
    }
  }

  private pollHandle(handle: TransferHandle): ReturnType<TransferHandle['poll']> {
    try {
      return handle.poll();
    } catch (error) {
      this.pollErrors += 1;
      this.onPollError(error);
      return this.state === 'failedActive' ? 'failed-active' : 'active';
    }
  }

  private fail(error: HandoffError): void {
    this.error ??= error;
    this.state = 'failedQuiet';
  }
}

function unreachableStart(): never {
  throw new HandoffError('INVARIANT', 'a transfer without legs has nothing to start');
}

function describe(cause: unknown): string {
  return cause instanceof Error ? cause.message : String((cause as { message?: unknown } | null)?.message ?? cause);
}
