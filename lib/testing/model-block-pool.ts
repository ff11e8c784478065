/**
 * A block allocator in plain TypeScript that follows spec 4 word by word: an independent model of the native `BlockPool`.
 *
 * It is for tests and simulations without the addon, with every piece of state in the open. It trades speed for being
 * obviously right (an eviction scans the pool), and it is stricter than the protocol: touching a block that nobody
 * owns throws instead of corrupting.
 */
import { argumentError, HandoffError } from '../errors.js';
import type { BlockAllocator } from '../memory/allocators.js';

/** When cached blocks nobody references leave the cache. */
export type EvictionPolicy = 'ref_zero' | 'lru';

/** How a `ModelBlockPool` is made. */
export interface ModelBlockPoolOptions {
  /** Blocks including the dummy block; at least 2. */
  readonly poolSize: number;
  /** Null: no prefix caching. */
  readonly policy?: EvictionPolicy | null;
}

/** What a pool tells its observers, after the change is complete. Every method is optional. */
export interface ModelPoolObserver {
  /** Blocks were handed out. */
  allocated?(ids: Int32Array): void;
  /** References were added. */
  retained?(ids: Int32Array): void;
  /** References were dropped. */
  released?(ids: Int32Array): void;
  /** Blocks got names. */
  registered?(ids: Int32Array, hashes: readonly bigint[]): void;
  /** Names that ended: evicted, or released to zero under `ref_zero`. */
  deregistered?(ids: readonly number[], hashes: readonly bigint[]): void;
}

/** A copy of everything a {@link ModelBlockPool} knows. */
export interface ModelBlockPoolState {
  /** Bottom first; allocation takes from the end. */
  readonly freeStack: readonly number[];
  readonly refs: readonly number[];
  /** -1n when unset. */
  readonly hashes: readonly bigint[];
  readonly parents: readonly number[];
  readonly children: readonly number[];
  readonly timestamps: readonly number[];
  readonly generations: readonly number[];
}

const unsetHash = -1n;

/** See the file's comment; {@link BlockAllocator} documents the interface. */
export class ModelBlockPool implements BlockAllocator {
  readonly poolSize: number;
  readonly policy: EvictionPolicy | null;
  readonly observers = new Set<ModelPoolObserver>();
  /** References to each block; read only. */
  readonly refs: Int32Array;
  /** How often each block's content has ended, from 1; read only. */
  readonly generations: Float64Array;
  readonly #freeStack: number[] = [];
  readonly #isFree: Uint8Array;
  readonly #hashes: bigint[];
  /** Low words of the hashes, for digests. */
  readonly #hashWords: Int32Array;
  readonly #parents: Int32Array;
  readonly #children: Int32Array;
  readonly #timestamps: Float64Array;
  readonly #byHash = new Map<bigint, number>();
  #clock = 0;

  /** @throws `ARGUMENT_INVALID` when `poolSize` is below 2 or the policy is unknown */
  constructor(options: ModelBlockPoolOptions) {
    const { poolSize, policy = 'lru' } = options;
    if (!Number.isSafeInteger(poolSize) || poolSize < 2) {
      throw argumentError('options.poolSize', 'an integer of at least 2', poolSize);
    }
    if (policy !== null && policy !== 'lru' && policy !== 'ref_zero') {
      throw argumentError('options.policy', "'lru', 'ref_zero' or null", policy);
    }
    this.poolSize = poolSize;
    this.policy = policy;
    this.refs = new Int32Array(poolSize);
    this.generations = new Float64Array(poolSize).fill(1);
    this.#isFree = new Uint8Array(poolSize);
    this.#hashes = new Array<bigint>(poolSize).fill(unsetHash);
    this.#hashWords = new Int32Array(poolSize).fill(-1);
    this.#parents = new Int32Array(poolSize).fill(-1);
    this.#children = new Int32Array(poolSize);
    this.#timestamps = new Float64Array(poolSize);
    for (let id = 0; id < poolSize - 1; id++) this.#push(id);
  }

