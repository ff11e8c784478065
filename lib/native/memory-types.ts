/**
 * Native memory: block pool, slot pool, hashing, generations. Same names and order as `cuda/binding/memory.cc`.
 *
 * Results go into typed arrays of the caller, which is cheaper than making them in native code. Everything throws plain
 * errors with a `code` (see addon-errors.ts); after `close` every call throws `CLOSED`.
 */

/** Bits of what `allocate`, `release` and `evict` answer. */
export const outcome = {
  /** The call did what it says; else nothing changed. */
  done: 1,
  /** Blocks were deregistered and `removed()` tells which; only while tracking is on. */
  removed: 2,
} as const;

export type NativeEvictionPolicy = 'none' | 'ref_zero' | 'lru';

/** The addon's object behind `Generations`. */
export interface NativeGenerations {
  readonly count: number;
  /** The generation of an id now. */
  get(id: number): bigint;
  /** Moves the generations of these ids. */
  advance(ids: Int32Array): void;
  /** Lets go of the table; it lives on while a peer maps it. */
  close(): void;
}

export interface NativeBlockPool {
  readonly freeCount: number;
  readonly evictableCount: number;
  setClock(time: number): void;
  allocate(out: Int32Array): number;
  release(ids: Int32Array): number;
  retain(ids: Int32Array): void;
  touch(ids: Int32Array): void;
  register(ids: Int32Array, hashes: BigInt64Array, parents: BigInt64Array): void;
  evict(count: number): number;
  reset(): void;
  lookup(hash: bigint): number;
  /** Fills the front of `out`, which is as long as `hashes`, and returns how many blocks matched. */
  matchPrefix(hashes: BigInt64Array, out: Int32Array): number;
  unreferencedCount(ids: Int32Array): number;
  isMemoryAvailable(count: number, matched: number): boolean;
  distinctCount(ids: Int32Array): number;
  generationsOf(ids: Int32Array, out: BigUint64Array): void;
  trackRemoved(track: boolean): void;
  removed(): { readonly ids: Int32Array; readonly hashes: BigInt64Array };
  snapshot(): {
    readonly freeStack: Int32Array;
    readonly references: Int32Array;
    readonly hashes: BigInt64Array;
    readonly parents: Int32Array;
    readonly children: Int32Array;
    readonly timestamps: BigInt64Array;
  };
  /** Empty, or what is inconsistent. Slow. */
  audit(): string;
  close(): void;
}

export interface NativeSsmSlotPool {
  readonly freeCount: number;
  allocate(): number;
  allocateBatch(count: number): Int32Array | null;
  free(slot: number): void;
  bind(row: number, slot: number): void;
  bindDummy(): void;
  detach(row: number): number;
  freeRequests(rows: Int32Array): void;
  reset(): void;
  generationsOf(slots: Int32Array, out: BigUint64Array): void;
  freeStack(): Int32Array;
  rows(): Int32Array;
  close(): void;
}

export interface MemoryAddon {
  readonly NativeGenerations: new (count: number) => NativeGenerations;
  readonly NativeBlockPool: new (
    poolSize: number,
    evictionPolicy: NativeEvictionPolicy,
    generations: NativeGenerations | null,
  ) => NativeBlockPool;
  readonly NativeSsmSlotPool: new (
    maxRequests: number,
    dummySlot: boolean,
    generations: NativeGenerations | null,
  ) => NativeSsmSlotPool;
  /** `none`: this process exports no SHA-256, and the two functions below throw. */
  blockHashBackend(): 'openssl' | 'none';
  /** Hashes the complete blocks into `out`; `parent` (32 bytes) is the digest before them and then that of the last. */
  blockHashes(
    tokens: Int32Array | BigInt64Array | Float64Array,
    blockSize: number,
    parent: Uint8Array,
    firstIndex: number,
    out: BigInt64Array,
  ): void;
  /** The same on another thread; everything is copied before it returns. */
  blockHashesAsync(
    tokens: Int32Array | BigInt64Array | Float64Array,
    blockSize: number,
    parent: Uint8Array,
    firstIndex: number,
  ): Promise<BigInt64Array>;
  /** What such a chain costs at the least: messages that lie ready, each with room for a digest in front. For benches. */
  blockHashMessages(messages: Uint8Array, messageBytes: number): void;
  /** Native objects alive in this process. */
  memoryCounters(): {
    readonly generations: number;
    readonly blockPools: number;
    readonly slotPools: number;
    readonly hashJobs: number;
  };
}
