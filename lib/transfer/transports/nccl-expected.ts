/**
 * The pushes that a target gets ready for, by tag: who is to send them, and which are given up, so that a source that
 * comes with one later is turned away instead of kept waiting.
 */
import type { HandoffErrorCode } from '../../errors.js';
import type { Peer } from '../transport.js';
import type { NcclTransfer } from './nccl-transfer.js';

/** So many tags that were given up are remembered; the source of an older one waits until it is cancelled. */
const givenUpMax = 16_384;

export class ExpectedPushes {
  private readonly waiting = new Map<string, { readonly transfer: NcclTransfer; readonly peer: Peer }>();
  /** Oldest first. */
  private readonly givenUp = new Set<string>();

  /** False when one of that tag is expected already. */
  add(transfer: NcclTransfer, peer: Peer): boolean {
    if (this.waiting.has(transfer.tag)) return false;
    this.givenUp.delete(transfer.tag);
    this.waiting.set(transfer.tag, { transfer, peer });
    return true;
  }

  /** What waits for a push of this tag, from now on nobody else's. */
  take(tag: string): NcclTransfer | undefined {
    const found = this.waiting.get(tag)?.transfer;
    this.waiting.delete(tag);
    return found;
  }

  isGivenUp(tag: string): boolean {
    return this.givenUp.has(tag);
  }

  /** Ends what was expected under the tag of `transfer`, if it is this one. */
  giveUp(transfer: NcclTransfer): void {
    const { tag } = transfer;
    if (this.waiting.get(tag)?.transfer !== transfer) return;
    this.waiting.delete(tag);
    this.givenUp.add(tag);
    const [oldest] = this.givenUp;
    if (this.givenUp.size > givenUpMax && oldest !== undefined) this.givenUp.delete(oldest);
  }

  /** Ends what only this peer could send; null: what anybody could. */
  refuse(peer: Peer | null, code: HandoffErrorCode, message: string): void {
    for (const { transfer, peer: from } of [...this.waiting.values()]) {
      if (peer !== null && from !== peer) continue;
      transfer.refuse(code, message);
      this.giveUp(transfer);
    }
  }
}
