/**
 * A region over memory of this process that JavaScript owns: for engines, transports and tests that live in one process.
 *
 * No other process can map it; a transport that needs that refuses it.
 */
import { argumentError, HandoffError } from '../errors.js';
import type { Region } from './region.js';

export class PlainRegion implements Region {
  readonly kind = 'host';
  readonly native = null;
  readonly buffer: ArrayBuffer;
  readonly #isInUse: () => boolean;
  #isClosed = false;

  /**
   * @param memory - the bytes, or how many zeroed bytes to make
   * @param isInUse - whether a transfer may still touch it; asked by `close`
   * @throws `ARGUMENT_INVALID`
   */
  constructor(memory: ArrayBuffer | number, isInUse: () => boolean = () => false) {
    if (typeof memory === 'number') {
      if (!Number.isSafeInteger(memory) || memory < 1)
        throw argumentError('memory', 'a positive number of bytes', memory);
      this.buffer = new ArrayBuffer(memory);
    } else {
      if (memory.byteLength === 0) throw argumentError('memory', 'at least one byte', memory);
      this.buffer = memory;
    }
    this.#isInUse = isInUse;
  }

  get byteLength(): number {
    return this.buffer.byteLength;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  close(): void {
    if (this.#isClosed) return;
    if (this.#isInUse()) {
      throw new HandoffError(
        'MEMORY_IN_DOUBT',
        'the region cannot be closed because a transfer may still touch it; cancel it and wait',
        {
          targetSafe: false,
        },
      );
    }
    this.#isClosed = true;
  }
}
