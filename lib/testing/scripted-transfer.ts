/**
 * One scripted transfer: bytes that move piece by piece as simulated time goes on, and what each end is told of it.
 *
 * The two are kept apart on purpose. A transfer can have failed for its handle while its bytes still arrive, and it can
 * be stuck for ever while its handle says `active`. Once a handle is quiet, no byte moves any more.
 */
import type { Fence } from '../engine-context.js';
import { HandoffError, type HandoffErrorCode } from '../errors.js';
import { invariant } from '../invariant.js';
import type { TransferHandle, TransferRequest, TransferStatus } from '../transfer/transport.js';
import { joinMoves, movedBytes, moveStride, type Moves } from './copy-moves.js';
import type { ScriptedTransport } from './scripted-transport.js';
import type { TransferFault, TransferPlan } from './transfer-script.js';

/** One end of a scripted transfer. */
export type TransferSide = 'source' | 'target';

/** What one end of a scripted transfer sees. */
export class ScriptedHandle implements TransferHandle {
  status: TransferStatus = 'active';
  error: HandoffError | null = null;
  landed: Fence | null = null;
  pollThrowsLeft: number;
  /** Whether its owner has asked it to stop. */
  cancelAsked = false;

  constructor(
    readonly owner: ScriptedTransport,
    readonly transfer: ScriptedTransfer,
    readonly side: TransferSide,
  ) {
    const { fault } = transfer.plan;
    this.pollThrowsLeft = fault?.kind === 'poll-throws' ? fault.times : 0;
  }

  /** Whether nothing of this transfer can touch this end's memory any more. */
  get isFinal(): boolean {
    return this.status === 'done' || this.status === 'failed-quiet';
  }

  get bytesDone(): number {
    return this.transfer.bytesMoved;
  }

  poll(): TransferStatus {
    if (this.pollThrowsLeft > 0) {
      this.pollThrowsLeft--;
      this.owner.noteChanged(this); // its status is still to be told
      throw new HandoffError('TRANSFER_FAILED', 'the poll failed because the script says so');
    }
    return this.status;
  }

  cancel(): void {
    this.cancelAsked = true;
    this.transfer.cancel(this);
  }

  peerAttestedDead(): void {
    this.transfer.attestDead(this);
  }

  /** Sets the final status. */
  settle(status: TransferStatus, error: HandoffError | null): void {
    invariant(!this.isFinal, 'a transfer ends once', { tag: this.transfer.tag, status: this.status, next: status });
    this.status = status;
    this.error ??= error;
    if (this.transfer.hasHandle) this.owner.noteChanged(this);
  }
}

/** The bytes of one transfer and their fate. Created by {@link ScriptedTransport.begin}; read only for others. */
export class ScriptedTransfer {
  /** The target's end; for a push null until the target has begun. */
  targetEnd: ScriptedHandle | null = null;
  /** The source's end; null for a pull, and for a push until the source has begun. */
  sourceEnd: ScriptedHandle | null = null;
  /** The target's request; null until the target has begun. */
  request: TransferRequest | null = null;
  /** False for a transfer whose `begin` threw: bytes move, but no handle was given out. */
  hasHandle = true;
  /** Whether a byte may still be written. */
  isMoving = false;
  bytesMoved = 0;
  /** The process at one end is gone. */
  deadSide: TransferSide | null = null;
  #sent: Moves | null = null;
  #received: Moves | null = null;
  #moves: Moves = [];
  #move = 0;
  #moveUsed = 0;
  #totalBytes = 0;
  #cancelled = false;
  #faultTaken = false;
  #toldQuiet = false;

  constructor(
    readonly source: ScriptedTransport,
    readonly target: ScriptedTransport,
    readonly tag: string,
    readonly plan: TransferPlan,
  ) {}

