/**
 * One 64-bit counter for each block or slot, in memory that a peer on this machine may map read-only.
 *
 * A counter moves when its block's *content* ends: when the block leaves the free bag for a new owner, or is evicted;
 * never when a pin is dropped. A reader compares it before and after copying, and so notices that it came too late.
 */
import { native } from '../native/addon-errors.js';
import { addon } from '../native/addon.js';
import type { NativeGenerations } from '../native/memory-types.js';

/** Made by the engine, given to its allocator (`BlockPool`, `SsmSlotPool`), which moves it, and to the host transport. */
export class Generations {
  readonly count: number;
  /** The addon's object, for transports. @internal */
  readonly native: NativeGenerations;

  /**
   * All counters start at 1.
   *
   * @param count - blocks or slots, at most 2^24
   * @throws `ARGUMENT_INVALID`; `NATIVE_SYSTEM` when the system gives no memory
   */
  constructor(count: number) {
    this.native = native(() => new (addon().NativeGenerations)(count));
    this.count = count;
  }

  /** @throws `ARGUMENT_INVALID` for an id out of range, `CLOSED` */
  get(id: number): bigint {
    return native(() => this.native.get(id));
  }

  /**
   * The content of `ids` ends now. For allocators of one's own: before the new owner's first write. An id that is
   * listed twice moves twice.
   *
   * @throws `ARGUMENT_INVALID` with nothing changed, `CLOSED`
   */
  advance(ids: Int32Array): void {
    native(() => this.native.advance(ids));
  }

  /** Idempotent. Pools and transports that hold the table go on with it. */
  close(): void {
    this.native.close();
  }
}
