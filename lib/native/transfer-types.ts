/**
 * Native transfer: regions, copy program, host transport. Same names and order as `cuda/binding/transfer.cc` and
 * `cuda/binding/host_binding.cc`. Positional and already valid values cross; `null` is absent; handles are opaque.
 */
import type { BrokerCalls } from './broker-types.js';

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

/** 0: active, 1: done, 2: failed and quiet, 3: failed, memory in doubt; host pulls never say the last. */
export type NativeTransferStatus = 0 | 1 | 2 | 3;
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
  readonly host: BrokerCalls;
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
