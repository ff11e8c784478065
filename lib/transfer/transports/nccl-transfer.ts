/**
 * One end of a push over NCCL, as the policy polls it. It waits for its turn and for the other end, then native code has
 * it; an end that never had it is quiet.
 */
import { HandoffError, type HandoffErrorCode } from '../../errors.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { EncodedProgram } from '../../native/encoded-program.js';
import type { NativeNccl } from '../../native/nccl-types.js';
import { transferStatuses } from '../../native/transfer-statuses.js';
import type { TransferHandle, TransferStatus } from '../transport.js';

export class NcclTransfer implements TransferHandle {
  private last: TransferStatus = 'active';
  private failure: HandoffError | null = null;
  private bytes = 0;
  /** The native transfer; 0 before both ends have agreed. */
  private id = 0;
  /** `cancel` was called. */
  cancelling = false;

  constructor(
    private readonly nccl: NativeNccl,
    readonly tag: string,
    readonly program: EncodedProgram,
    /** Of the whole program, as both ends count it. */
    readonly programBytes: number,
    private readonly onCancel: (transfer: NcclTransfer) => void,
  ) {}

  get isOver(): boolean {
    return this.last === 'done' || this.last === 'failed-quiet';
  }

  get nativeId(): number {
    return this.id;
  }

  /** Both ends agreed: posts this one. */
  start(comm: number, sends: boolean, peerBytes: BigUint64Array): void {
    const { rectangles, tables, rows } = this.program;
    this.id = native(() => addon().ncclBegin(this.nccl, comm, sends, rectangles, tables, rows, peerBytes));
  }

  /** Ends what was never posted. */
  refuse(code: HandoffErrorCode, message: string): void {
    if (this.id !== 0 || this.isOver) return;
    this.failure = new HandoffError(code, message);
    this.last = 'failed-quiet';
  }

  poll(): TransferStatus {
    if (this.isOver || this.id === 0) return this.last;
    this.last = transferStatuses[native(() => addon().ncclPoll(this.nccl, this.id))];
    this.bytes = native(() => addon().ncclBytes(this.nccl, this.id));
    if (this.last === 'failed-quiet' || this.last === 'failed-active') {
      this.failure ??= fromNative(native(() => addon().ncclError(this.nccl, this.id)));
    }
    return this.last;
  }

  get error(): HandoffError | null {
    this.poll();
    return this.failure;
  }

  get bytesDone(): number {
    this.poll();
    return this.bytes;
  }

  cancel(): void {
    if (this.cancelling || this.poll() !== 'active') return;
    this.cancelling = true;
    this.onCancel(this);
  }

  /** An abort needs nobody on the other side. */
  peerAttestedDead(): void {
    this.cancel();
  }
}