  get #fault(): TransferFault | null {
    return this.plan.fault;
  }

  /**
   * Whether this transfer is known to be over for the target's memory: its handle says so, or, where none was given
   * out, the source's process is gone and nothing arrives any more.
   */
  get isQuiet(): boolean {
    if (this.hasHandle) return this.targetEnd?.isFinal ?? true;
    return this.deadSide !== null && !this.isMoving;
  }

  /** Whether one end has nothing to do with it any more. */
  isOver(side: TransferSide): boolean {
    if (side === 'target') return this.isQuiet;
    return this.sourceEnd === null || this.sourceEnd.isFinal;
  }

  /** A pull: what it moves is known and it starts. */
  startPull(request: TransferRequest, moves: Moves): ScriptedHandle {
    this.request = request;
    this.targetEnd = new ScriptedHandle(this.target, this, 'target');
    this.#start(moves);
    return this.targetEnd;
  }

  /** A push: one end has begun. Bytes move once both have. */
  join(side: TransferSide, request: TransferRequest, moves: Moves): ScriptedHandle {
    const handle = new ScriptedHandle(side === 'target' ? this.target : this.source, this, side);
    if (side === 'target') {
      this.targetEnd = handle;
      this.request = request;
      this.#received = moves;
    } else {
      this.sourceEnd = handle;
      this.#sent = moves;
    }
    const other = side === 'target' ? this.sourceEnd : this.targetEnd;
    if (other !== null && other.status === 'failed-quiet') {
      handle.settle('failed-quiet', this.#error('PEER_LOST', 'the other end gave up before this one began'));
      return handle;
    }
    if (this.#sent === null || this.#received === null) return handle;
    const joined = joinMoves(this.#sent, this.#received);
    if (joined === null)
      this.#fail('failed-quiet', 'TRANSFER_FAILED', 'the two ends disagree about the number of bytes');
    else this.#start(joined);
    return handle;
  }

  /** Its owner asks to stop. */
  cancel(handle: ScriptedHandle): void {
    if (this.#cancelled || handle.status !== 'active') return;
    this.#cancelled = true;
    if (this.#fault?.kind === 'late-done') return;
    if (!handle.owner.capabilities.provesQuietOnCancel) {
      handle.settle('failed-active', this.#error('TRANSFER_CANCELLED', 'it was cancelled', false));
      return;
    }
    const stop = (): void => {
      if (handle.status !== 'active') return;
      this.#fail('failed-quiet', 'TRANSFER_CANCELLED', 'it was cancelled');
    };
    if (this.plan.cancelAfterMs === 0) stop();
    else this.#after(this.plan.cancelAfterMs, stop);
  }

  /** Its peer is attested dead. */
  attestDead(handle: ScriptedHandle): void {
    if (handle.isFinal) return;
    const peerSide = handle.side === 'target' ? 'source' : 'target';
    const peer = peerSide === 'source' ? this.source : this.target;
    // A false attestation is obeyed, and the bytes that keep coming convict whoever gave it.
    if (peer.isDead) this.isMoving = false;
    handle.settle('failed-quiet', this.#error('PEER_LOST', 'the peer is attested dead'));
    this.#tellQuiet();
  }

  /** The process of one end is gone. */
  noteDeath(side: TransferSide): void {
    this.deadSide = side;
    const { outcome, lingerMs } = this.plan.peerDeath;
    const survivor = side === 'source' ? this.targetEnd : this.sourceEnd;
    if (side === 'target' || lingerMs === 0) this.isMoving = false;
    else this.#after(lingerMs, () => this.#stop());
    if (survivor?.status === 'active' && outcome !== 'silent') {
      if (outcome === 'noticed') this.isMoving = false;
      const status = outcome === 'noticed' ? 'failed-quiet' : 'failed-active';
      survivor.settle(status, this.#error('PEER_LOST', 'the peer is gone', outcome === 'noticed'));
    }
    this.#tellQuiet();
  }

  #start(moves: Moves): void {
    this.#moves = moves;
    this.#totalBytes = movedBytes(moves);
    if (this.#fault?.kind === 'drop') return;
    this.isMoving = true;
    if (this.request!.programs.length === 0 && this.#fault === null) return this.#complete();
    this.#after(this.plan.startAfterMs, () => {
      if (!this.isMoving) return;
      if (this.#isExpired())
        return this.#fail('failed-quiet', 'HANDOFF_EXPIRED', 'the source let go of its state before it was read');
      this.#piece(0);
    });
  }

  #piece(index: number): void {
    if (!this.isMoving) return;
    const { pieces, pieceMs } = this.plan;
    if (this.#takeFault(index) || !this.isMoving) return;
    if (index >= pieces) return this.#complete();
    if (this.#fault?.kind === 'late-done' && index === pieces - 1 && !this.#faultTaken) {
      this.#faultTaken = true;
      return this.#after(this.#fault.afterMs, () => this.#piece(index));
    }
    this.#copyUpTo(index + 1 === pieces ? this.#totalBytes : Math.floor((this.#totalBytes * (index + 1)) / pieces));
    if (index + 1 >= pieces) return this.#piece(index + 1);
    this.#after(pieceMs, () => this.#piece(index + 1));
  }

  /** Returns whether the fault ends the movement of bytes. */
  #takeFault(index: number): boolean {
    const fault = this.#fault;
    if (fault === null || !('afterPieces' in fault) || this.#faultTaken) return false;
    if (index < Math.min(fault.afterPieces, this.plan.pieces)) return false;
    this.#faultTaken = true;
    if (fault.kind === 'stall') {
      this.isMoving = false;
      return true;
    }
    if (fault.kind === 'peer-restart') {
      this.source.network.kill(this.source);
      return !this.isMoving;
    }
    if (fault.proof === 'now') {
      this.#fail('failed-quiet', 'TRANSFER_FAILED', 'the script says so');
      return true;
    }
    if (!fault.keepsWriting) this.isMoving = false;
    this.#fail('failed-active', 'TRANSFER_FAILED', 'the script says so', false);
    if (fault.proof === 'later') this.#after(fault.proofAfterMs, () => this.#proveQuiet());
    return !this.isMoving;
  }

  /** The last byte is in place. Whether that is told depends on what was told before. */
  #complete(): void {
    this.isMoving = false;
    const expired = this.#isExpired();
    for (const end of [this.targetEnd, this.sourceEnd]) {
      if (end === null || end.isFinal) continue;
      if (end.status === 'failed-active') {
        // Only a cancel is proved by the end of the bytes; a scripted error has its own time, or none.
        if (this.#cancelled && this.deadSide === null && !this.#faultTaken) end.settle('failed-quiet', null);
      } else if (expired) {
        end.settle('failed-quiet', this.#error('HANDOFF_EXPIRED', 'the source let go of its state while it was read'));
      } else if (this.#cancelled && this.#fault?.kind === 'late-done' && this.#fault.end === 'failed-quiet') {
        end.settle('failed-quiet', this.#error('TRANSFER_CANCELLED', 'it was cancelled'));
      } else {
        this.#settleDone(end);
      }
    }
    this.#tellQuiet();
  }

  #settleDone(end: ScriptedHandle): void {
    if (end.side === 'target' && this.plan.landedAfterMs !== null) {
      const { clock } = this.source.network;
      const landedMs = clock.now() + this.plan.landedAfterMs;
      end.landed = { isComplete: () => clock.now() >= landedMs };
    }
    end.settle('done', null);
    if (this.#fault?.kind !== 'duplicate') return;
    for (let i = 1; i <= this.#fault.times; i++) this.#after(i * this.#fault.everyMs, () => end.owner.noteChanged(end));
  }

  #fail(status: 'failed-active' | 'failed-quiet', code: HandoffErrorCode, why: string, isSafe = true): void {
    if (status === 'failed-quiet') this.isMoving = false;
    for (const end of [this.targetEnd, this.sourceEnd]) {
      if (end !== null && !end.isFinal && end.status !== status) end.settle(status, this.#error(code, why, isSafe));
    }
    this.#tellQuiet();
  }

  #proveQuiet(): void {
    this.isMoving = false;
    for (const end of [this.targetEnd, this.sourceEnd])
      if (end?.status === 'failed-active') end.settle('failed-quiet', null);
    this.#tellQuiet();
  }

  #stop(): void {
    this.isMoving = false;
    this.#tellQuiet();
  }

  #tellQuiet(): void {
    if (this.#toldQuiet || !this.isQuiet) return;
    this.#toldQuiet = true;
    this.source.network.noteQuiet(this);
  }

  #isExpired(): boolean {
    const { request } = this;
    if (request === null || request.generations === null) return false;
    const { blocks, blockGenerations, slots, slotGenerations } = request.generations;
    return (
      differs(this.source.generations?.blocks?.generationsOf(blocks) ?? null, blockGenerations) ||
      differs(this.source.generations?.slots?.generationsOf(slots) ?? null, slotGenerations)
    );
  }

  #copyUpTo(end: number): void {
    const { network } = this.source;
    const { onRead, onWrite } = network;
    const moves = this.#moves;
    while (this.bytesMoved < end) {
      const at = this.#move * moveStride;
      const from = moves[at + 1]! + this.#moveUsed;
      const to = moves[at + 3]! + this.#moveUsed;
      const bytes = Math.min(moves[at + 4]! - this.#moveUsed, end - this.bytesMoved);
      onRead?.(this.source, moves[at]!, from, bytes, this);
      onWrite?.(this.target, moves[at + 2]!, to, bytes, this.tag, this);
      this.target.bytesOf(moves[at + 2]!).set(this.source.bytesOf(moves[at]!).subarray(from, from + bytes), to);
      this.bytesMoved += bytes;
      this.#moveUsed += bytes;
      if (this.#moveUsed === moves[at + 4]) {
        this.#move++;
        this.#moveUsed = 0;
      }
    }
  }

  #after(ms: number, then: () => void): void {
    this.source.network.clock.after(ms, then);
  }

  #error(code: HandoffErrorCode, why: string, isSafe = true): HandoffError {
    return new HandoffError(code, `the transfer failed because ${why} (tag ${this.tag})`, {
      sourceSafe: isSafe,
      targetSafe: isSafe,
    });
  }
}

function differs(now: BigUint64Array | null, then: BigUint64Array): boolean {
  if (now === null) return false;
  return then.some((generation, index) => generation !== now[index]);
}
