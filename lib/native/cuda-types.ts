/**
 * Native GPUs: regions, fences, the CUDA IPC transport. Same names and order as the three `cuda/binding/cuda_*binding.cc`.
 * `driver` is the path of libcuda, null for the loader's own; `NATIVE_SYSTEM` and `TRANSPORT_UNAVAILABLE` say what failed.
 */
import type { BrokerCalls } from './broker-types.js';

/** Native GPU region; an external that only the addon can open. */
export type NativeCudaRegion = object & { readonly __cudaRegion?: never };
/** Native CUDA fence. */
export type NativeCudaFence = object & { readonly __cudaFence?: never };
/** Native CUDA IPC transport of this environment. */
export type NativeCudaIpc = object & { readonly __cudaIpc?: never };
/** A stream for tests. */
export type NativeDebugStream = object & { readonly __debugStream?: never };

/** Matrix products for benchmarks. */
export type NativeDebugProducts = object & { readonly __debugProducts?: never };

/** What the CUDA driver of this machine says of itself and of its devices. */
export interface NativeCudaDescription {
  readonly path: string;
  /** 13000 is 13.0. */
  readonly version: number;
  readonly devices: readonly {
    readonly ordinal: number;
    readonly name: string;
    readonly uuid: string;
    readonly bytes: number;
    readonly capability: string;
    /** Ordinals of the devices whose memory it can read, itself included. */
    readonly reads: readonly number[];
    /** Of those, the ones that NVLink leads to. */
    readonly links: readonly number[];
  }[];
}

export interface CudaAddon {
  cudaDescribe(driver: string | null): NativeCudaDescription;
  /** Null when the addon carries kernels; else why not. */
  cudaKernelsMissing(): string | null;
  cudaRegionAllocate(driver: string | null, device: number, bytes: number, virtualMemory: boolean): NativeCudaRegion;
  cudaRegionImport(driver: string | null, address: bigint, bytes: number): NativeCudaRegion;
  cudaRegionPlace(region: NativeCudaRegion): { readonly address: bigint; readonly device: number };
  /** False while the region is in use; else lets go of the memory. */
  cudaRegionClose(region: NativeCudaRegion): boolean;
  cudaRegionRead(region: NativeCudaRegion, offset: number, bytes: Uint8Array): void;
  cudaRegionWrite(region: NativeCudaRegion, offset: number, bytes: Uint8Array): void;
  cudaFenceRecord(driver: string | null, device: number, stream: bigint): NativeCudaFence;
  cudaFenceIsComplete(fence: NativeCudaFence): boolean;

  /** `kernels`: a compiled module, or null for those the addon carries. */
  cudaIpcOpen(
    blockGenerations: object | null,
    slotGenerations: object | null,
    transfersMax: number,
    kernels: Uint8Array | null,
  ): NativeCudaIpc;
  readonly cudaIpc: BrokerCalls;

  /** For tests: a stream as a host engine has one, which can be held up. */
  debugCudaStreamOpen(driver: string | null, device: number): NativeDebugStream;
  debugCudaStreamAddress(stream: NativeDebugStream): bigint;
  debugCudaStreamHold(stream: NativeDebugStream): void;
  debugCudaStreamRelease(stream: NativeDebugStream): void;
  debugCudaStreamFill(
    stream: NativeDebugStream,
    region: NativeCudaRegion,
    offset: number,
    bytes: number,
    value: number,
  ): void;
  /** For benchmarks: (source offset, target offset, length) triples; the median in microseconds, by events. */
  debugCudaTimeCopies(
    source: NativeCudaRegion,
    target: NativeCudaRegion,
    fragments: Float64Array,
    batch: boolean,
    rounds: number,
  ): number;
  /**
   * For benchmarks: one launch of one program alone, by so many blocks of threads (0: as many as it has tiles); the median
   * in microseconds, by events.
   */
  debugCudaTimeKernel(
    source: NativeCudaRegion,
    target: NativeCudaRegion,
    rectangles: Float64Array,
    tables: Float64Array,
    rows: Int32Array,
    rounds: number,
    blocks: number,
  ): number;
  /** For benchmarks: products of square matrices of half floats, by cuBLAS. `candidates`: paths and names, one a line. */
  debugCudaProductsOpen(driver: string | null, device: number, candidates: string, size: number): NativeDebugProducts;
  debugCudaProductsStart(products: NativeDebugProducts, count: number): void;
  /** Microseconds they took; -1 while they are not over. */
  debugCudaProductsTime(products: NativeDebugProducts): number;
  debugCudaCounters(): { readonly regions: number; readonly mappings: number };
}
