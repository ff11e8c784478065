/**
 * One end of a pair of ranks: its connection, its communicator, and the pushes that pass over it one after the other. A
 * pair that fails costs its communicator and what is under way on it; what waits is refused and quiet.
 */
import { HandoffError, type HandoffErrorCode } from '../../errors.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeNccl } from '../../native/nccl-types.js';
import type { NcclLine, NcclMessage } from './nccl-wire.js';
import type { ExpectedPushes } from './nccl-expected.js';
import type { NcclTransfer } from './nccl-transfer.js';

const uniqueIdBytes = 128;
/** The next is agreed upon while one is under way, so that nothing waits for the word between them. */
const postedMax = 2;

/** What both ends have in common. */
abstract class NcclPair {
  protected line: NcclLine | null = null;
  protected comm = 0;
  /** Posted, and not over: native code runs them one after the other. */
  protected posted: readonly NcclTransfer[] = [];
  private failed: HandoffError | null = null;

  constructor(
    protected readonly nccl: NativeNccl,
    /** Something may have changed. */
    protected readonly onChange: () => void,
  ) {}

  attach(line: NcclLine): void {
    this.line = line;
  }

  get error(): HandoffError | null {
    if (this.failed === null && this.comm !== 0 && native(() => addon().ncclCommStatus(this.nccl, this.comm)) === 2) {
      const { code, message } = fromNative(native(() => addon().ncclCommError(this.nccl, this.comm)));
      this.fail(code, message);
    }
    return this.failed;
  }

  get isReady(): boolean {
    return this.error === null && this.comm !== 0 && native(() => addon().ncclCommStatus(this.nccl, this.comm)) === 1;
  }

  /** Whether it has this one posted. */
  holds(transfer: NcclTransfer): boolean {
    return this.posted.includes(transfer);
  }

  /** Ends it, with whatever passes over it. Idempotent. */
  fail(code: HandoffErrorCode, message: string): void {
    if (this.failed !== null) return;
    this.failed = new HandoffError(code, message);
    this.line?.close();
    if (this.comm !== 0)
      native(() => addon().ncclAbort(this.nccl, this.comm, code === 'PEER_LOST', message.slice(0, 1000)));
    this.refuseWaiting(this.failed);
    this.onChange();
  }

  /** Looks which of what was posted is over, and posts the next. */
  turn(): void {
    if (this.error !== null) return;
    this.posted = this.posted.filter((transfer) => transfer.poll() === 'active');
    if (this.posted.length < postedMax) this.next();
  }

  abstract receive(message: NcclMessage): void;
  protected abstract next(): void;
  protected abstract refuseWaiting(error: HandoffError): void;
}

/** The source's end: announces what it has, in order, and sends when the target says so. */
export class NcclSourcePair extends NcclPair {
  private readonly queue: NcclTransfer[] = [];
  private announced: NcclTransfer | null = null;

  constructor(
    nccl: NativeNccl,
    private readonly targetBytes: BigUint64Array,
    onChange: () => void,
  ) {
    super(nccl, onChange);
  }

  push(transfer: NcclTransfer): void {
    this.queue.push(transfer);
    this.turn();
  }

  /** Gives up one that was not posted; the target need not wait for it. */
  drop(transfer: NcclTransfer): void {
    const at = this.queue.indexOf(transfer);
    if (at >= 0) {
      this.queue.splice(at, 1);
      this.line?.send({ kind: 'drop', tag: transfer.tag });
    }
    // The target may have begun to receive: only an abort tells it.
    if (this.announced === transfer) this.fail('TRANSFER_CANCELLED', 'a push that was announced was cancelled');
  }

