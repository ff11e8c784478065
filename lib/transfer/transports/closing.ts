/** How a transport closes: once, and not while transfers are under way that nobody cancelled. */
import { HandoffError } from '../../errors.js';
import type { TransferHandle } from '../transport.js';

/** A transfer that knows whether `cancel` was called. */
interface Cancellable extends TransferHandle {
  readonly cancelling: boolean;
}

export class Closing {
  private ending: Promise<void> | null = null;

  /**
   * @param transport - its name
   * @param unsafe - whose memory may be touched by what is under way
   */
  constructor(
    private readonly transport: string,
    private readonly unsafe: { readonly targetSafe: false; readonly sourceSafe?: false } = { targetSafe: false },
  ) {}

  get hasBegun(): boolean {
    return this.ending !== null;
  }

  /** @throws `CLOSED` */
  requireOpen(): void {
    if (this.hasBegun) throw new HandoffError('CLOSED', `the ${this.transport} transport is closed`);
  }

  /**
   * Idempotent.
   *
   * @param doubt - why memory in doubt cannot be proved quiet by closing; absent where closing is the proof
   * @throws (rejects) `MEMORY_IN_DOUBT`
   */
  close(transfers: Iterable<Cancellable>, stop: () => Promise<void>, doubt?: string): Promise<void> {
    if (this.ending !== null) return this.ending;
    for (const transfer of transfers) {
      const status = transfer.poll();
      if (status === 'active' && !transfer.cancelling) {
        return this.refuse('transfers are under way; cancel them first');
      }
      if (status === 'failed-active' && doubt !== undefined) return this.refuse(doubt);
    }
    this.ending = stop();
    return this.ending;
  }

  private refuse(why: string): Promise<never> {
    const message = `the ${this.transport} transport does not close because ${why}`;
    return Promise.reject(new HandoffError('MEMORY_IN_DOUBT', message, this.unsafe));
  }
}
