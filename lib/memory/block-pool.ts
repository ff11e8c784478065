/**
 * The deterministic block allocator of spec 4, native underneath. Equal calls in equal order give equal ids in every
 * process, which is what ranks of one instance rely on.
 *
 * Two decisions the specification leaves open. A hash that one block holds stays with it: registering it for a second
 * block leaves the second without a name. And a cached block whose descendants are in use cannot be evicted; neither
 * `isMemoryAvailable` nor `allocate` counts on it.
 */
import { requireObject } from '../argument-shape.js';
import { argumentError } from '../errors.js';
import { native } from '../native/addon-errors.js';
import { addon } from '../native/addon.js';
import { outcome, type NativeBlockPool } from '../native/memory-types.js';
import type { BlockAllocator } from './allocators.js';
import type { Generations } from './generations.js';
import { PoolObservers, type BlockPoolObserver } from './pool-observers.js';

/** `none`: no prefix cache. `ref_zero`: a block without references loses its name. `lru`: it stays until evicted. */
export type EvictionPolicy = 'none' | 'ref_zero' | 'lru';

/** How a `BlockPool` is made. */
export interface BlockPoolOptions {
  /** Blocks including the dummy block, which has the last id and is never handed out; from 2 to 2^24. */
  readonly poolSize: number;
  /** Defaults to `lru`. */
  readonly evictionPolicy?: EvictionPolicy;
  /** At least `poolSize` counters, moved by this pool alone. Without them a late reader is not noticed. */
  readonly generations?: Generations | null;
  /** Gets what an observer throws. Defaults to a process warning. */
  readonly onObserverError?: (error: unknown) => void;
}

/** The whole state under the names of the reference (spec 4, vectors `kv_block_allocator`). */
export interface BlockPoolSnapshot {
  readonly pool_avail: number;
  /** Bottom first; allocation takes from the end. */
  readonly free_stack: readonly number[];
  readonly allocatable: number;
  /** From here on only with prefix caching. One entry a block, the dummy block included. */
  readonly ref?: readonly number[];
  /** -1 when unset. */
  readonly hash?: readonly bigint[];
  readonly evictable?: number;
  readonly map?: ReadonlyMap<bigint, number>;
  /** From here on only with `lru`. */
  readonly parent?: readonly number[];
  readonly children?: readonly number[];
  readonly ts?: readonly number[];
}

/** See {@link BlockAllocator} for what the SDK calls; the rest is for the engine. One thread. */
export class BlockPool implements BlockAllocator {
  readonly poolSize: number;
  readonly evictionPolicy: EvictionPolicy;
  readonly generations: Generations | null;
  readonly #native: NativeBlockPool;
  readonly #observers: PoolObservers;

