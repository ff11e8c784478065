/**
 * Promise: the native block pool and a plain model of spec 4 never differ, whatever is done to them.
 *
 * Method: random calls, right and wrong, on both; after each call the same answer or error code, the same whole state,
 * the same generations, a clean audit of what native code keeps incrementally, and observers that tell exactly the
 * difference. Hashes come from few values, so that duplicates, conflicts, orphans and cycles are common.
 */
import { isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import { BlockPool, type EvictionPolicy } from '../../lib/memory/block-pool.js';
import { Generations } from '../../lib/memory/generations.js';
import { ModelBlockPool } from '../../lib/testing/model-block-pool.js';
import { codeOf } from '../support/pool-values.js';

interface Call {
  readonly name: 'allocate' | 'release' | 'retain' | 'touch' | 'register' | 'evict' | 'clock' | 'available' | 'reset';
  readonly numbers: readonly number[];
}

const weights: readonly (readonly [Call['name'], number])[] = [
  ['allocate', 6],
  ['release', 6],
  ['retain', 2],
  ['touch', 2],
  ['register', 6],
  ['evict', 2],
  ['clock', 2],
  ['available', 2],
  ['reset', 0.2],
];
const calls = fc.array(
  fc.record<Call>({
    name: fc.oneof(...weights.map(([name, weight]) => ({ arbitrary: fc.constant(name), weight: weight * 5 }))),
    numbers: fc.array(fc.nat(1000), { minLength: 12, maxLength: 12 }),
  }),
  { maxLength: 60, size: 'max' }, // else lists stay so short that hardly anything is ever evicted
);

const seen = new Set<string>();

/** The expectation, at a price that ten thousand of them can be paid. */
function expectSame(got: unknown, expected: unknown): void {
  if (!isDeepStrictEqual(got, expected)) expect(got).toEqual(expected);
}

function stateOf(pool: BlockPool): unknown {
  const { free_stack, ref, hash, parent, children, ts } = pool.snapshot();
  const usable = Int32Array.from({ length: pool.poolSize - 1 }, (_, id) => id);
  return { free_stack, ref, hash, parent, children, ts, generations: [...pool.generationsOf(usable)!] };
}

function stateOfModel(model: ModelBlockPool): unknown {
  const { freeStack, refs, hashes, parents, children, timestamps, generations } = model.state();
  const lru = model.policy === 'lru';
  return {
    free_stack: freeStack,
    ref: model.policy === null ? undefined : refs,
    hash: model.policy === null ? undefined : hashes,
    parent: lru ? parents : undefined,
    children: lru ? children : undefined,
    ts: lru ? timestamps : undefined,
    generations: generations.slice(0, -1).map(BigInt),
  };
}

/** Whether `count` blocks could be had once `matched` evictable ones are gone: by trying, over all that the model can do. */
function isAvailable(model: ModelBlockPool, count: number, matched: number): boolean {
  if (model.freeCount >= count) return true;
  if (model.policy !== 'lru') return false;
  // An evictable block that has a used descendant stays. What else is evictable can all be peeled.
  const { refs, hashes, parents } = model.state();
  const blocked = new Set<number>();
  for (let id = 0; id < refs.length; id++) {
    if (refs[id] === 0 || hashes[id] === -1n) continue;
    for (let up = parents[id]!; up >= 0 && refs[up] === 0 && !blocked.has(up); up = parents[up]!) blocked.add(up);
  }
  return model.freeCount + model.evictableCount - blocked.size - matched >= count;
}

function hasCycle(model: ModelBlockPool): boolean {
  const { parents } = model.state();
  return parents.some((_, start) => {
    let id = start;
    for (let hops = 0; id >= 0; hops++, id = parents[id]!) if (hops > parents.length) return true;
    return false;
  });
}

/** Blocks drawn from those that fit `wanted`, now and then any block or one that does not exist. */
function draw(model: ModelBlockPool, numbers: readonly number[], count: number, wanted: (id: number) => boolean) {
  const all = Array.from({ length: model.poolSize - 1 }, (_, id) => id);
  const fitting = all.filter(wanted);
  return Int32Array.from(numbers.slice(0, count), (number) => {
    if (number >= 990) return number === 999 ? -1 : model.poolSize - 1;
    const from = number >= 960 || fitting.length === 0 ? all : fitting;
    return from[number % from.length]!;
  });
}

function apply(pool: BlockPool, model: ModelBlockPool, { name, numbers }: Call): void {
  const [first = 0, second = 0, ...rest] = numbers;
  const both = (onPool: () => unknown, onModel: () => unknown): void => {
    const answer = codeOf(onPool);
    const expected = codeOf(onModel);
    expectSame(
      answer instanceof Int32Array ? [...answer] : answer,
      expected instanceof Int32Array ? [...expected] : expected,
    );
    if (typeof answer === 'string') seen.add(answer);
    if (answer === null || answer === false) seen.add('refused');
  };
  const count = 1 + (first % 4);
  const used = (id: number): boolean => model.refs[id]! > 0;
  switch (name) {
    case 'allocate':
      return both(
        () => pool.allocate(first % (model.poolSize + 1)),
        () => model.allocate(first % (model.poolSize + 1)),
      );
    case 'release': {
      const ids = draw(model, rest, count, used);
      return both(
        () => pool.release(ids),
        () => model.release(ids),
      );
    }
    case 'retain': {
      const ids = draw(model, rest, count, (id) => used(id) || model.hashOf(id) !== -1n);
      return both(
        () => pool.retain(ids),
        () => model.retain(ids),
      );
    }
    case 'touch': {
      const ids = draw(model, rest, count, (id) => model.hashOf(id) !== -1n);
      return both(
        () => pool.touch(ids),
        () => model.touch(ids),
      );
    }
    case 'register': {
      const drawn = draw(model, rest, count, (id) => used(id) && (second % 8 === 0 || model.hashOf(id) === -1n));
      const ids = Int32Array.from(new Set(drawn)); // one block with two hashes in a batch: a test of its own
      const name_ = (i: number): bigint => BigInt((rest[rest.length - 1 - i]! % 14) + (second % 50 === 0 ? 0 : 1));
      const hashes = BigInt64Array.from(ids, (_, i) => name_(i));
      const parents = BigInt64Array.from(ids, (_, i) =>
        // Mostly a chain, at times a random name, which makes orphans and cycles.
        second % 3 > 0 ? (i === 0 ? 0n : hashes[i - 1]!) : BigInt(rest[i]! % 15),
      );
      const answer = codeOf(() => pool.register(ids, hashes, parents));
      const expected = codeOf(() => model.register(ids, hashes, parents));
      if (typeof answer === 'string') seen.add(answer);
      // Of two faults in one batch either may be named.
      expect(answer === expected || (ids.length > 1 && answer !== undefined && expected !== undefined)).toBe(true);
      return;
    }
    case 'evict':
      return both(
        () => pool.evict(1 + (first % 4)),
        () => model.evict(1 + (first % 4)),
      );
    case 'clock':
      pool.setClock(first % 12);
      model.setClock(first % 12);
      return;
    case 'available': {
      const wanted = first % (model.poolSize + 2);
      const matched = second % (model.evictableCount + 1);
      if (hasCycle(model)) return;
      expect(pool.isMemoryAvailable(wanted, matched)).toBe(isAvailable(model, wanted, matched));
      return;
    }
    case 'reset':
      pool.reset();
      model.reset();
      return;
  }
}

/** What has to have happened for the agreement to mean something. */
const wanted: Readonly<Record<EvictionPolicy, readonly string[]>> = {
  none: ['BLOCK_OVER_RELEASED', 'PREFIX_CACHING_REQUIRED', 'ARGUMENT_INVALID', 'refused'],
  ref_zero: ['BLOCK_OVER_RELEASED', 'BLOCK_HASH_CONFLICT', 'ARGUMENT_INVALID', 'refused', 'removed'],
  lru: ['BLOCK_OVER_RELEASED', 'BLOCK_HASH_CONFLICT', 'BLOCK_GRAPH_CYCLE', 'ARGUMENT_INVALID', 'refused', 'removed'],
};

test.each<EvictionPolicy>(['none', 'ref_zero', 'lru'])('%s: native pool and model agree', (evictionPolicy) => {
  seen.clear();
  const policy = evictionPolicy === 'none' ? null : evictionPolicy;
  fc.assert(
    fc.property(fc.integer({ min: 2, max: 14 }), calls, (poolSize, list) => {
      const model = new ModelBlockPool({ poolSize, policy });
      const pool = new BlockPool({ poolSize, evictionPolicy, generations: new Generations(poolSize) });
      let removed: bigint[] = [];
      pool.observe({ removed: (_, hashes) => removed.push(...hashes) });
      let before = new Set<bigint>();
      for (const call of list) {
        removed = [];
        apply(pool, model, call);
        expectSame(stateOf(pool), stateOfModel(model));
        expectSame([pool.freeCount, pool.evictableCount], [model.freeCount, model.evictableCount]);
        expectSame(pool.audit(), null);
        const now = new Set((pool.snapshot().hash ?? []).filter((hash) => hash !== -1n));
        if (call.name !== 'reset') expectSame(removed, [...before].filter((hash) => !now.has(hash)).sort(order));
        if (removed.length > 0) seen.add('removed');
        before = now;
        const names = BigInt64Array.from({ length: 14 }, (_, i) => BigInt((i + list.length) % 15));
        expectSame([...pool.matchPrefix(names)], [...model.matchPrefix(names)]);
        expectSame(pool.lookup(names[3]!), model.lookup(names[3]!));
      }
      pool.close();
    }),
    { numRuns: 400 },
  );
  expect([...seen]).toEqual(expect.arrayContaining([...wanted[evictionPolicy]]));
});

const order = (a: bigint, b: bigint): number => (a < b ? -1 : a > b ? 1 : 0);
