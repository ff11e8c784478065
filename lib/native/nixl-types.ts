/**
 * Native NIXL transport. Same names and order as `cuda/binding/nixl_binding.cc`. Positional and already valid values
 * cross; handles are opaque.
 */
import type { NativeCudaRegion } from './cuda-types.js';
import type { NativeFailure, NativeLinkStatus, NativeRegion } from './transfer-types.js';

/** Native NIXL transport of this environment. */
export type NativeNixl = object & { readonly __nixl?: never };

/** 0: active, 1: done, 2: failed and quiet, 3: failed, memory in doubt. */
export type NativeNixlStatus = 0 | 1 | 2 | 3;

/** What this side's memory looks like from a peer. */
export interface NativeNixlGrant {
  /** Empty when this side exports nothing. */
  readonly metadata: Uint8Array;
  /** Address, bytes, kind (0 host, 1 GPU) and device of each region. */
  readonly ranges: BigUint64Array;
  /** Of the staging: address of its headers, slots, bytes of one, address, kind and device of them; 0 slots: no packing. */
  readonly staging: BigUint64Array;
  /** The library that was loaded. */
  readonly library: string;
}

/** Numbers for tests and for `doctor`. `agents` and `readsPosted` are the process's, everything else the transport's. */
export interface NativeNixlCounters {
  readonly agents: number;
  readonly readsPosted: number;
  readonly links: number;
  readonly preparedLists: number;
  /** Chunks gathered for peers. */
  readonly packedChunks: number;
  /** Transfers that asked for packed chunks in vain and went on without. */
  readonly packRefusals: number;
}

export interface NixlAddon {
  /** `candidates`: paths and names, one a line. `tuning`: see `NixlTuning` in `cuda/transport/nixl_transfer.h`. */
  nixlOpen(
    candidates: string,
    name: string,
    exports: boolean,
    slots: number,
    slotBytes: number,
    gpuSlotBytes: number,
    tuning: Float64Array,
    transfersMax: number,
    kernels: Uint8Array | null,
  ): NativeNixl;
  nixlRegister(nixl: NativeNixl, region: NativeRegion): number;
  /** A GPU region stays open until the transport is closed. */
  nixlRegisterCuda(nixl: NativeNixl, region: NativeCudaRegion): number;
  /**
   * Loads the library and makes agents on another thread; once, after all regions. `probe`: also where nothing is
   * exported, to find out whether there can be any.
   */
  nixlStart(nixl: NativeNixl, probe: boolean): void;
  /** 0: starting, 1: ready, 2: failed. */
  nixlReadiness(nixl: NativeNixl): NativeLinkStatus;
  nixlStartError(nixl: NativeNixl): NativeFailure | null;
  nixlGrant(nixl: NativeNixl): NativeNixlGrant;
  nixlConnect(nixl: NativeNixl, metadata: Uint8Array, ranges: BigUint64Array, staging: BigUint64Array): number;
  nixlPeerStatus(nixl: NativeNixl, peer: number): NativeLinkStatus;
  nixlPeerError(nixl: NativeNixl, peer: number): NativeFailure | null;
  nixlDisconnect(nixl: NativeNixl, peer: number): void;
  /** Every `readers`th read of the programs, from the `reader`th on; all of them are checked. */
  nixlBegin(
    nixl: NativeNixl,
    peer: number,
    rectangles: Float64Array,
    tables: Float64Array,
    rows: Int32Array,
    reader: number,
    readers: number,
  ): number;
  nixlPoll(nixl: NativeNixl, transfer: number): NativeNixlStatus;
  nixlBytes(nixl: NativeNixl, transfer: number): number;
  nixlError(nixl: NativeNixl, transfer: number): NativeFailure | null;
  nixlCancel(nixl: NativeNixl, transfer: number): void;
  /** Every process that could touch memory for this transfer is dead. */
  nixlAttest(nixl: NativeNixl, transfer: number): void;
  /** Ids of transfers that left `active` since the last call, each once. */
  nixlTake(nixl: NativeNixl): Float64Array;
  /** Only one that is final. */
  nixlForget(nixl: NativeNixl, transfer: number): void;
  /** Cancels everything, destroys all agents and lets the threads leave. */
  nixlClose(nixl: NativeNixl): void;
  /** Whether a closing transport's threads have left. */
  nixlQuiet(nixl: NativeNixl): boolean;
  nixlCounters(nixl: NativeNixl): NativeNixlCounters;
}