  get prefixCaching(): boolean {
    return this.policy !== null;
  }

  get freeCount(): number {
    return this.#freeStack.length;
  }

  get evictableCount(): number {
    if (this.policy !== 'lru') return 0;
    let count = 0;
    for (let id = 0; id < this.poolSize; id++) if (this.#isEvictable(id)) count++;
    return count;
  }

  setClock(time: number): void {
    this.#clock = time;
  }

  allocate(count: number): Int32Array | null {
    if (!Number.isSafeInteger(count) || count < 0) throw argumentError('count', 'an integer of at least 0', count);
    const shortfall = count - this.#freeStack.length;
    if (shortfall > 0 && (this.policy !== 'lru' || !this.evict(shortfall))) return null;
    const ids = Int32Array.from(this.#freeStack.splice(this.#freeStack.length - count, count));
    for (const id of ids) {
      this.#isFree[id] = 0;
      this.refs[id] = 1;
      this.generations[id]!++;
      this.#timestamps[id] = this.policy === 'lru' ? this.#clock : 0;
    }
    for (const observer of this.observers) observer.allocated?.(ids);
    return ids;
  }

  release(ids: Int32Array): void {
    this.#requireIds(ids);
    const drops = new Map<number, number>();
    for (const id of ids) drops.set(id, (drops.get(id) ?? 0) + 1);
    for (const [id, count] of drops) {
      if (this.refs[id]! < count) {
        throw new HandoffError(
          'BLOCK_OVER_RELEASED',
          `release failed because block ${id} has ${this.refs[id]} references and ${count} were to be dropped`,
          { details: { block: id, references: this.refs[id], dropped: count } },
        );
      }
    }
    const order = this.prefixCaching ? [...drops.keys()].sort((a, b) => a - b) : [...drops.keys()];
    const ended: number[] = [];
    const back: number[] = [];
    for (const id of order) {
      this.refs[id]! -= drops.get(id)!;
      if (this.refs[id] !== 0) continue;
      const isNamed = this.#hashes[id] !== unsetHash;
      if (isNamed && this.policy === 'lru') continue; // stays cached
      if (isNamed) ended.push(id);
      back.push(id);
    }
    this.#returnToBag(back, ended);
    for (const observer of this.observers) observer.released?.(ids);
  }

  retain(ids: Int32Array): void {
    if (!this.prefixCaching) {
      throw new HandoffError('PREFIX_CACHING_REQUIRED', 'retain failed because this pool has no prefix caching');
    }
    this.#requireIds(ids);
    for (const [index, id] of ids.entries()) {
      if (this.#isFree[id] === 1) throw argumentError(`ids[${index}]`, 'a referenced or cached block', id);
    }
    for (const id of ids) {
      this.refs[id]!++;
      if (this.policy === 'lru') this.#timestamps[id] = this.#clock;
    }
    for (const observer of this.observers) observer.retained?.(ids);
  }

  /** Refreshes the LRU time without adding a reference. */
  touch(ids: Int32Array): void {
    this.#requireIds(ids);
    if (this.policy === 'lru') for (const id of ids) this.#timestamps[id] = this.#clock;
  }

  register(ids: Int32Array, hashes: BigInt64Array, parents: BigInt64Array): void {
    if (!this.prefixCaching) {
      throw new HandoffError('PREFIX_CACHING_REQUIRED', 'register failed because this pool has no prefix caching');
    }
    this.#requireIds(ids);
    if (hashes.length !== ids.length) throw argumentError('hashes', `${ids.length} hashes`, hashes.length);
    if (parents.length !== ids.length) throw argumentError('parents', `${ids.length} hashes`, parents.length);
    const names = new Map<number, bigint>();
    const taken = new Set<bigint>();
    for (const [index, id] of ids.entries()) {
      const hash = hashes[index]!;
      if (hash < 1n) throw argumentError(`hashes[${index}]`, 'a hash of at least 1', hash);
      if (this.#isFree[id] === 1) throw argumentError(`ids[${index}]`, 'a referenced or cached block', id);
      const name = names.get(id) ?? this.#hashes[id]!;
      if (name !== unsetHash && name !== hash) {
        throw new HandoffError(
          'BLOCK_HASH_CONFLICT',
          `register failed because block ${id} is registered as ${name} and was given ${hash}`,
          { details: { block: id } },
        );
      }
      // A hash that another block holds names nothing, so it cannot conflict with a later one either.
      if (name === hash || this.#byHash.has(hash) || taken.has(hash)) continue;
      names.set(id, hash);
      taken.add(hash);
    }
    const added: number[] = [];
    const newIds: number[] = [];
    const newHashes: bigint[] = [];
    for (const [index, id] of ids.entries()) {
      const hash = hashes[index]!;
      // The first holder of a hash keeps it; a second block with the same content stays unnamed.
      if (this.#hashes[id] === hash || this.#byHash.has(hash)) continue;
      this.#hashes[id] = hash;
      this.#hashWords[id] = Number(BigInt.asIntN(32, hash));
      this.#byHash.set(hash, id);
      added.push(index);
      newIds.push(id);
      newHashes.push(hash);
    }
    if (this.policy === 'lru') {
      for (const index of added) {
        const parent = parents[index] === 0n ? undefined : this.#byHash.get(parents[index]!);
        this.#parents[ids[index]!] = parent ?? -1;
        if (parent !== undefined) this.#children[parent]!++;
      }
    }
    if (newIds.length === 0) return;
    const registered = Int32Array.from(newIds);
    for (const observer of this.observers) observer.registered?.(registered, newHashes);
  }

  lookup(hash: bigint): number {
    return this.#byHash.get(hash) ?? -1;
  }

  matchPrefix(hashes: BigInt64Array): Int32Array {
    const blocks: number[] = [];
    for (const hash of hashes) {
      const id = this.#byHash.get(hash);
      if (id === undefined) break;
      blocks.push(id);
    }
    return Int32Array.from(blocks);
  }

  unreferencedCount(ids: Int32Array): number {
    this.#requireIds(ids);
    let count = 0;
    for (const id of ids) if (this.refs[id] === 0) count++;
    return count;
  }

  isMemoryAvailable(count: number, matched: number): boolean {
    return this.#freeStack.length >= count || this.#freeStack.length + this.evictableCount - matched >= count;
  }

  generationsOf(ids: Int32Array): BigUint64Array {
    this.#requireIds(ids);
    return BigUint64Array.from(ids, (id) => BigInt(this.generations[id]!));
  }

  /**
   * Evicts `count` cached blocks, leaves first, oldest first, and returns true; or changes nothing and returns false.
   *
   * @throws `BLOCK_GRAPH_CYCLE` when evictable blocks are each other's parents
   */
  evict(count: number): boolean {
    if (this.policy !== 'lru' || this.evictableCount < count) return false;
    const children = this.#children.slice();
    const taken = new Set<number>();
    const order: number[] = [];
    while (order.length < count) {
      let oldest = -1;
      for (let id = 0; id < this.poolSize; id++) {
        if (taken.has(id) || children[id] !== 0 || !this.#isEvictable(id)) continue;
        if (oldest < 0 || this.#timestamps[id]! < this.#timestamps[oldest]!) oldest = id;
      }
      if (oldest < 0) {
        this.#requireAcyclic();
        return false; // what is left are cached parents of blocks that are in use
      }
      taken.add(oldest);
      order.push(oldest);
      const parent = this.#parents[oldest]!;
      if (parent >= 0) children[parent]!--;
    }
    // Dropping a name is where content ends; a later owner moves the generation once more.
    for (const id of order) this.generations[id]!++;
    this.#returnToBag(order, order);
    return true;
  }

  /** Drops everything: all blocks free in their first order. Generations go on, since all content ends. */
  reset(): void {
    const ids: number[] = [];
    const hashes: bigint[] = [];
    for (let id = 0; id < this.poolSize; id++) {
      if (this.#hashes[id] === unsetHash) continue;
      ids.push(id);
      hashes.push(this.#hashes[id]!);
    }
    this.#freeStack.length = 0;
    this.#byHash.clear();
    for (let id = 0; id < this.poolSize; id++) {
      this.refs[id] = 0;
      this.generations[id]!++;
      this.#forget(id);
      if (id < this.poolSize - 1) this.#push(id);
    }
    if (ids.length === 0) return;
    for (const observer of this.observers) observer.deregistered?.(ids, hashes);
  }

  /** Whether a block is in the free bag. */
  isFree(id: number): boolean {
    return this.#isFree[id] === 1;
  }

  /** The hash that a block is named by; -1: none. */
  hashOf(id: number): bigint {
    return this.#hashes[id]!;
  }

  /** The whole state, in the form of the reference's traces. */
  state(): ModelBlockPoolState {
    return {
      freeStack: [...this.#freeStack],
      refs: [...this.refs],
      hashes: [...this.#hashes],
      parents: [...this.#parents],
      children: [...this.#children],
      timestamps: [...this.#timestamps],
      generations: [...this.generations],
    };
  }

  /** A 32-bit digest of the whole state: equal pools give equal digests. */
  digest(): number {
    let digest = 0x811c9dc5;
    const mix = (value: number): void => {
      digest = Math.imul(digest ^ value, 0x01000193);
    };
    for (const id of this.#freeStack) mix(id);
    for (let id = 0; id < this.poolSize; id++) {
      mix(this.refs[id]!);
      mix(this.#parents[id]!);
      mix(this.#children[id]!);
      mix(this.#timestamps[id]!);
      mix(this.generations[id]!);
      mix(this.#hashWords[id]!);
    }
    return digest >>> 0;
  }

  #isEvictable(id: number): boolean {
    return this.refs[id] === 0 && this.#hashes[id] !== unsetHash;
  }

  #push(id: number): void {
    this.#freeStack.push(id);
    this.#isFree[id] = 1;
  }

  /** `ended`: those of `back` whose names end with it. */
  #returnToBag(back: readonly number[], ended: readonly number[]): void {
    const hashes = ended.map((id) => this.#hashes[id]!);
    for (const id of ended) this.#endName(id);
    for (const id of back) this.#push(id);
    if (ended.length === 0) return;
    for (const observer of this.observers) observer.deregistered?.(ended, hashes);
  }

  #endName(id: number): void {
    this.#byHash.delete(this.#hashes[id]!);
    const parent = this.#parents[id]!;
    if (parent >= 0) this.#children[parent]!--;
    this.#forget(id);
  }

  #forget(id: number): void {
    this.#hashes[id] = unsetHash;
    this.#hashWords[id] = -1;
    this.#parents[id] = -1;
    this.#children[id] = 0;
    this.#timestamps[id] = 0;
  }

  #requireAcyclic(): void {
    for (let start = 0; start < this.poolSize; start++) {
      let id = start;
      for (let hops = 0; id >= 0; hops++) {
        if (hops > this.poolSize) {
          throw new HandoffError('BLOCK_GRAPH_CYCLE', `evict failed because block ${start} is its own ancestor`, {
            details: { block: start },
          });
        }
        id = this.#parents[id]!;
      }
    }
  }

  #requireIds(ids: Int32Array): void {
    for (let index = 0; index < ids.length; index++) {
      const id = ids[index]!;
      if (id < 0 || id >= this.poolSize - 1) {
        throw argumentError(`ids[${index}]`, `a block id in [0, ${this.poolSize - 2}]`, id);
      }
    }
  }
}
