/**
 * Native transfer: regions, copy program, host transport. Same names and order as `cuda/binding/transfer.cc` and
 * `cuda/binding/host_binding.cc`. Positional and already valid values cross; `null` is absent; handles are opaque.
 */

/** Native region; an external that only the addon can open. */
export type NativeRegion = object & { readonly __region?: never };
/** Native host transport of this environment. */
export type NativeHost = object & { readonly __host?: never };

/** Why a link or a transfer failed; `code` is one of `errorCodes`. */
export interface NativeFailure {
  readonly code: string;
  readonly message: string;
}

export interface NativeAddress {
  readonly abstract: boolean;
  readonly name: string;
}

/** Numbers of live native objects of the process. */
export interface NativeCounters {
  readonly regions: number;
  readonly mappings: number;
  readonly threads: number;
}

/** 0: active, 1: done, 2: failed and quiet. */
export type NativeTransferStatus = 0 | 1 | 2;
/** 0: connecting, 1: ready, 2: failed. */
export type NativeLinkStatus = 0 | 1 | 2;

export interface TransferAddon {
  regionAllocate(bytes: number, name: string): NativeRegion;
  /** The one ArrayBuffer over the region. */
  regionBuffer(region: NativeRegion): ArrayBuffer;
  /** False while a transfer may touch the region; else detaches the buffer and lets go of the memory. */
  regionClose(region: NativeRegion): boolean;
  /** `wanted`: region, offset and length of each range that must be written whole. */
  programCheck(
    rectangles: Float64Array,
    tables: Float64Array,
    rows: Int32Array,
    sourceBytes: Float64Array,
    targetBytes: Float64Array,
    wanted: Float64Array,
  ): void;

  /** Adds what to call, coalesced, when a ring may hold something; it must not throw. Stays for good. */
  wakeListen(callback: () => void): void;
  hostOpen(
    blockGenerations: object | null,
    slotGenerations: object | null,
    threads: number,
    transfersMax: number,
  ): NativeHost;
  hostRegister(host: NativeHost, region: NativeRegion): number;
  hostListen(host: NativeHost, abstract: boolean, directory: string, name: string, token: Uint8Array): NativeAddress;
  /** Generation counts: 0 is none. */
  hostConnect(
    host: NativeHost,
    abstract: boolean,
    name: string,
    token: Uint8Array,
    regionBytes: BigUint64Array,
    blockGenerations: number,
    slotGenerations: number,
    timeoutMs: number,
  ): number;
  hostPeerStatus(host: NativeHost, peer: number): NativeLinkStatus;
  hostPeerError(host: NativeHost, peer: number): NativeFailure | null;
  hostDisconnect(host: NativeHost, peer: number): void;
  hostBegin(
    host: NativeHost,
    peer: number,
    rectangles: Float64Array,
    tables: Float64Array,
    rows: Int32Array,
    blocks: Int32Array,
    blockGenerations: BigUint64Array,
    slots: Int32Array,
    slotGenerations: BigUint64Array,
  ): number;
  hostPoll(host: NativeHost, transfer: number): NativeTransferStatus;
  hostBytes(host: NativeHost, transfer: number): number;
  hostError(host: NativeHost, transfer: number): NativeFailure | null;
  hostCancel(host: NativeHost, transfer: number): void;
  /** Ids of transfers that ended since the last call. */
  hostTake(host: NativeHost): Float64Array;
  hostForget(host: NativeHost, transfer: number): void;
  /** Cancels everything and lets the threads leave. */
  hostClose(host: NativeHost): void;
  /** Whether a closing transport's threads have left. */
  hostQuiet(host: NativeHost): boolean;
  debugCounters(): NativeCounters;
  /** For benchmarks: a plain, blocking copy of (source offset, target offset, length) triples; nanoseconds. */
  debugCopyFragments(
    host: NativeHost,
    peer: number,
    region: NativeRegion,
    fragments: Float64Array,
    threads: number,
  ): number;
  /** For benchmarks: half of each token's bytes, by a loop compiled for just that shape; nanoseconds. */
  debugCopyHalfHeads(
    host: NativeHost,
    peer: number,
    region: NativeRegion,
    sourceBlocks: Int32Array,
    targetBlocks: Int32Array,
    bytes: number,
    threads: number,
  ): number;
}
