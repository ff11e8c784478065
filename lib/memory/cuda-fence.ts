/**
 * Fences of a host engine's CUDA stream: recorded after its work, asked without waiting.
 *
 * Prefill gives one as `ready` when it captures a handoff: the ticket is withheld until the state is in place. Decode
 * answers one from `targetQuiescent`: no transfer starts into memory that earlier work may still touch.
 */
import { requireObject } from '../argument-shape.js';
import type { Fence } from '../engine-context.js';
import { argumentError } from '../errors.js';
import { addon } from '../native/addon.js';
import { native } from '../native/addon-errors.js';
import { cudaDriverPath } from './cuda-driver-path.js';

/** A stream of the engine. */
export interface EngineStream {
  /** Ordinal of its GPU. Default 0. */
  readonly device?: number;
  /** The `CUstream` (or `cudaStream_t`) as a number; 0n is the default stream. */
  readonly stream: bigint;
}

/**
 * Completes once everything that was given to the stream so far is over.
 *
 * @throws `ARGUMENT_INVALID`, `TRANSPORT_UNAVAILABLE`, `NATIVE_SYSTEM`; the fence itself throws `NATIVE_SYSTEM` when the
 * GPU is lost
 */
export function cudaStreamFence(engineStream: EngineStream): Fence {
  requireObject('engineStream', engineStream);
  const { device = 0, stream } = engineStream;
  if (!Number.isInteger(device) || device < 0) throw argumentError('device', 'the ordinal of a GPU', device);
  if (typeof stream !== 'bigint') throw argumentError('stream', 'a CUstream as a bigint', stream);
  const fence = native(() => addon().cudaFenceRecord(cudaDriverPath(), device, stream));
  return { isComplete: () => native(() => addon().cudaFenceIsComplete(fence)) };
}
