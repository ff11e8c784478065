/** Transfers that ended where they began: with nothing to move, or refused before anything moved. */
import { HandoffError, type HandoffErrorCode } from '../../errors.js';
import type { TransferHandle, TransferStatus } from '../transport.js';
import type { WakeListener } from './wake-listener.js';

class SettledTransfer implements TransferHandle {
  readonly bytesDone = 0;

  constructor(readonly error: HandoffError | null) {}

  poll(): TransferStatus {
    return this.error === null ? 'done' : 'failed-quiet';
  }

  cancel(): void {}

  peerAttestedDead(): void {}
}

/** Those that nobody has taken yet; the first of them wakes the owner. */
export class SettledTransfers {
  private waiting: TransferHandle[] = [];

  constructor(private readonly wake: WakeListener) {}

  done(): TransferHandle {
    return this.add(new SettledTransfer(null));
  }

  failed(code: HandoffErrorCode, message: string, cause?: unknown): TransferHandle {
    return this.add(new SettledTransfer(new HandoffError(code, message, { cause })));
  }

  take(): TransferHandle[] {
    const taken = this.waiting;
    this.waiting = [];
    return taken;
  }

  private add(transfer: TransferHandle): TransferHandle {
    this.waiting.push(transfer);
    if (this.waiting.length === 1) queueMicrotask(() => this.wake.wake());
    return transfer;
  }
}
