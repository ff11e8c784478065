/**
 * Goal: the native block pool is the allocator of spec 4. Method: the reference's traces step by step with the whole
 * state, then one test for each promise that the traces do not reach.
 */
import { BlockPool, type BlockPoolSnapshot } from '../../lib/memory/block-pool.js';
import { codeOf, hashes, ids } from '../support/pool-values.js';
import { vectorCases, type TraceStep } from '../support/vector-cases.js';

/** A snapshot in the form of the vectors: hashes are small there, the map has string keys. */
function plain(snapshot: BlockPoolSnapshot): Record<string, unknown> {
  const { hash, map, ...rest } = snapshot;
  return {
    ...rest,
    ...(hash === undefined ? {} : { hash: hash.map(Number) }),
    ...(map === undefined ? {} : { map: Object.fromEntries([...map].map(([key, id]) => [String(key), id])) }),
  };
}

describe('the traces of the reference', () => {
  interface TraceCase {
    readonly name: string;
    readonly pool: number;
    readonly policy: 'ref_zero' | 'lru' | null;
    readonly trace: readonly TraceStep[];
  }
  const codes: Readonly<Record<string, string>> = {
    register: 'BLOCK_HASH_CONFLICT',
    release: 'BLOCK_OVER_RELEASED',
    evict: 'BLOCK_GRAPH_CYCLE',
  };

  function apply(pool: BlockPool, [name, ...args]: readonly [string, ...unknown[]]): unknown {
    const list = args[0] as number[];
    switch (name) {
      case 'alloc': {
        const allocated = pool.allocate(args[0] as number);
        return allocated === null ? null : [...allocated];
      }
      case 'release':
        return pool.release(ids(...list)) ?? null;
      case 'retain':
        return pool.retain(ids(...list)) ?? null;
      case 'touch':
        return pool.touch(ids(...list)) ?? null;
      case 'register':
        return pool.register(ids(...list), hashes(...(args[1] as number[])), hashes(...(args[2] as number[]))) ?? null;
      case 'clock':
        return pool.setClock(args[0] as number) ?? null;
      case 'evict':
        return pool.evict(args[0] as number);
      case 'avail':
        return pool.isMemoryAvailable(args[0] as number, (args[1] as number | undefined) ?? 0);
      default:
        throw new Error(`the trace has an operation of unknown name ${name}`);
    }
  }

  const cases = vectorCases<TraceCase>('kv_block_allocator');
  test('are there', () => expect(cases.length).toBeGreaterThanOrEqual(8));

  test.each(cases)('$name', ({ pool: poolSize, policy, trace }) => {
    const pool = new BlockPool({ poolSize, evictionPolicy: policy ?? 'none' });
    let removed: unknown[] = [];
    pool.observe({ removed: (blocks, names) => removed.push([[...blocks], [...names].map(Number)]) });
    for (const step of trace) {
      removed = [];
      if (step.op !== undefined) {
        const { op } = step;
        if (step.error === undefined) expect(apply(pool, op)).toEqual(step.result);
        else expect(codeOf(() => apply(pool, op))).toBe(codes[op[0]]);
      }
      expect(plain(pool.snapshot())).toEqual(step.init ?? step.state);
      expect(removed).toEqual(step.observer ?? []);
      expect(pool.audit()).toBeNull();
    }
  });
});

describe('allocation', () => {
  test('hands out the top of the stack in stack order, never the dummy block', () => {
    const pool = new BlockPool({ poolSize: 6, evictionPolicy: 'none' });
    expect(pool.allocate(0)).toEqual(ids());
    expect(pool.allocate(5)).toEqual(ids(0, 1, 2, 3, 4));
    expect(pool.allocate(1)).toBeNull();
    expect([pool.freeCount, pool.usedCount, pool.evictableCount]).toEqual([0, 5, 0]);
  });

  test('without prefix caching, release keeps the given order', () => {
    const pool = new BlockPool({ poolSize: 6, evictionPolicy: 'none' });
    pool.allocate(5);
    pool.release(ids(3, 1, 4));
    expect(pool.snapshot().free_stack).toEqual([3, 1, 4]);
  });

  test('with prefix caching, release returns ascending ids', () => {
    const pool = new BlockPool({ poolSize: 6 });
    pool.allocate(5);
    pool.release(ids(3, 1, 4));
    expect(pool.snapshot().free_stack).toEqual([1, 3, 4]);
  });

  test('evicts exactly the shortfall, or nothing', () => {
    const pool = new BlockPool({ poolSize: 6 });
    const first = pool.allocate(4)!;
    pool.register(first, hashes(1, 2, 3, 4), hashes(0, 0, 0, 0));
    pool.release(first);
    expect(pool.allocate(6)).toBeNull();
    expect(pool.evictableCount).toBe(4);
    expect(pool.allocate(3)).toEqual(ids(0, 1, 2));
    expect(pool.evictableCount).toBe(2);
  });

  test('a duplicate in a list of a pool without caching is an over-release too', () => {
    const pool = new BlockPool({ poolSize: 6, evictionPolicy: 'none' });
    pool.allocate(2);
    expect(codeOf(() => pool.release(ids(3, 4, 4)))).toBe('BLOCK_OVER_RELEASED');
    expect(pool.snapshot().free_stack).toEqual([0, 1, 2]);
    pool.release(ids(3, 4));
    expect(codeOf(() => pool.release(ids(3)))).toBe('BLOCK_OVER_RELEASED');
  });

  test('an over-release says which block, and drops nothing', () => {
    const pool = new BlockPool({ poolSize: 6 });
    pool.allocate(2);
    pool.retain(ids(3));
    expect(() => pool.release(ids(4, 3, 3, 3))).toThrow(
      'release failed because block 3 has 2 references and 3 were to be dropped',
    );
    expect(pool.snapshot().ref).toEqual([0, 0, 0, 2, 1, 0]);
  });
});

