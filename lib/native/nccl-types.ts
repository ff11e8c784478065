/** Native NCCL transport. Same names and order as `cuda/binding/nccl_binding.cc`. Handles are opaque. */
import type { NativeCudaRegion } from './cuda-types.js';
import type { NativeFailure, NativeLinkStatus } from './transfer-types.js';

/** Native NCCL transport of this environment. */
export type NativeNccl = object & { readonly __nccl?: never };

/** 0: active, 1: done, 2: failed and quiet, 3: the device was lost, nothing is known of the memory. */
export type NativeNcclStatus = 0 | 1 | 2 | 3;

export interface NcclAddon {
  /**
   * `candidates`: paths and names, one a line. `packed`: a chunk is one message; else each row of a rectangle is one.
   * `kernels`: a compiled module, or null for those the addon carries.
   */
  ncclOpen(
    candidates: string,
    chunkBytes: number,
    transfersMax: number,
    packed: boolean,
    kernels: Uint8Array | null,
  ): NativeNccl;
  ncclRegister(nccl: NativeNccl, region: NativeCudaRegion): number;
  /** Loads library and kernels on the transport's thread; once, after all regions. */
  ncclStart(nccl: NativeNccl): void;
  /** 0: starting, 1: ready, 2: failed. */
  ncclReadiness(nccl: NativeNccl): NativeLinkStatus;
  ncclStartError(nccl: NativeNccl): NativeFailure | null;
  /** 128 bytes, for one pair. */
  ncclUniqueId(nccl: NativeNccl): Uint8Array;
  /** Makes this end of a pair's communicator; does not wait for the other. */
  ncclJoin(nccl: NativeNccl, uniqueId: Uint8Array, rank: 0 | 1): number;
  ncclCommStatus(nccl: NativeNccl, comm: number): NativeLinkStatus;
  ncclCommError(nccl: NativeNccl, comm: number): NativeFailure | null;
  /**
   * Ends the communicator; what is under way on it fails, as `PEER_LOST` or else `TRANSFER_CANCELLED`. Its id means
   * nothing from now on.
   */
  ncclAbort(nccl: NativeNccl, comm: number, lost: boolean, why: string): void;
  /** Posts one end of a transfer; `peerBytes` are the sizes of the peer's regions. */
  ncclBegin(
    nccl: NativeNccl,
    comm: number,
    sends: boolean,
    rectangles: Float64Array,
    tables: Float64Array,
    rows: Int32Array,
    peerBytes: BigUint64Array,
  ): number;
  ncclPoll(nccl: NativeNccl, transfer: number): NativeNcclStatus;
  ncclBytes(nccl: NativeNccl, transfer: number): number;
  ncclError(nccl: NativeNccl, transfer: number): NativeFailure | null;
  /** Ids of transfers that ended since the last call. */
  ncclTake(nccl: NativeNccl): Float64Array;
  ncclForget(nccl: NativeNccl, transfer: number): void;
  /** Aborts every communicator and lets the thread leave. */
  ncclClose(nccl: NativeNccl): void;
  ncclQuiet(nccl: NativeNccl): boolean;
}
