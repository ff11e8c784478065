/**
 * One pull over NIXL, as the policy polls it. A failure stays `failed-active` until native code has proof: its reads have
 * ended by themselves, or the agent that made them is gone.
 */
import type { HandoffError } from '../../errors.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeNixl } from '../../native/nixl-types.js';
import type { TransferHandle, TransferStatus } from '../transport.js';

const statuses = ['active', 'done', 'failed-quiet', 'failed-active'] as const;

export class NixlTransfer implements TransferHandle {
  private last: TransferStatus = 'active';
  private failure: HandoffError | null = null;
  private bytes = 0;
  private cancelAsked = false;

  /** @param id - the native transfer */
  constructor(
    private readonly nixl: NativeNixl,
    readonly id: number,
  ) {}

  poll(): TransferStatus {
    if (this.isFinal) return this.last;
    this.last = statuses[native(() => addon().nixlPoll(this.nixl, this.id))];
    if (this.last === 'active') return this.last;
    this.bytes = native(() => addon().nixlBytes(this.nixl, this.id));
    if (this.last !== 'done') this.failure ??= fromNative(native(() => addon().nixlError(this.nixl, this.id)));
    return this.last;
  }

  /** Nothing can change any more; the native transfer may be forgotten. */
  get isFinal(): boolean {
    return this.last === 'done' || this.last === 'failed-quiet';
  }

  get error(): HandoffError | null {
    this.poll();
    return this.failure;
  }

  get bytesDone(): number {
    this.poll();
    return this.isFinal ? this.bytes : native(() => addon().nixlBytes(this.nixl, this.id));
  }

  /** True once `cancel` was called. */
  get cancelling(): boolean {
    return this.cancelAsked;
  }

  cancel(): void {
    this.poll();
    if (this.isFinal) return;
    this.cancelAsked = true;
    native(() => addon().nixlCancel(this.nixl, this.id));
  }

  /** Ends the connection to the dead peer, which proves that nothing of this transfer touches memory. */
  peerAttestedDead(): void {
    this.poll();
    if (!this.isFinal) native(() => addon().nixlAttest(this.nixl, this.id));
  }
}
