/**
 * One pull over NIXL, as the policy polls it, in parts: one a reader. A failure stays `failed-active` until native code has
 * proof for every part: its reads have ended by themselves, or the agent that made them is gone.
 */
import type { HandoffError } from '../../errors.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeNixl } from '../../native/nixl-types.js';
import { transferStatuses } from '../../native/transfer-statuses.js';
import type { TransferHandle, TransferStatus } from '../transport.js';

/** A native transfer: what one reader moves of a pull. */
export interface NixlPart {
  readonly nixl: NativeNixl;
  readonly id: number;
}

export class NixlTransfer implements TransferHandle {
  private last: TransferStatus = 'active';
  private bytes = 0;
  private cancelAsked = false;

  /**
   * @param parts - at least one
   * @param failure - why there are not as many as there should be
   */
  constructor(
    readonly parts: readonly NixlPart[],
    private failure: HandoffError | null = null,
  ) {
    if (failure !== null) this.cancelParts();
  }

  poll(): TransferStatus {
    if (this.isFinal) return this.last;
    const each = this.parts.map(({ nixl, id }) => transferStatuses[native(() => addon().nixlPoll(nixl, id))]);
    const failed = each.findIndex((status) => status === 'failed-quiet' || status === 'failed-active');
    const over = each.every((status) => status === 'done' || status === 'failed-quiet');
    if (failed >= 0) this.fail(this.parts[failed] as NixlPart);
    if (this.failure !== null) this.last = over ? 'failed-quiet' : 'failed-active';
    else if (over) this.last = 'done';
    if (this.isFinal) this.bytes = this.countBytes();
    return this.last;
  }

  /** Nothing can change any more; the native transfers may be forgotten. */
  get isFinal(): boolean {
    return this.last === 'done' || this.last === 'failed-quiet';
  }

  get error(): HandoffError | null {
    this.poll();
    return this.failure;
  }

  get bytesDone(): number {
    this.poll();
    return this.isFinal ? this.bytes : this.countBytes();
  }

  /** True once `cancel` was called. */
  get cancelling(): boolean {
    return this.cancelAsked;
  }

  cancel(): void {
    this.poll();
    if (this.isFinal) return;
    this.cancelAsked = true;
    this.cancelParts();
  }

  /** Ends the connection to the dead peer, which proves that nothing of this transfer touches memory. */
  peerAttestedDead(): void {
    this.poll();
    if (this.isFinal) return;
    for (const { nixl, id } of this.parts) native(() => addon().nixlAttest(nixl, id));
  }

  /** Lets go of the native transfers. Once, and only when it is final. */
  forget(): void {
    for (const { nixl, id } of this.parts) native(() => addon().nixlForget(nixl, id));
  }

  /** The first failure is the transfer's, and nothing of the other parts starts any more. */
  private fail({ nixl, id }: NixlPart): void {
    if (this.failure !== null) return;
    this.failure = fromNative(native(() => addon().nixlError(nixl, id)));
    this.cancelParts();
  }

  private cancelParts(): void {
    for (const { nixl, id } of this.parts) native(() => addon().nixlCancel(nixl, id));
  }

  private countBytes(): number {
    return this.parts.reduce((sum, { nixl, id }) => sum + native(() => addon().nixlBytes(nixl, id)), 0);
  }
}
