/**
 * Goal: what hangs on a block pool hangs on safely: generations, observers, accounting, closing. Method: one test for
 * each promise.
 */
import { BlockPool, type BlockPoolSnapshot, type EvictionPolicy } from '../../lib/memory/block-pool.js';
import { Generations } from '../../lib/memory/generations.js';
import { codeOf, hashes, ids } from '../support/pool-values.js';

describe('generations', () => {
  function withGenerations(evictionPolicy: EvictionPolicy): { pool: BlockPool; generations: Generations } {
    const generations = new Generations(8);
    return { pool: new BlockPool({ poolSize: 8, evictionPolicy, generations }), generations };
  }

  test.each(['none', 'ref_zero', 'lru'] as const)('%s: move for a new owner, not on release', (policy) => {
    const { pool, generations } = withGenerations(policy);
    const block = pool.allocate(1)!;
    expect(pool.generationsOf(block)).toEqual(BigUint64Array.of(2n));
    if (policy !== 'none') pool.register(block, hashes(1), hashes(0));
    pool.release(block);
    expect(pool.generationsOf(block)).toEqual(BigUint64Array.of(2n));
    expect(generations.get(0)).toBe(1n);
  });

  test('move once for an eviction and once more for the new owner', () => {
    const { pool } = withGenerations('lru');
    const block = pool.allocate(1)!;
    pool.register(block, hashes(1), hashes(0));
    pool.retain(block);
    pool.touch(block);
    pool.release(ids(block[0]!, block[0]!));
    expect(pool.generationsOf(block)).toEqual(BigUint64Array.of(2n));
    pool.evict(1);
    expect(pool.generationsOf(block)).toEqual(BigUint64Array.of(3n));
    expect(pool.allocate(1)).toEqual(block);
    expect(pool.generationsOf(block)).toEqual(BigUint64Array.of(4n));
  });

  test('an eviction and a new owner in one call move it twice, others of that call once', () => {
    const { pool } = withGenerations('lru');
    const cached = pool.allocate(2)!;
    pool.register(cached, hashes(1, 2), hashes(0, 0));
    pool.release(cached);
    pool.allocate(3);
    expect(pool.allocate(4)).toEqual(ids(0, 1, 5, 6));
    expect(pool.generationsOf(ids(0, 1, 5, 6))).toEqual(BigUint64Array.of(2n, 2n, 4n, 4n));
  });

  test('a failed eviction moves none', () => {
    const { pool } = withGenerations('lru');
    const block = pool.allocate(7)!;
    pool.register(ids(block[0]!), hashes(1), hashes(1));
    pool.release(ids(block[0]!));
    const before = pool.generationsOf(block);
    expect(codeOf(() => pool.allocate(1))).toBe('BLOCK_GRAPH_CYCLE');
    expect(pool.generationsOf(block)).toEqual(before);
  });

  test('a reset ends all content', () => {
    const { pool } = withGenerations('lru');
    const block = pool.allocate(2)!;
    pool.reset();
    expect(pool.generationsOf(block)).toEqual(BigUint64Array.of(3n, 3n));
  });

  test('go on when the object that JavaScript holds was closed', () => {
    const { pool, generations } = withGenerations('lru');
    generations.close();
    generations.close();
    expect(codeOf(() => generations.get(0))).toBe('CLOSED');
    expect(codeOf(() => generations.advance(ids(0)))).toBe('CLOSED');
    const block = pool.allocate(1)!;
    expect(pool.generationsOf(block)).toEqual(BigUint64Array.of(2n));
    expect(codeOf(() => new BlockPool({ poolSize: 8, generations }))).toBe('CLOSED');
  });

  test('are absent when there are none, and refused when there are too few', () => {
    expect(new BlockPool({ poolSize: 8 }).generationsOf(ids(0))).toBeNull();
    expect(() => new BlockPool({ poolSize: 9, generations: new Generations(8) })).toThrow(
      'generations: expected a table of at least 9 entries, got 8',
    );
  });
});