  /** @throws `ARGUMENT_INVALID`; `NATIVE_SYSTEM` when the system gives no memory */
  constructor(options: BlockPoolOptions) {
    requireObject('options', options);
    const { poolSize, evictionPolicy = 'lru', generations = null } = options;
    this.#native = native(
      () => new (addon().NativeBlockPool)(poolSize, evictionPolicy, generations === null ? null : generations.native),
    );
    this.#observers = new PoolObservers(options.onObserverError);
    this.poolSize = poolSize;
    this.evictionPolicy = evictionPolicy;
    this.generations = generations;
  }

  get prefixCaching(): boolean {
    return this.evictionPolicy !== 'none';
  }

  get freeCount(): number {
    return native(() => this.#native.freeCount);
  }

  get evictableCount(): number {
    return native(() => this.#native.evictableCount);
  }

  /** Free and evictable blocks. */
  get allocatableCount(): number {
    return this.freeCount + this.evictableCount;
  }

  /** Blocks outside the free bag: referenced or cached. */
  get usedCount(): number {
    return this.poolSize - 1 - this.freeCount;
  }

  /**
   * Moves the LRU clock; under the SDK it is the index of the schedule log.
   *
   * @param time - a safe integer; it may go back
   */
  setClock(time: number): void {
    native(() => this.#native.setClock(time));
  }

  /** @throws `ARGUMENT_INVALID`, `BLOCK_GRAPH_CYCLE` when cached blocks are each other's ancestors */
  allocate(count: number): Int32Array | null {
    if (!Number.isSafeInteger(count) || count < 0) throw argumentError('count', 'an integer of at least 0', count);
    if (count >= this.poolSize) {
      void this.freeCount; // a closed pool says so
      return null;
    }
    const ids = new Int32Array(count);
    const bits = native(() => this.#native.allocate(ids));
    if ((bits & outcome.removed) !== 0) this.#notifyRemoved();
    if ((bits & outcome.done) === 0) return null;
    this.#observers.notify((observer) => observer.allocated?.(ids.slice()));
    return ids;
  }

  /** Duplicates count separately. Unnamed blocks without references return to the bag, in ascending order if cached. */
  release(ids: Int32Array): void {
    const bits = native(() => this.#native.release(ids));
    if ((bits & outcome.removed) !== 0) this.#notifyRemoved();
  }

  /** Refreshes the time of last use as well. @throws `PREFIX_CACHING_REQUIRED`, `ARGUMENT_INVALID` for a free block */
  retain(ids: Int32Array): void {
    native(() => this.#native.retain(ids));
  }

  /** Refreshes the time of last use. Does nothing but check unless the policy is `lru`. */
  touch(ids: Int32Array): void {
    native(() => this.#native.touch(ids));
  }

  /**
   * Idempotent for the same block and hash. A batch may hold parents and children in any order; a parent that is 0 or
   * unknown makes a root.
   *
   * @throws `PREFIX_CACHING_REQUIRED`, `ARGUMENT_INVALID` for a free block, `BLOCK_HASH_CONFLICT`; nothing changed
   */
  register(ids: Int32Array, hashes: BigInt64Array, parents: BigInt64Array): void {
    native(() => this.#native.register(ids, hashes, parents));
  }

  lookup(hash: bigint): number {
    return native(() => this.#native.lookup(hash));
  }

  matchPrefix(hashes: BigInt64Array): Int32Array {
    const ids = new Int32Array(ArrayBuffer.isView(hashes) ? hashes.length : 0);
    const count = native(() => this.#native.matchPrefix(hashes, ids));
    return count === ids.length ? ids : ids.slice(0, count);
  }

  unreferencedCount(ids: Int32Array): number {
    return native(() => this.#native.unreferencedCount(ids));
  }

  isMemoryAvailable(count: number, matched = 0): boolean {
    return native(() => this.#native.isMemoryAvailable(count, matched));
  }

  /**
   * Evicts `count` cached blocks, leaves first, oldest first, then lowest id; or changes nothing and returns false.
   *
   * @throws `BLOCK_GRAPH_CYCLE` when cached blocks are each other's ancestors; nothing changed
   */
  evict(count: number): boolean {
    const bits = native(() => this.#native.evict(count));
    if ((bits & outcome.removed) !== 0) this.#notifyRemoved();
    return (bits & outcome.done) !== 0;
  }

  /** Everything free in its first order, nothing cached. Moves all generations; tells observers `cleared` alone. */
  reset(): void {
    native(() => this.#native.reset());
    this.#observers.notify((observer) => observer.cleared?.());
  }

  generationsOf(ids: Int32Array): BigUint64Array | null {
    if (this.generations === null) return null;
    const out = new BigUint64Array(ArrayBuffer.isView(ids) ? ids.length : 0);
    native(() => this.#native.generationsOf(ids, out));
    return out;
  }

  /**
   * Blocks that these request rows use (spec 4, usage accounting): each once with prefix caching, else the sum over
   * rows. -1 is padding.
   */
  usedBlocks(rows: readonly Int32Array[]): number {
    const ids = new Int32Array(rows.reduce((sum, row) => sum + row.length, 0));
    let at = 0;
    for (const row of rows) {
      ids.set(row, at);
      at += row.length;
    }
    const distinct = native(() => this.#native.distinctCount(ids));
    return this.prefixCaching ? distinct : ids.reduce((sum, id) => (id === -1 ? sum : sum + 1), 0);
  }

  /**
   * Tells `observer` of every change, after it is complete. One that throws neither stops the others nor the call
   * (`onObserverError` gets the error), and it may call the pool itself.
   *
   * @returns ends the observation
   */
  observe(observer: BlockPoolObserver): () => void {
    native(() => this.#native.trackRemoved(true));
    return this.#observers.add(observer);
  }

  /** The whole state, for tests and diagnosis; costs time and memory in proportion to the pool. */
  snapshot(): BlockPoolSnapshot {
    const state = native(() => this.#native.snapshot());
    const free = { pool_avail: this.freeCount, free_stack: [...state.freeStack], allocatable: this.allocatableCount };
    if (!this.prefixCaching) return free;
    const map = new Map<bigint, number>();
    for (const [id, hash] of state.hashes.entries()) if (hash !== -1n) map.set(hash, id);
    const cached = {
      ...free,
      ref: [...state.references],
      hash: [...state.hashes],
      evictable: this.evictableCount,
      map,
    };
    if (this.evictionPolicy !== 'lru') return cached;
    return {
      ...cached,
      parent: [...state.parents],
      children: [...state.children],
      ts: Array.from(state.timestamps, Number),
    };
  }

  /** Recomputes what is kept incrementally. Null, or what is wrong. Slow; for tests and doubt. @internal */
  audit(): string | null {
    const wrong = native(() => this.#native.audit());
    return wrong === '' ? null : wrong;
  }

  /** Idempotent. Gives the bookkeeping's memory back now; every later call throws `CLOSED`. */
  close(): void {
    this.#native.close();
  }

  #notifyRemoved(): void {
    if (this.#observers.count === 0) return;
    const { ids, hashes } = native(() => this.#native.removed());
    this.#observers.notify((observer) => observer.removed?.(ids.slice(), hashes.slice()));
  }
}
