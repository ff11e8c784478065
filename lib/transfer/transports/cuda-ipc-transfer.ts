/**
 * One pull over CUDA IPC, as the policy polls it. Ends in `done` or `failed-quiet` after its last launch is over; when the
 * GPU is lost it stays `failed-active`, for nothing proves its memory quiet.
 */
import type { HandoffError } from '../../errors.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeCudaIpc } from '../../native/cuda-types.js';
import type { TransferHandle, TransferStatus } from '../transport.js';

const statuses = ['active', 'done', 'failed-quiet', 'failed-active'] as const;

export class CudaIpcTransfer implements TransferHandle {
  private status: TransferStatus = 'active';
  private failure: HandoffError | null = null;
  private bytes = 0;
  private cancelAsked = false;

  /** @param id - the native transfer */
  constructor(
    private readonly ipc: NativeCudaIpc,
    readonly id: number,
  ) {}

  poll(): TransferStatus {
    if (this.status !== 'active') return this.status;
    const status = statuses[native(() => addon().cudaIpcPoll(this.ipc, this.id))];
    if (status === 'active') return status;
    this.bytes = native(() => addon().cudaIpcBytes(this.ipc, this.id));
    this.failure = status === 'done' ? null : fromNative(native(() => addon().cudaIpcError(this.ipc, this.id)));
    this.status = status;
    return status;
  }

  get error(): HandoffError | null {
    this.poll();
    return this.failure;
  }

  get bytesDone(): number {
    if (this.poll() !== 'active') return this.bytes;
    return native(() => addon().cudaIpcBytes(this.ipc, this.id));
  }

  /** True once `cancel` was called; the transfer ends with its last launch. */
  get cancelling(): boolean {
    return this.cancelAsked;
  }

  cancel(): void {
    if (this.poll() !== 'active') return;
    this.cancelAsked = true;
    native(() => addon().cudaIpcCancel(this.ipc, this.id));
  }

  /** Nothing to do: only this process writes for a pull, and a lost GPU is this process's own. */
  peerAttestedDead(): void {}
}
