/**
 * One pull over the host transport, as the policy polls it. Ends in `done` or `failed-quiet`, never in doubt: native
 * code reports an end only after the last copying thread is out.
 */
import { HandoffError, type HandoffErrorCode } from '../../errors.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeHost } from '../../native/transfer-types.js';
import type { TransferHandle, TransferStatus } from '../transport.js';

export class HostTransfer implements TransferHandle {
  private status: TransferStatus = 'active';
  private failure: HandoffError | null = null;
  private bytes = 0;
  private cancelAsked = false;

  /** @param id - the native transfer */
  constructor(
    private readonly host: NativeHost,
    readonly id: number,
  ) {}

  poll(): TransferStatus {
    if (this.status !== 'active') return this.status;
    const status = native(() => addon().hostPoll(this.host, this.id));
    if (status === 0) return 'active';
    this.bytes = native(() => addon().hostBytes(this.host, this.id));
    this.failure = status === 1 ? null : fromNative(native(() => addon().hostError(this.host, this.id)));
    this.status = status === 1 ? 'done' : 'failed-quiet';
    return this.status;
  }

  get error(): HandoffError | null {
    this.poll();
    return this.failure;
  }

  get bytesDone(): number {
    if (this.poll() !== 'active') return this.bytes;
    return native(() => addon().hostBytes(this.host, this.id));
  }

  /** True once `cancel` was called; the transfer ends within one chunk of every thread. */
  get cancelling(): boolean {
    return this.cancelAsked;
  }

  cancel(): void {
    if (this.poll() !== 'active') return;
    this.cancelAsked = true;
    native(() => addon().hostCancel(this.host, this.id));
  }

  /** Nothing to do: only this process writes for a pull, and it always proves its quiet. */
  peerAttestedDead(): void {}
}

/** A transfer that ended where it began. */
export class SettledTransfer implements TransferHandle {
  readonly bytesDone = 0;

  private constructor(
    private readonly status: 'done' | 'failed-quiet',
    readonly error: HandoffError | null,
  ) {}

  static done(): SettledTransfer {
    return new SettledTransfer('done', null);
  }

  static failed(code: HandoffErrorCode, message: string, cause?: unknown): SettledTransfer {
    return new SettledTransfer('failed-quiet', new HandoffError(code, message, { cause }));
  }

  poll(): TransferStatus {
    return this.status;
  }

  cancel(): void {}

  peerAttestedDead(): void {}
}
