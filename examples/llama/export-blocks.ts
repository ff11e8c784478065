/**
 * The block allocator of the prefill example, an engine's own one instead of the SDK's pool: reference counts, names by
 * hash, oldest unused first. Generations tell readers that come too late; who hands a block to a new owner says so
 * (`blocksReused`) before the first byte is written.
 */
import { Generations, type BlockAllocator } from 'state-handoff';

export class ExportBlocks implements BlockAllocator {
  readonly poolSize: number;
  readonly prefixCaching = true;
  readonly generations: Generations;
  private readonly references: Int32Array;
  private readonly hashes: BigInt64Array;
  private readonly byHash = new Map<bigint, number>();
  /** Blocks without a name, last in first out. */
  private readonly free: number[];
  /** Blocks with a name that nobody references, oldest first. */
  private readonly unused = new Set<number>();

  /** @param poolSize - blocks, the dummy block included */
  constructor(poolSize: number) {
    this.poolSize = poolSize;
    this.generations = new Generations(poolSize);
    this.references = new Int32Array(poolSize);
    this.hashes = new BigInt64Array(poolSize).fill(-1n);
    this.free = Array.from({ length: poolSize - 1 }, (_, index) => poolSize - 2 - index);
  }

  get freeCount(): number {
    return this.free.length;
  }

  get evictableCount(): number {
    return this.unused.size;
  }

  /** Age is the order of release here. */
  setClock(): void {}

  allocate(count: number): Int32Array | null {
    if (!this.isMemoryAvailable(count, 0)) return null;
    return Int32Array.from({ length: count }, () => {
      const block = this.free.pop() ?? this.evict();
      this.references[block] = 1;
      return block;
    });
  }

  release(ids: Int32Array): void {
    const drops = new Map<number, number>();
    for (const id of ids) drops.set(id, (drops.get(id) ?? 0) + 1);
    for (const [id, count] of drops) {
      if (!(this.references[id]! >= count)) throw new Error(`block ${id}: expected ${count} references to drop`);
    }
    // From the end, so that the tail of a prompt is older than its head and goes first.
    for (const id of [...ids].reverse()) {
      this.references[id]! -= 1;
      if (this.references[id] !== 0) continue;
      if (this.hashes[id] === -1n) this.free.push(id);
      else this.unused.add(id);
    }
  }

  retain(ids: Int32Array): void {
    for (const id of ids) {
      if (!(this.references[id]! > 0) && !this.unused.has(id)) throw new Error(`block ${id}: expected one in use`);
    }
    for (const id of ids) {
      this.references[id]! += 1;
      this.unused.delete(id);
    }
  }

  register(ids: Int32Array, hashes: BigInt64Array): void {
    for (const [index, id] of ids.entries()) {
      const hash = hashes[index]!;
      if (this.hashes[id] !== -1n || this.byHash.has(hash)) continue;
      this.hashes[id] = hash;
      this.byHash.set(hash, id);
    }
  }

  lookup(hash: bigint): number {
    return this.byHash.get(hash) ?? -1;
  }

  matchPrefix(hashes: BigInt64Array): Int32Array {
    const found: number[] = [];
    for (const hash of hashes) {
      const id = this.byHash.get(hash);
      if (id === undefined) break;
      found.push(id);
    }
    return Int32Array.from(found);
  }

  unreferencedCount(ids: Int32Array): number {
    return ids.reduce((count, id) => count + Number(this.references[id] === 0), 0);
  }

  isMemoryAvailable(count: number, matched: number): boolean {
    return count <= this.free.length + this.unused.size - matched;
  }

  generationsOf(ids: Int32Array): BigUint64Array {
    return BigUint64Array.from(ids, (id) => this.generations.get(id));
  }

  private evict(): number {
    const [oldest] = this.unused;
    if (oldest === undefined) throw new Error('expected a block to evict');
    this.unused.delete(oldest);
    this.byHash.delete(this.hashes[oldest]!);
    this.hashes[oldest] = -1n;
    return oldest;
  }
}