describe('the prefix cache', () => {
  test('matches the longest resident leading run', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [a, b, c] = pool.allocate(3)!;
    pool.register(ids(a!, b!, c!), hashes(10, 20, 30), hashes(0, 10, 20));
    expect(pool.matchPrefix(hashes(10, 20, 99, 30))).toEqual(ids(a!, b!));
    expect(pool.matchPrefix(hashes(99, 10))).toEqual(ids());
    expect(pool.matchPrefix(hashes())).toEqual(ids());
    expect([pool.lookup(30n), pool.lookup(31n), pool.lookup(0n), pool.lookup(-1n)]).toEqual([c, -1, -1, -1]);
  });

  test('the first holder of a hash keeps it; a second block stays without a name and is free once released', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [first] = pool.allocate(1)!;
    const [second, child] = pool.allocate(2)!;
    pool.register(ids(first!), hashes(10), hashes(0));
    pool.register(ids(second!, child!), hashes(10, 20), hashes(0, 10));
    expect(pool.lookup(10n)).toBe(first);
    expect(pool.snapshot().hash![second!]).toBe(-1n);
    expect(pool.snapshot().parent![child!]).toBe(first);
    pool.release(ids(second!));
    expect(pool.snapshot().free_stack.at(-1)).toBe(second);
    expect(pool.lookup(10n)).toBe(first);
    expect(pool.audit()).toBeNull();
  });

  test('a batch with the same block twice: the same hash once, two hashes conflict and leave nothing', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [parent, block] = pool.allocate(2)!;
    pool.register(ids(parent!), hashes(1), hashes(0));
    expect(codeOf(() => pool.register(ids(block!, block!), hashes(5, 6), hashes(1, 1)))).toBe('BLOCK_HASH_CONFLICT');
    expect([pool.lookup(5n), pool.lookup(6n), pool.snapshot().hash![block!]]).toEqual([-1, -1, -1n]);
    pool.register(ids(block!, block!), hashes(5, 5), hashes(1, 1));
    expect(pool.snapshot().children![parent!]).toBe(1);
    expect(pool.audit()).toBeNull();
  });

  test('parents may follow their children in a batch', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [a, b] = pool.allocate(2)!;
    pool.register(ids(b!, a!), hashes(2, 1), hashes(1, 0));
    expect(pool.snapshot().parent![b!]).toBe(a);
    pool.release(ids(a!, b!));
    expect(pool.evict(2)).toBe(true);
  });

  test('free blocks can be neither retained nor registered', () => {
    const pool = new BlockPool({ poolSize: 8 });
    expect(() => pool.retain(ids(2))).toThrow('ids[0]: expected a referenced or cached block, got 2');
    expect(() => pool.register(ids(2), hashes(5), hashes(0))).toThrow(
      'ids[0]: expected a referenced or cached block, got 2',
    );
    expect(pool.audit()).toBeNull();
  });

  test('hashes and parents out of their range are refused before anything changes', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [a, b] = pool.allocate(2)!;
    expect(() => pool.register(ids(a!, b!), hashes(1, 0), hashes(0, 0))).toThrow(
      'hashes[1]: expected a hash of at least 1, got 0',
    );
    expect(() => pool.register(ids(a!, b!), hashes(1, 2), hashes(0, -1))).toThrow(
      'parents[1]: expected a hash of at least 1, or 0 for none, got -1',
    );
    expect(pool.snapshot().map!.size).toBe(0);
  });

  test('the largest hash has a place', () => {
    const pool = new BlockPool({ poolSize: 4 });
    const [a] = pool.allocate(1)!;
    pool.register(ids(a!), hashes(2n ** 63n - 1n), hashes(0));
    expect(pool.lookup(2n ** 63n - 1n)).toBe(a);
  });

  test('without prefix caching, references and names are refused by name', () => {
    const pool = new BlockPool({ poolSize: 4, evictionPolicy: 'none' });
    const [a] = pool.allocate(1)!;
    expect(codeOf(() => pool.retain(ids(a!)))).toBe('PREFIX_CACHING_REQUIRED');
    expect(codeOf(() => pool.register(ids(a!), hashes(1), hashes(0)))).toBe('PREFIX_CACHING_REQUIRED');
    expect(pool.matchPrefix(hashes(1))).toEqual(ids());
    expect([pool.prefixCaching, pool.evict(0), pool.evict(1)]).toEqual([false, true, false]);
  });
});

