/**
 * What a NIXL transport can be told, its bounds, and how its native half takes it. Reads the kernels that
 * `STATE_HANDOFF_CUDA_KERNELS` names; refuses everything else that is out of bounds by its name.
 */
import { readFileSync } from 'node:fs';
import { HandoffError } from '../../errors.js';
import { boundedOption, transfersBounds, type OptionBounds } from './option-bounds.js';

/** How a `NixlTransport` is made. Sizes in bytes. */
export interface NixlTransportOptions {
  /** Whether peers read this side's regions; a decode engine's need not. Default true. */
  readonly exports?: boolean;
  /** Paths or names of `libnixl_capi.so`, best first. Default: see `STATE_HANDOFF_NIXL` and the documentation. */
  readonly libraries?: readonly string[];
  /** Target: slices of fewer bytes travel packed, where the source packs. 0: none do. Default 16,384. */
  readonly directBytesMin?: number;
  /** Target: with fewer bytes in such slices, a transfer reads them as they lie. Default 131,072. */
  readonly packedBytesMin?: number;
  /** Source: chunks that it gathers at a time, for all its peers. 0: it packs nothing. Default 8. */
  readonly slots?: number;
  /** Source: bytes of such a chunk. Default 2 MiB. */
  readonly slotBytes?: number;
  /** Target: bytes of one read, about; a cancel waits for at most two. Default 8 MiB. */
  readonly requestBytes?: number;
  /** `directBytesMin` for slices in GPU memory, which a kernel gathers and scatters. Default 1 MiB. */
  readonly gpuDirectBytesMin?: number;
  /** `slotBytes` where slots lie in GPU memory: with a GPU region, on the GPU of the first. Default 16 MiB. */
  readonly gpuSlotBytes?: number;
  /** `requestBytes` for reads of GPU memory or into it. Default 32 MiB. */
  readonly gpuRequestBytes?: number;
  /**
   * Target: threads that read at a time, each over an agent of its own: where UCX copies by the CPU, one thread moves what
   * one core can. A pull of less than two reads takes one. Default 2.
   */
  readonly readThreads?: number;
  /** Target: how long to wait for a packed chunk before the rest is read as it lies. Default 1,000 ms. */
  readonly packPatienceMs?: number;
  /** Target: when a transfer has failed; its memory stays in doubt until it is quiet. 0: never. Default 0. */
  readonly deadlineMs?: number;
  /**
   * Target: how long after a failure the connection is ended under reads that do not end, which makes them quiet. UCX
   * 1.23 over TCP may abort the *peer's* process when that happens while it is stopped. 0: never. Default 0.
   */
  readonly stopAfterMs?: number;
  /** Transfers begun and not yet taken by `takeChanged`. Default 65,536. */
  readonly transfersMax?: number;
}

const bounds = {
  directBytesMin: { fallback: 16_384, min: 0, max: 2 ** 40 },
  packedBytesMin: { fallback: 131_072, min: 0, max: 2 ** 40 },
  slots: { fallback: 8, min: 0, max: 1024 },
  slotBytes: { fallback: 2 << 20, min: 4096, max: 2 ** 30 },
  requestBytes: { fallback: 8 << 20, min: 4096, max: 2 ** 40 },
  gpuDirectBytesMin: { fallback: 1 << 20, min: 0, max: 2 ** 40 },
  gpuSlotBytes: { fallback: 16 << 20, min: 4096, max: 2 ** 30 },
  gpuRequestBytes: { fallback: 32 << 20, min: 4096, max: 2 ** 40 },
  readThreads: { fallback: 2, min: 1, max: 64 },
  packPatienceMs: { fallback: 1_000, min: 1, max: 600_000 },
  deadlineMs: { fallback: 0, min: 0, max: 86_400_000 },
  stopAfterMs: { fallback: 0, min: 0, max: 86_400_000 },
  transfersMax: transfersBounds,
} as const satisfies Record<string, OptionBounds>;

/** Options that are in bounds. */
export interface NixlSettings {
  readonly slots: number;
  readonly slotBytes: number;
  readonly gpuSlotBytes: number;
  readonly requestBytes: number;
  readonly readThreads: number;
  readonly transfersMax: number;
  /** See `NixlTuning` in `cuda/transport/nixl_transfer.h`. */
  readonly tuning: Float64Array;
  readonly kernels: Uint8Array | null;
}

/** @throws `ARGUMENT_INVALID` naming the option; `TRANSPORT_UNAVAILABLE` for kernels that cannot be read */
export function nixlSettings(options: NixlTransportOptions): NixlSettings {
  const value = (name: keyof typeof bounds): number => boundedOption(name, options[name], bounds[name]);
  return {
    slots: value('slots'),
    slotBytes: value('slotBytes'),
    gpuSlotBytes: value('gpuSlotBytes'),
    requestBytes: value('requestBytes'),
    readThreads: value('readThreads'),
    transfersMax: value('transfersMax'),
    tuning: Float64Array.of(
      value('directBytesMin'),
      value('packedBytesMin'),
      value('requestBytes'),
      value('packPatienceMs'),
      value('deadlineMs'),
      value('stopAfterMs'),
      value('gpuDirectBytesMin'),
      value('gpuRequestBytes'),
    ),
    kernels: kernelImage(process.env['STATE_HANDOFF_CUDA_KERNELS']),
  };
}

/** Kernels compiled elsewhere, for an addon that was built without nvcc. */
function kernelImage(path: string | undefined): Uint8Array | null {
  if (path === undefined || path === '') return null;
  try {
    return Uint8Array.from(readFileSync(path));
  } catch (cause) {
    throw new HandoffError('TRANSPORT_UNAVAILABLE', `STATE_HANDOFF_CUDA_KERNELS: ${(cause as Error).message}`, {
      cause,
    });
  }
}