describe('observers', () => {
  test('hear of what is complete, each in its own copy, and one that throws stops nobody', () => {
    const errors: unknown[] = [];
    const pool = new BlockPool({ poolSize: 4, onObserverError: (error) => errors.push(error) });
    const seen: unknown[] = [];
    pool.observe({
      removed: (blocks, names) => {
        blocks.fill(99);
        names.fill(99n);
        throw new Error('first');
      },
    });
    pool.observe({
      removed: (blocks, names) => seen.push([[...blocks], [...names], pool.freeCount, pool.lookup(1n)]),
      allocated: (blocks) => seen.push([...blocks]),
      cleared: () => seen.push('cleared'),
    });
    const all = pool.allocate(3)!;
    pool.register(all, hashes(3, 1, 2), hashes(0, 0, 0));
    pool.release(all);
    expect(pool.allocate(2)).toEqual(ids(0, 1));
    pool.reset();
    expect(seen).toEqual([[0, 1, 2], [[0, 1], [1n, 3n], 0, -1], [0, 1], 'cleared']);
    expect(errors).toEqual([new Error('first')]);
  });

  test('may call the pool', () => {
    const pool = new BlockPool({ poolSize: 4 });
    const all = pool.allocate(3)!;
    pool.register(all, hashes(1, 2, 3), hashes(0, 0, 0));
    pool.release(all);
    const order: number[] = [];
    pool.observe({
      removed: (blocks) => {
        order.push(...blocks);
        if (order.length === 1) pool.evict(2);
      },
    });
    pool.evict(1);
    expect(order).toEqual([0, 1, 2]);
    expect(pool.audit()).toBeNull();
  });

  test('stop hearing when they ask to', () => {
    const pool = new BlockPool({ poolSize: 4 });
    let calls = 0;
    const end = pool.observe({ allocated: () => (calls += 1) });
    pool.allocate(1);
    end();
    end();
    pool.allocate(1);
    expect(calls).toBe(1);
  });

  test('that throw are reported as process warnings when nobody else takes the error', () => {
    const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => undefined);
    try {
      const fail = (words: string) => (): never => {
        throw new Error(words);
      };
      const pool = new BlockPool({ poolSize: 4 });
      pool.observe({ cleared: fail('it was cleared') });
      pool.reset();
      const reporting = new BlockPool({ poolSize: 4, onObserverError: fail('the reporter fails too') });
      reporting.observe({ cleared: fail('again') });
      reporting.reset();
      const texts = warn.mock.calls.map(([text]) => /Error: (.*)/.exec(String(text))?.[1]);
      expect(texts).toEqual(['it was cleared', 'again', 'the reporter fails too']);
    } finally {
      warn.mockRestore();
    }
  });

  test('under ref_zero hear of unnamed blocks as well', () => {
    const pool = new BlockPool({ poolSize: 4, evictionPolicy: 'ref_zero' });
    const seen: unknown[] = [];
    pool.observe({ removed: (blocks, names) => seen.push([[...blocks], [...names]]) });
    const [a, b] = pool.allocate(2)!;
    pool.register(ids(b!), hashes(7), hashes(0));
    pool.release(ids(b!, a!));
    expect(seen).toEqual([[[a, b], [7n]]]);
  });
});

describe('accounting and life', () => {
  test('counts shared blocks of request rows once with caching, else each time', () => {
    const rows = [ids(1, 2, -1), ids(2, 3, -1)];
    expect(new BlockPool({ poolSize: 8 }).usedBlocks(rows)).toBe(3);
    expect(new BlockPool({ poolSize: 8, evictionPolicy: 'none' }).usedBlocks(rows)).toBe(4);
    expect(new BlockPool({ poolSize: 8 }).usedBlocks([])).toBe(0);
    expect(() => new BlockPool({ poolSize: 8 }).usedBlocks([ids(7)])).toThrow('expected a block id in [0, 6], got 7');
  });

  test('a reset pool is a new pool', () => {
    const pool = new BlockPool({ poolSize: 6 });
    const all = pool.allocate(4)!;
    pool.register(all, hashes(1, 2, 3, 4), hashes(0, 1, 2, 3));
    pool.release(ids(all[3]!));
    pool.reset();
    expect(pool.snapshot()).toEqual(new BlockPool({ poolSize: 6 }).snapshot());
    expect(pool.audit()).toBeNull();
  });

  test('after close every call says so', () => {
    const pool = new BlockPool({ poolSize: 6, generations: new Generations(6) });
    pool.close();
    pool.close();
    const calls: Record<string, () => unknown> = {
      freeCount: () => pool.freeCount,
      evictableCount: () => pool.evictableCount,
      setClock: () => pool.setClock(1),
      allocate: () => pool.allocate(1),
      allocateTooMany: () => pool.allocate(100),
      release: () => pool.release(ids(0)),
      retain: () => pool.retain(ids(0)),
      touch: () => pool.touch(ids(0)),
      register: () => pool.register(ids(0), hashes(1), hashes(0)),
      lookup: () => pool.lookup(1n),
      matchPrefix: () => pool.matchPrefix(hashes(1)),
      unreferencedCount: () => pool.unreferencedCount(ids(0)),
      isMemoryAvailable: () => pool.isMemoryAvailable(1),
      evict: () => pool.evict(1),
      reset: () => pool.reset(),
      generationsOf: () => pool.generationsOf(ids(0)),
      usedBlocks: () => pool.usedBlocks([ids(0)]),
      observe: () => pool.observe({}),
      snapshot: () => pool.snapshot(),
      audit: () => pool.audit(),
    };
    for (const [name, call] of Object.entries(calls)) expect([name, codeOf(call)]).toEqual([name, 'CLOSED']);
  });

  test('equal calls give equal pools', () => {
    const run = (): BlockPoolSnapshot => {
      const pool = new BlockPool({ poolSize: 400 });
      let seed = 7;
      const next = (below: number): number => (seed = (seed * 48_271) % 2_147_483_647) % below;
      const held: Int32Array[] = [];
      for (let step = 1; step < 600; step++) {
        pool.setClock(step);
        const blocks = pool.allocate(1 + next(20));
        if (blocks !== null) {
          const names = BigInt64Array.from(blocks, (_, i) => BigInt(step * 100 + i));
          pool.register(
            blocks,
            names,
            BigInt64Array.from(blocks, (_, i) => (i === 0 ? 0n : names[i - 1]!)),
          );
          held.push(blocks);
        }
        if (held.length > 10 || blocks === null) pool.release(held.splice(next(held.length), 1)[0]!);
      }
      expect(pool.audit()).toBeNull();
      return pool.snapshot();
    };
    expect(run()).toEqual(run());
  });
});