describe('eviction', () => {
  test('takes leaves by time of last use, then by id, and a parent only after its children', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [a, b, c, d] = pool.allocate(4)!; // a > b, roots c, d
    pool.register(ids(a!, b!, c!, d!), hashes(1, 2, 3, 4), hashes(0, 1, 0, 0));
    pool.setClock(5);
    pool.touch(ids(c!));
    pool.release(ids(a!, b!, c!, d!));
    const order: number[] = [];
    pool.observe({ removed: (blocks) => order.push(...blocks) });
    expect(pool.evict(4)).toBe(true);
    expect(order).toEqual([b, a, d, c]);
  });

  test('a parent in use is no leaf once its cached children are gone', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [a, b] = pool.allocate(2)!;
    pool.register(ids(a!, b!), hashes(1, 2), hashes(0, 1));
    pool.release(ids(b!));
    expect([pool.evict(1), pool.evict(1)]).toEqual([true, false]);
    expect([pool.lookup(1n), pool.audit()]).toEqual([a, null]);
  });

  test('touching a cached block refreshes it', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [a, b] = pool.allocate(2)!;
    pool.register(ids(a!, b!), hashes(1, 2), hashes(0, 0));
    pool.release(ids(a!, b!));
    pool.setClock(3);
    pool.touch(ids(a!));
    pool.evict(1);
    expect([pool.lookup(1n), pool.lookup(2n)]).toEqual([a, -1]);
    pool.setClock(-1);
    pool.touch(ids(a!));
    expect(pool.audit()).toBeNull();
  });

  test('retaining a cached block refreshes it', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [a, b] = pool.allocate(2)!;
    pool.register(ids(a!, b!), hashes(1, 2), hashes(0, 0));
    pool.release(ids(a!, b!));
    pool.setClock(3);
    pool.retain(ids(a!));
    pool.release(ids(a!));
    pool.evict(1);
    expect([pool.lookup(1n), pool.lookup(2n)]).toEqual([a, -1]);
  });

  test('a cycle of parents is an error that changes nothing', () => {
    const pool = new BlockPool({ poolSize: 8 });
    const [a, b, c] = pool.allocate(3)!;
    pool.register(ids(a!, b!), hashes(1, 2), hashes(2, 1));
    pool.register(ids(c!), hashes(3), hashes(0));
    pool.release(ids(a!, b!, c!));
    const before = pool.snapshot();
    expect(() => pool.evict(2)).toThrow(/^evict failed because block \d+ is its own ancestor$/);
    expect(codeOf(() => pool.allocate(7))).toBe('BLOCK_GRAPH_CYCLE');
    expect(pool.snapshot()).toEqual(before);
    expect(pool.audit()).toBeNull();
    expect(pool.evict(1)).toBe(true);
    expect(pool.lookup(3n)).toBe(-1);
  });

  test('a block that is its own parent is a cycle of one', () => {
    const pool = new BlockPool({ poolSize: 4 });
    const [a] = pool.allocate(1)!;
    pool.register(ids(a!), hashes(1), hashes(1));
    pool.release(ids(a!));
    expect(codeOf(() => pool.evict(1))).toBe('BLOCK_GRAPH_CYCLE');
    expect(pool.audit()).toBeNull();
  });

  test('cached ancestors of blocks in use are not promised to anybody', () => {
    const pool = new BlockPool({ poolSize: 5 });
    const [a, b, c] = pool.allocate(3)!; // a > b, root c
    pool.register(ids(a!, b!, c!), hashes(1, 2, 3), hashes(0, 1, 0));
    pool.release(ids(a!, c!));
    expect([pool.freeCount, pool.evictableCount]).toEqual([1, 2]);
    expect([1, 2, 3].map((count) => pool.isMemoryAvailable(count, 0))).toEqual([true, true, false]);
    expect(pool.isMemoryAvailable(2, 1)).toBe(false);
    const before = pool.snapshot();
    expect([pool.allocate(3), pool.evict(2)]).toEqual([null, false]);
    expect(pool.snapshot()).toEqual(before);
    pool.release(ids(b!));
    expect(pool.isMemoryAvailable(4, 0)).toBe(true);
    expect(pool.allocate(4)).toHaveLength(4);
    expect(pool.audit()).toBeNull();
  });

  test('matched blocks count once: they cannot be evicted as well', () => {
    const pool = new BlockPool({ poolSize: 5 });
    const all = pool.allocate(4)!;
    pool.register(all, hashes(1, 2, 3, 4), hashes(0, 1, 2, 3));
    pool.release(all);
    expect(pool.unreferencedCount(pool.matchPrefix(hashes(1, 2)))).toBe(2);
    expect([pool.isMemoryAvailable(2, 2), pool.isMemoryAvailable(3, 2)]).toEqual([true, false]);
  });
});
