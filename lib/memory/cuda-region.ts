/**
 * Regions in GPU memory: a pool of the SDK's own, or memory that the host engine allocated and lends.
 *
 * Only primary contexts are used, the ones that every other CUDA user of the process has. JavaScript cannot address the
 * bytes; `read` and `write` copy, and wait for the copy.
 */
import { requireObject } from '../argument-shape.js';
import { argumentError, HandoffError } from '../errors.js';
import { addon } from '../native/addon.js';
import { native } from '../native/addon-errors.js';
import type { NativeCudaRegion } from '../native/cuda-types.js';
import { cudaDriverPath } from './cuda-driver-path.js';
import type { Region } from './region.js';

/** A region in the memory of one GPU. */
export interface CudaRegion extends Region {
  readonly kind: 'cuda';
  /** Ordinal of the GPU in this process. */
  readonly device: number;
  /** Device address of its first byte, for the engine's own kernels. */
  readonly address: bigint;
  /**
   * Copies `bytes.length` bytes from `offset` on into `bytes`, and waits for it. Waits for no stream of the engine's.
   *
   * @throws `ARGUMENT_INVALID`, `CLOSED`, `NATIVE_SYSTEM`
   */
  read(offset: number, bytes: Uint8Array): void;
  /** The other way. @throws as `read` */
  write(offset: number, bytes: Uint8Array): void;
}

/** How GPU memory is allocated. */
export interface CudaRegionOptions {
  readonly bytes: number;
  /** Ordinal of the GPU. Default 0. */
  readonly device?: number;
  /**
   * Takes memory of CUDA's virtual memory functions, which some libraries want for registration. CUDA IPC cannot export
   * it. Default false.
   */
  readonly virtualMemory?: boolean;
}

/** GPU memory of the host engine. It stays the engine's: nothing here frees it. */
export interface CudaMemoryDescription {
  /** Device address, a multiple of 16. */
  readonly address: bigint;
  readonly byteLength: number;
  /** Kept alive as long as the region is not closed: what owns the memory. */
  readonly owner: object;
}

const bytesMax = 2 ** 52;

/**
 * Zeroed memory of one GPU.
 *
 * @throws `ARGUMENT_INVALID`; `TRANSPORT_UNAVAILABLE` without a driver; `NATIVE_SYSTEM` when the GPU has not that much
 */
export function allocateCudaRegion(options: CudaRegionOptions): CudaRegion {
  requireObject('options', options);
  const { bytes, device = 0, virtualMemory = false } = options;
  requireBytes('bytes', bytes);
  if (!Number.isInteger(device) || device < 0 || device > 1023) {
    throw argumentError('device', 'the ordinal of a GPU', device);
  }
  if (typeof virtualMemory !== 'boolean') throw argumentError('virtualMemory', 'a boolean', virtualMemory);
  return native(
    () => new NativeRegionView(addon().cudaRegionAllocate(cudaDriverPath(), device, bytes, virtualMemory), bytes, null),
  );
}

/**
 * A region over GPU memory that the engine has. Close it before the memory is freed.
 *
 * @throws `ARGUMENT_INVALID` when there is no GPU memory of that size at the address; `TRANSPORT_UNAVAILABLE`
 */
export function importCudaRegion(memory: CudaMemoryDescription): CudaRegion {
  requireObject('memory', memory);
  const { address, byteLength, owner } = memory;
  if (typeof address !== 'bigint' || address <= 0n) throw argumentError('address', 'a positive bigint', address);
  requireBytes('byteLength', byteLength);
  if (typeof owner !== 'object' || owner === null) throw argumentError('owner', 'what owns the memory', owner);
  return native(
    () => new NativeRegionView(addon().cudaRegionImport(cudaDriverPath(), address, byteLength), byteLength, owner),
  );
}

function requireBytes(name: string, bytes: unknown): void {
  if (!Number.isSafeInteger(bytes) || (bytes as number) < 1 || (bytes as number) > bytesMax) {
    throw argumentError(name, 'an integer from 1 to 2^52', bytes);
  }
}

class NativeRegionView implements CudaRegion {
  readonly kind = 'cuda';
  readonly buffer = null;
  readonly device: number;
  readonly address: bigint;

  constructor(
    readonly native: NativeCudaRegion,
    readonly byteLength: number,
    protected owner: object | null,
  ) {
    const place = addon().cudaRegionPlace(native);
    this.device = place.device;
    this.address = place.address;
  }

  read(offset: number, bytes: Uint8Array): void {
    native(() => addon().cudaRegionRead(this.native, offset, bytes));
  }

  write(offset: number, bytes: Uint8Array): void {
    native(() => addon().cudaRegionWrite(this.native, offset, bytes));
  }

  close(): void {
    if (!native(() => addon().cudaRegionClose(this.native))) {
      throw new HandoffError(
        'MEMORY_IN_DOUBT',
        'the region does not close because a transport shows it to peers or a transfer may touch it; close the transport first',
        { targetSafe: false },
      );
    }
    this.owner = null;
  }
}
