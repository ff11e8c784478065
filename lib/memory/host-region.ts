/**
 * Host memory that a peer on the same machine may read: allocated by the SDK in a sealed memfd, used by the engine
 * through an ordinary `ArrayBuffer`. Either role. Refuses to go away under a transfer.
 */
import { constants } from 'node:buffer';
import { requireObject } from '../argument-shape.js';
import { argumentError, HandoffError } from '../errors.js';
import { addon } from '../native/addon.js';
import { native } from '../native/addon-errors.js';
import type { NativeRegion } from '../native/transfer-types.js';
import type { Region } from './region.js';

/** How a host region is made. */
export interface HostRegionOptions {
  /** At least 1; at most what one `ArrayBuffer` can hold (4 GiB on Node 20). Zeroed. */
  readonly bytes: number;
  /** Shown by the system's memory maps; at most 200 bytes of UTF-8, without NUL. Default `state-handoff`. */
  readonly name?: string;
}

const nameBytesMax = 200;

/**
 * Allocates a region. Its memory lives until `close()`, or until both the region and its buffer are unreachable; peers
 * that have mapped it keep their mapping either way. After `close()` the buffer is detached: every view has length 0.
 *
 * @throws `ARGUMENT_INVALID`; `NATIVE_SYSTEM` when the system has no such memory; `NATIVE_UNAVAILABLE`
 */
export function allocateHostRegion(options: HostRegionOptions): Region {
  requireObject('options', options);
  const { bytes, name = 'state-handoff' } = options;
  if (!Number.isSafeInteger(bytes) || bytes < 1 || bytes > constants.MAX_LENGTH) {
    throw argumentError('bytes', `an integer from 1 to ${constants.MAX_LENGTH}`, bytes);
  }
  if (typeof name !== 'string' || name.includes('\0') || Buffer.byteLength(name) > nameBytesMax) {
    throw argumentError('name', `text of at most ${nameBytesMax} bytes without NUL`, name);
  }
  return native(() => new HostRegion(addon().regionAllocate(bytes, name), bytes));
}

class HostRegion implements Region {
  readonly kind = 'host';
  readonly buffer: ArrayBuffer;

  constructor(
    readonly native: NativeRegion,
    readonly byteLength: number,
  ) {
    this.buffer = addon().regionBuffer(native);
  }

  close(): void {
    if (!native(() => addon().regionClose(this.native))) {
      throw new HandoffError(
        'MEMORY_IN_DOUBT',
        'the region does not close because a transfer may touch it; cancel it and wait for its end',
        { targetSafe: false },
      );
    }
  }
}