  override receive(message: NcclMessage): void {
    if (message.kind === 'join' && this.comm === 0) {
      const uniqueId = Uint8Array.from(Buffer.from(message.uniqueId, 'base64'));
      if (uniqueId.length !== uniqueIdBytes) return this.fail('PEER_REFUSED', 'the target gave no unique id of NCCL');
      this.comm = native(() => addon().ncclJoin(this.nccl, uniqueId, 0));
    } else if ((message.kind === 'go' || message.kind === 'no') && this.announced?.tag === message.tag) {
      const transfer = this.announced;
      this.announced = null;
      if (message.kind === 'no') {
        transfer.refuse('PEER_REFUSED', `the target does not take the push: ${message.why}`);
        this.onChange();
      } else {
        this.posted = [...this.posted, transfer];
        transfer.start(this.comm, true, this.targetBytes);
      }
      this.turn();
    } else {
      this.fail('PEER_REFUSED', `the target said ${message.kind} out of turn`);
    }
  }

  protected override next(): void {
    if (!this.isReady || this.announced !== null) return;
    const transfer = this.queue.shift();
    if (transfer === undefined) return;
    this.announced = transfer;
    this.line?.send({ kind: 'push', tag: transfer.tag, bytes: transfer.programBytes });
  }

  protected override refuseWaiting({ code, message }: HandoffError): void {
    for (const each of this.queue.splice(0)) each.refuse(code, message);
    this.announced?.refuse(code, message);
    this.announced = null;
  }
}

/** The target's end: gives the unique id, and says go when the push that was announced is expected here. */
export class NcclTargetPair extends NcclPair {
  private announced: { readonly tag: string; readonly bytes: number } | null = null;
  private sourceBytes: BigUint64Array | null = null;

  constructor(
    nccl: NativeNccl,
    private readonly knowsToken: (token: string) => boolean,
    private readonly expected: ExpectedPushes,
    onChange: () => void,
  ) {
    super(nccl, onChange);
  }

  /** Whether the source has said who it is. */
  get isKnown(): boolean {
    return this.sourceBytes !== null;
  }

  override receive(message: NcclMessage): void {
    if (message.kind === 'hello' && this.sourceBytes === null) {
      if (!this.knowsToken(message.token)) return this.fail('PEER_REFUSED', 'the source does not know the token');
      this.sourceBytes = BigUint64Array.from(message.regions, BigInt);
      const uniqueId = native(() => addon().ncclUniqueId(this.nccl));
      this.line?.send({ kind: 'join', uniqueId: Buffer.from(uniqueId).toString('base64') });
      this.comm = native(() => addon().ncclJoin(this.nccl, uniqueId, 1));
    } else if (message.kind === 'push' && this.sourceBytes !== null && this.announced === null) {
      this.announced = { tag: message.tag, bytes: message.bytes };
      this.turn();
    } else if (message.kind === 'drop' && this.sourceBytes !== null) {
      this.expected.take(message.tag)?.refuse('TRANSFER_CANCELLED', 'the source gave the push up');
      this.onChange();
    } else {
      this.fail('PEER_REFUSED', `the source said ${message.kind} out of turn`);
    }
  }

  protected override next(): void {
    if (this.announced === null || this.sourceBytes === null) return;
    const { tag, bytes } = this.announced;
    if (this.expected.isGivenUp(tag)) return this.decline(tag, 'it was given up here');
    const transfer = this.expected.take(tag);
    // Not asked for yet: the source waits, as it would for a receive.
    if (transfer === undefined) return;
    if (transfer.programBytes !== bytes) {
      const why = `${transfer.programBytes} bytes are expected and ${bytes} announced`;
      transfer.refuse('INCOMPATIBLE', `the push does not fit: ${why}`);
      return this.decline(tag, why);
    }
    this.announced = null;
    this.posted = [...this.posted, transfer];
    transfer.start(this.comm, false, this.sourceBytes);
    this.line?.send({ kind: 'go', tag });
  }

  protected override refuseWaiting(): void {
    this.announced = null;
  }

  private decline(tag: string, why: string): void {
    this.announced = null;
    this.line?.send({ kind: 'no', tag, why });
    this.onChange();
  }
}
