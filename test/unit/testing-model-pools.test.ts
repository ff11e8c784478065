/**
 * The model pools against the traces of the reference allocator, against each other under random use, and against
 * misuse. They are what the simulation trusts, so they are checked from outside before anything is checked with them.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ModelBlockPool, type EvictionPolicy } from '../../lib/testing/model-block-pool.js';
import { ModelSlotPool } from '../../lib/testing/model-slot-pool.js';
import { SeededRandom } from '../../lib/testing/seeded-random.js';

interface Step {
  readonly init?: State;
  readonly op?: readonly [string, ...unknown[]];
  readonly result?: unknown;
  readonly state?: State;
  readonly observer?: unknown;
  readonly error?: { readonly type: string };
}
type State = Readonly<Record<string, unknown>>;

function cases<T>(section: string): readonly T[] {
  const path = join(__dirname, '..', 'vectors', `${section}.json`);
  return (JSON.parse(readFileSync(path, 'utf8')) as { cases: readonly T[] }).cases;
}

const ids = (list: unknown): Int32Array => Int32Array.from(list as number[]);
const hashes = (list: unknown): BigInt64Array => BigInt64Array.from((list as (number | string)[]).map(BigInt));

function poolState(pool: ModelBlockPool): State {
  const state = pool.state();
  const named = state.hashes.map((hash, id) => [String(hash), id] as const).filter(([hash]) => hash !== '-1');
  return {
    pool_avail: pool.freeCount,
    free_stack: state.freeStack,
    allocatable: pool.freeCount + pool.evictableCount,
    ref: state.refs,
    hash: state.hashes.map(Number),
    evictable: pool.evictableCount,
    map: Object.fromEntries(named),
    parent: state.parents,
    children: state.children,
    ts: state.timestamps,
  };
}

function applyToPool(pool: ModelBlockPool, [name, ...args]: readonly [string, ...unknown[]]): unknown {
  switch (name) {
    case 'alloc': {
      const allocated = pool.allocate(args[0] as number);
      return allocated === null ? null : [...allocated];
    }
    case 'release':
      return pool.release(ids(args[0])) ?? null;
    case 'retain':
      return pool.retain(ids(args[0])) ?? null;
    case 'touch':
      return pool.touch(ids(args[0])) ?? null;
    case 'register':
      return pool.register(ids(args[0]), hashes(args[1]), hashes(args[2])) ?? null;
    case 'clock':
      return pool.setClock(args[0] as number) ?? null;
    case 'evict':
      return pool.evict(args[0] as number);
    case 'avail':
      return pool.isMemoryAvailable(args[0] as number, (args[1] as number | undefined) ?? 0);
    default:
      throw new Error(`unknown operation ${name}`);
  }
}

describe('ModelBlockPool follows the reference allocator', () => {
  const traces = cases<{ name: string; pool: number; policy: EvictionPolicy | null; trace: readonly Step[] }>(
    'kv_block_allocator',
  );
  test('there are traces', () => expect(traces.length).toBeGreaterThanOrEqual(8));
  test.each(traces.map((each) => [each.name, each] as const))('%s', (_name, { pool: poolSize, policy, trace }) => {
    const pool = new ModelBlockPool({ poolSize, policy });
    const ended: unknown[] = [];
    pool.observers.add({ deregistered: (gone, names) => ended.push([gone, names.map(Number).sort((a, b) => a - b)]) });
    for (const step of trace) {
      ended.length = 0;
      if (step.op !== undefined) {
        const op = step.op;
        if (step.error === undefined) expect(applyToPool(pool, op)).toEqual(step.result);
        else expect(() => applyToPool(pool, op)).toThrow();
      }
      expect(poolState(pool)).toMatchObject((step.init ?? step.state)!);
      expect(ended).toEqual(step.observer ?? []);
    }
  });
});

describe('ModelSlotPool follows the reference pool', () => {
  const traces = cases<{ name: string; max_requests: number; trace: readonly Step[] }>('ssm_slot_pool');
  test('there are traces', () => expect(traces.length).toBeGreaterThanOrEqual(4));
  test.each(traces.map((each) => [each.name, each] as const))('%s', (_name, { max_requests: maxRequests, trace }) => {
    const pool = new ModelSlotPool({ maxRequests });
    const apply = ([name, ...args]: readonly [string, ...unknown[]]): unknown => {
      if (name === 'allocate') {
        const slot = pool.allocate();
        return slot < 0 ? null : slot;
      }
      if (name === 'batch') return pool.allocateBatch(args[0] as number);
      if (name === 'free') return pool.free(args[0] as number) ?? null;
      if (name === 'bind') return pool.bind(args[0] as number, args[1] as number) ?? null;
      if (name === 'detach') return pool.detach(args[0] as number);
      if (name === 'reset') return pool.reset() ?? null;
      if (name === 'free_requests') return pool.freeRows(args[0] as number[]) ?? null;
      throw new Error(`unknown operation ${name}`);
    };
    for (const step of trace) {
      if (step.op !== undefined) {
        const op = step.op;
        if (step.error !== undefined) expect(() => apply(op)).toThrow();
        else expect(apply(op)).toEqual(step.result);
      }
      const { freeStack, bound } = pool.state();
      expect({ free_stack: freeStack, bound }).toEqual({
        free_stack: (step.init ?? step.state)!.free_stack,
        bound: (step.init ?? step.state)!.bound,
      });
    }
  });
});

describe('ModelBlockPool', () => {
  test('a generation moves when a new owner takes a block or it is evicted, never when a reference is dropped', () => {
    const pool = new ModelBlockPool({ poolSize: 3 });
    const [a, b] = pool.allocate(2)!;
    expect([...pool.generationsOf(ids([a, b]))]).toEqual([2n, 2n]);
    pool.register(ids([b]), hashes([7]), hashes([0]));
    pool.release(ids([a, b]));
    expect([...pool.generationsOf(ids([a, b]))]).toEqual([2n, 2n]);
    pool.retain(ids([b]));
    pool.release(ids([b]));
    expect([...pool.generationsOf(ids([b]))]).toEqual([2n]);
    expect(pool.evict(1)).toBe(true);
    expect([...pool.generationsOf(ids([a, b]))]).toEqual([2n, 3n]);
    pool.allocate(2);
    expect([...pool.generationsOf(ids([a, b]))]).toEqual([3n, 4n]);
  });

  test('a second block with a hash that another holds stays unnamed', () => {
    const pool = new ModelBlockPool({ poolSize: 4 });
    const blocks = pool.allocate(2)!;
    pool.register(blocks, hashes([5, 5]), hashes([0, 0]));
    expect(pool.lookup(5n)).toBe(blocks[0]);
    expect(pool.hashOf(blocks[1]!)).toBe(-1n);
    pool.release(blocks);
    expect(pool.isFree(blocks[1]!)).toBe(true);
    expect(pool.isFree(blocks[0]!)).toBe(false);
  });

  test('never evicts the parent of a block that is in use, and does not call that a cycle', () => {
    const pool = new ModelBlockPool({ poolSize: 4 });
    const [parent, child] = pool.allocate(2)!;
    pool.register(ids([parent, child]), hashes([1, 2]), hashes([0, 1]));
    pool.release(ids([parent]));
    const before = pool.digest();
    expect(pool.evictableCount).toBe(1);
    expect(pool.evict(1)).toBe(false);
    expect(pool.allocate(2)).toBeNull();
    expect(pool.digest()).toBe(before);
  });

  test('a cycle of parents is an error, not an endless search', () => {
    const pool = new ModelBlockPool({ poolSize: 4 });
    const blocks = pool.allocate(2)!;
    pool.register(blocks, hashes([1, 2]), hashes([2, 1]));
    pool.release(blocks);
    expect(() => pool.evict(1)).toThrow(expect.objectContaining({ code: 'BLOCK_GRAPH_CYCLE' }));
  });

  test('counts what a caller is about to pin out of what can be evicted', () => {
    const pool = new ModelBlockPool({ poolSize: 5 });
    const blocks = pool.allocate(2)!;
    pool.register(blocks, hashes([1, 2]), hashes([0, 1]));
    pool.release(blocks);
    expect(pool.unreferencedCount(blocks)).toBe(2);
    expect([...pool.matchPrefix(hashes([1, 2, 3]))]).toEqual([...blocks]);
    expect([...pool.matchPrefix(hashes([3, 1, 2]))]).toEqual([]);
    expect(pool.isMemoryAvailable(4, 0)).toBe(true);
    expect(pool.isMemoryAvailable(4, 1)).toBe(false);
    expect(pool.isMemoryAvailable(2, 2)).toBe(true);
  });

  test('reset frees all, moves all generations and reports the names that ended', () => {
    const pool = new ModelBlockPool({ poolSize: 4 });
    const blocks = pool.allocate(2)!;
    pool.register(blocks, hashes([1, 2]), hashes([0, 1]));
    const ended: unknown[] = [];
    pool.observers.add({ deregistered: (gone, names) => ended.push([gone, names]) });
    const before = [...pool.generations];
    pool.reset();
    expect(pool.state()).toMatchObject({ freeStack: [0, 1, 2], refs: [0, 0, 0, 0], children: [0, 0, 0, 0] });
    expect([...pool.generations]).toEqual(before.map((generation) => generation + 1));
    expect(ended).toEqual([[[...blocks], [1n, 2n]]]);
    expect(pool.lookup(1n)).toBe(-1);
  });

  test('refuses, with nothing changed, what no caller may do', () => {
    const pool = new ModelBlockPool({ poolSize: 4 });
    const blocks = pool.allocate(2)!;
    pool.register(ids([blocks[0]]), hashes([9]), hashes([0]));
    const free = [0, 1, 2].find((id) => pool.isFree(id))!;
    const before = pool.digest();
    expect(() => pool.release(ids([blocks[0], blocks[1], blocks[1]]))).toThrow(
      expect.objectContaining({ code: 'BLOCK_OVER_RELEASED' }),
    );
    expect(() => pool.release(ids([free]))).toThrow(expect.objectContaining({ code: 'BLOCK_OVER_RELEASED' }));
    expect(() => pool.retain(ids([blocks[0], free]))).toThrow('ids[1]: expected a referenced or cached block');
    expect(() => pool.retain(ids([3]))).toThrow('ids[0]: expected a block id in [0, 2], got 3');
    expect(() => pool.release(ids([-1]))).toThrow('ids[0]: expected a block id in [0, 2], got -1');
    expect(() => pool.register(ids([blocks[1], blocks[0]]), hashes([8, 7]), hashes([0, 0]))).toThrow(
      expect.objectContaining({ code: 'BLOCK_HASH_CONFLICT' }),
    );
    expect(() => pool.register(blocks, hashes([1]), hashes([0, 0]))).toThrow('hashes: expected 2 hashes, got 1');
    expect(() => pool.register(blocks, hashes([9, 1]), hashes([0]))).toThrow('parents: expected 2 hashes, got 1');
    expect(() => pool.register(ids([blocks[1]]), hashes([0]), hashes([0]))).toThrow(
      'hashes[0]: expected a hash of at least 1, got 0n',
    );
    expect(() => pool.register(ids([free]), hashes([3]), hashes([0]))).toThrow(
      'ids[0]: expected a referenced or cached block',
    );
    expect(() => pool.allocate(-1)).toThrow('count: expected an integer of at least 0, got -1');
    expect(pool.digest()).toBe(before);
    expect(() => new ModelBlockPool({ poolSize: 1 })).toThrow(
      'options.poolSize: expected an integer of at least 2, got 1',
    );
    expect(() => new ModelBlockPool({ poolSize: 4, policy: 'fifo' as 'lru' })).toThrow(
      "options.policy: expected 'lru', 'ref_zero' or null",
    );
    const uncached = new ModelBlockPool({ poolSize: 4, policy: null });
    const own = uncached.allocate(1)!;
    expect(() => uncached.retain(own)).toThrow(expect.objectContaining({ code: 'PREFIX_CACHING_REQUIRED' }));
    expect(() => uncached.register(own, hashes([1]), hashes([0]))).toThrow(
      expect.objectContaining({ code: 'PREFIX_CACHING_REQUIRED' }),
    );
  });

  test('under random use no block is both free and referenced, none is lost, and a prefix stays a prefix', () => {
    for (let seed = 1; seed <= 30; seed++) {
      const random = new SeededRandom(seed);
      const policy = random.pick(['lru', 'ref_zero'] as const);
      const pool = new ModelBlockPool({ poolSize: random.int(4, 20), policy });
      const twin = new ModelBlockPool({ poolSize: pool.poolSize, policy });
      const held: Int32Array[] = [];
      let nextHash = 1;
      const both = <T>(call: (pool: ModelBlockPool) => T): T => {
        call(twin);
        return call(pool);
      };
      for (let step = 0; step < 200; step++) {
        both((each) => each.setClock(step));
        if (random.chance(0.6)) {
          const blocks = both((each) => each.allocate(3));
          if (blocks === null) continue;
          held.push(blocks);
          const names = hashes([nextHash, nextHash + 1]);
          const parents = hashes([0, nextHash]);
          nextHash += 2;
          if (random.chance(0.7)) both((each) => each.register(blocks.subarray(0, 2), names, parents));
        } else if (held.length > 0) {
          const index = random.int(0, held.length - 1);
          const [blocks] = held.splice(index, 1);
          both((each) => each.release(blocks!));
        }
        const state = pool.state();
        expect(new Set(state.freeStack).size).toBe(state.freeStack.length);
        const referenced = state.refs.flatMap((count, id) => (count > 0 ? [id] : []));
        const cached = state.hashes.flatMap((hash, id) => (hash !== -1n && state.refs[id] === 0 ? [id] : []));
        expect([...state.freeStack, ...referenced, ...cached].sort((a, b) => a - b)).toEqual([
          ...Array(pool.poolSize - 1).keys(),
        ]);
        for (const [id, hash] of state.hashes.entries()) {
          if (policy !== 'lru' || hash === -1n || hash % 2n === 1n) continue;
          expect(pool.lookup(hash - 1n)).toBe(state.parents[id]);
          expect(state.parents[id]).toBeGreaterThanOrEqual(0);
        }
        expect(twin.digest()).toBe(pool.digest());
      }
    }
  });
});

describe('ModelSlotPool', () => {
  test('a generation moves when a new owner takes the slot, not when it is freed', () => {
    const pool = new ModelSlotPool({ maxRequests: 2 });
    const slot = pool.allocate();
    pool.free(slot);
    expect([...pool.generationsOf(ids([slot]))]).toEqual([2n]);
    pool.allocate();
    expect([...pool.generationsOf(ids([slot]))]).toEqual([3n]);
  });

  test('refuses what no caller may do', () => {
    const pool = new ModelSlotPool({ maxRequests: 2 });
    const slot = pool.allocate();
    expect(() => pool.free(2)).toThrow(expect.objectContaining({ code: 'SLOT_OUT_OF_RANGE' }));
    expect(() => pool.free(-1)).toThrow('slot: expected a slot in [0, 1], got -1');
    expect(() => pool.free(1 - slot)).toThrow(expect.objectContaining({ code: 'SLOT_POOL_OVERFLOW' }));
    expect(() => pool.detach(0)).toThrow(expect.objectContaining({ code: 'SLOT_NOT_BOUND' }));
    expect(() => pool.bind(0, 5)).toThrow(expect.objectContaining({ code: 'SLOT_OUT_OF_RANGE' }));
    expect(() => pool.bind(2, 0)).toThrow('row: expected a row in [0, 1], got 2');
    expect(() => pool.generationsOf(ids([4]))).toThrow(expect.objectContaining({ code: 'SLOT_OUT_OF_RANGE' }));
    expect(pool.allocate()).toBe(1 - slot);
    expect(pool.allocate()).toBe(-1);
    expect(() => new ModelSlotPool({ maxRequests: 0 })).toThrow(
      'options.maxRequests: expected a positive integer, got 0',
    );
  });
});
