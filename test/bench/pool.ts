/**
 * How fast the block pool is when it is full and cached: 1,000 blocks are allocated, each at the price of an eviction,
 * from a pool of a million blocks and from one of ten thousand. Chains are prompts whose blocks were cached together;
 * their order of last use is random. And what a call from JavaScript costs.
 */
import { availableParallelism, cpus } from 'node:os';
import { BlockPool } from '../../lib/memory/block-pool.js';
import { Generations } from '../../lib/memory/generations.js';
import type { BenchRow } from '../support/bench-row.js';
import { median } from '../support/median.js';

const large = 1_000_000;
const small = 10_000;
const allocated = 1000;
const rounds = 201;
const budgetMs = 0.3;
const ratioMax = 1.5;

/** A stream of numbers that is random and always the same. */
class Numbers {
  #hash = 88_172_645_463_325_252n;
  #index = 12_345;

  hash(): bigint {
    this.#hash = (this.#hash * 6_364_136_223_846_793_005n + 1_442_695_040_888_963_407n) & 0x7fff_ffff_ffff_ffffn;
    return this.#hash === 0n ? 1n : this.#hash;
  }

  below(limit: number): number {
    this.#index = (Math.imul(this.#index, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((this.#index / 2 ** 32) * limit);
  }
}

class FullPool {
  readonly pool: BlockPool;
  readonly #numbers = new Numbers();
  #clock = 0;

  constructor(
    blocks: number,
    readonly chain: number,
  ) {
    this.pool = new BlockPool({ poolSize: blocks + 1, generations: new Generations(blocks + 1) });
    const chains: Int32Array[] = [];
    while (this.pool.freeCount >= chain) {
      const ids = this.pool.allocate(chain)!;
      this.#register(ids);
      chains.push(ids);
    }
    for (let at = chains.length - 1; at > 0; at--) {
      const other = this.#numbers.below(at + 1);
      [chains[at], chains[other]] = [chains[other]!, chains[at]!];
    }
    for (const ids of chains) {
      this.pool.setClock(++this.#clock);
      this.pool.touch(ids);
      this.pool.release(ids);
    }
  }

  #register(ids: Int32Array): void {
    const hashes = BigInt64Array.from(ids, () => this.#numbers.hash());
    this.pool.register(
      ids,
      hashes,
      BigInt64Array.from(ids, (_, i) => (i % this.chain === 0 ? 0n : hashes[i - 1]!)),
    );
  }

  /** Milliseconds for one allocation; afterwards the pool is full and cached again. */
  allocate(): number {
    this.pool.setClock(++this.#clock);
    const start = performance.now();
    const ids = this.pool.allocate(allocated);
    const time = performance.now() - start;
    if (ids === null) throw new Error('the pool was not full of evictable blocks');
    this.#register(ids);
    this.pool.release(ids);
    return time;
  }
}

function eviction(chain: number): BenchRow[] {
  const pools = [new FullPool(large, chain), new FullPool(small, chain)];
  const times = pools.map(() => [] as number[]);
  for (let round = -20; round < rounds; round++) {
    pools.forEach((pool, which) => {
      const time = pool.allocate();
      if (round >= 0) times[which]!.push(time);
    });
  }
  const [atLarge, atSmall] = times.map(median) as [number, number];
  for (const { pool } of pools) pool.close();
  const ratio = atLarge / atSmall;
  // Single blocks in random order are the worst there is: each has its record, its slot in the hash table and its
  // generation in memory that nothing else touched, which is what remains of the difference.
  const single = chain === 1;
  const what = single ? 'single blocks in random order' : `chains of ${chain}`;
  return [
    {
      name: `allocate ${allocated} of ${large} cached blocks with LRU eviction, ${what}`,
      value: atLarge,
      unit: 'ms',
      against: `${small} cached blocks: ${atSmall.toFixed(4)} ms`,
      ratio,
      target: single ? `≤ ${budgetMs} ms` : `≤ ${budgetMs} ms, ratio ≤ ${ratioMax}`,
      ok: atLarge <= budgetMs && (single || ratio <= ratioMax),
    },
  ];
}

/** The calls of one handoff on decode, 16 blocks of a full pool. */
function handoffCalls(): BenchRow {
  const full = new FullPool(100_000, 16);
  const { pool } = full;
  const numbers = new Numbers();
  const chains = Array.from({ length: 4000 }, () => {
    const hashes = BigInt64Array.from({ length: 16 }, () => numbers.hash());
    return { hashes, parents: BigInt64Array.from(hashes, (_, i) => (i === 0 ? 0n : hashes[i - 1]!)) };
  });
  const times: number[] = [];
  chains.forEach(({ hashes, parents }, step) => {
    const start = performance.now();
    pool.setClock(1_000_000 + step);
    const cached = pool.matchPrefix(hashes);
    if (!pool.isMemoryAvailable(17, pool.unreferencedCount(cached))) throw new Error('the pool is short');
    pool.retain(cached);
    const ids = pool.allocate(17)!;
    const prompt = ids.subarray(0, 16);
    pool.generationsOf(prompt);
    pool.register(prompt, hashes, parents);
    pool.release(ids);
    times.push((performance.now() - start) * 1000);
  });
  const value = median(times.slice(1000));
  pool.close();
  return {
    name: 'all block pool calls of one handoff, 16 blocks, pool full (9 calls)',
    value,
    unit: 'µs',
    against: null,
    ratio: null,
    target: null,
    ok: true,
  };
}

export function run(): Promise<BenchRow[]> {
  return Promise.resolve([...[64, 16, 1].flatMap(eviction), handoffCalls()]);
}

async function main(): Promise<void> {
  console.log(
    `${cpus()[0]?.model ?? 'unknown processor'}, ${availableParallelism()} processors, node ${process.version}`,
  );
  console.table(await run());
}

if (require.main === module) void main();
