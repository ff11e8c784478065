/**
 * One pull from a peer's memory as this process maps it, as the policy polls it. Ends in `done` or `failed-quiet`: native
 * code reports an end only after the last copying thread is out, or the last launch is over. Where a GPU copies and is lost it
 * stays `failed-active`, for nothing proves its memory quiet.
 */
import type { HandoffError } from '../../errors.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { BrokerCalls } from '../../native/broker-types.js';
import { transferStatuses } from '../../native/transfer-statuses.js';
import type { TransferHandle, TransferStatus } from '../transport.js';

export class BrokerPull implements TransferHandle {
  private status: TransferStatus = 'active';
  private failure: HandoffError | null = null;
  private bytes = 0;
  private cancelAsked = false;

  /** @param id - the native transfer */
  constructor(
    private readonly calls: BrokerCalls,
    private readonly endpoint: object,
    readonly id: number,
  ) {}

  poll(): TransferStatus {
    if (this.status !== 'active') return this.status;
    const status = transferStatuses[native(() => this.calls.poll(this.endpoint, this.id))];
    if (status === 'active') return status;
    this.bytes = this.countBytes();
    this.failure = status === 'done' ? null : fromNative(native(() => this.calls.error(this.endpoint, this.id)));
    this.status = status;
    return status;
  }

  get error(): HandoffError | null {
    this.poll();
    return this.failure;
  }

  get bytesDone(): number {
    return this.poll() === 'active' ? this.countBytes() : this.bytes;
  }

  /** True once `cancel` was called; the transfer ends within one chunk of every thread, or with its last launch. */
  get cancelling(): boolean {
    return this.cancelAsked;
  }

  cancel(): void {
    if (this.poll() !== 'active') return;
    this.cancelAsked = true;
    native(() => this.calls.cancel(this.endpoint, this.id));
  }

  /** Nothing to do: only this process writes for a pull, and a lost GPU is this process's own. */
  peerAttestedDead(): void {}

  private countBytes(): number {
    return native(() => this.calls.bytes(this.endpoint, this.id));
  }
}
