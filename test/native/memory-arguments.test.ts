/**
 * Promise: no argument and no receiver of any kind, to any native function of memory, does more than throw an error with
 * a code, and none of the caller's code runs meanwhile.
 *
 * Each call is made with good arguments of which one is replaced by everything that is not of its kind. It must throw,
 * name the argument, and leave the object exactly as it was.
 */
import { addon } from '../../lib/native/addon.js';
import type { NativeBlockPool, NativeGenerations, NativeSsmSlotPool } from '../../lib/native/memory-types.js';
import { codeOf, hashes, ids } from '../support/pool-values.js';

const { NativeBlockPool, NativeGenerations, NativeSsmSlotPool } = addon();
const poolSize = 6;

/** Blocks 3 and 4 are held, 3 under a name; the others are free. */
function newPool(): NativeBlockPool {
  const pool = new NativeBlockPool(poolSize, 'lru', new NativeGenerations(poolSize));
  pool.allocate(new Int32Array(2));
  pool.register(ids(3), hashes(7), hashes(0));
  return pool;
}

/** Slot 2 is held, slot 1 bound to row 0, slot 0 free. */
function newSlots(): NativeSsmSlotPool {
  const slots = new NativeSsmSlotPool(3, true, new NativeGenerations(3));
  slots.allocate();
  slots.bind(0, slots.allocate());
  return slots;
}

type Kind =
  | 'count'
  | 'time'
  | 'id'
  | 'row'
  | 'flag'
  | 'policy'
  | 'generations'
  | 'hash'
  | 'ids'
  | 'hashes'
  | 'int32 out'
  | 'uint64 out'
  | 'int64 out'
  | 'tokens'
  | 'parent';

const noCode = (): never => {
  throw new Error('the caller’s code ran');
};

/** Values, and the kinds they are good for. */
const strangers: readonly (readonly [string, unknown, readonly Kind[]])[] = [
  ['undefined', undefined, []],
  ['null', null, ['generations']],
  ['a boolean', true, ['flag']],
  ['text', '1', []],
  ['zero', 0, ['count', 'time', 'id', 'row']],
  ['minus one', -1, ['time']],
  ['a fraction', 1.5, []],
  ['NaN', NaN, []],
  ['infinity', Infinity, []],
  ['2^31', 2 ** 31, ['time', 'count']],
  ['2^53', 2 ** 53, []],
  ['a bigint', 1n, ['hash']],
  ['a bigint of 70 bits', 2n ** 70n, []],
  ['a symbol', Symbol('x'), []],
  ['an object', {}, []],
  ['an object that converts', { valueOf: noCode, toString: noCode, [Symbol.toPrimitive]: noCode, length: 1 }, []],
  ['an array', [3], []],
  ['a function', noCode, []],
  ['a proxy', new Proxy(new Int32Array(1), { get: noCode, getPrototypeOf: noCode, has: noCode }), []],
  ['an ArrayBuffer', new ArrayBuffer(16), []],
  ['a DataView', new DataView(new ArrayBuffer(16)), []],
  ['a Uint8Array', new Uint8Array(1), []],
  ['a Uint8Array of 33', new Uint8Array(33), []],
  ['an Int16Array', new Int16Array(1), []],
  ['a Uint32Array', new Uint32Array(1), []],
  ['a Float32Array', new Float32Array(1), []],
  ['a Float64Array', new Float64Array(1), ['tokens']],
  ['an Int32Array', Int32Array.of(3), ['ids', 'int32 out', 'tokens']],
  ['a BigInt64Array', BigInt64Array.of(7n), ['hashes', 'int64 out', 'tokens']],
  ['a BigUint64Array', BigUint64Array.of(7n), ['uint64 out']],
  ['generations', new NativeGenerations(poolSize), ['generations']],
  ['a pool', new NativeBlockPool(4, 'lru', null), []],
  ['a heap of a forged class', Object.create(NativeGenerations.prototype), []],
  ['a proxy of generations', new Proxy(new NativeGenerations(poolSize), {}), []],
];

interface Subject {
  readonly make: () => { close?(): void };
  readonly state: (subject: never) => unknown;
  readonly signatures: Readonly<Record<string, readonly Kind[]>>;
}

const subjects: Readonly<Record<string, Subject>> = {
  NativeBlockPool: {
    make: newPool,
    state: (pool: NativeBlockPool) => [pool.snapshot(), pool.audit(), pool.freeCount],
    signatures: {
      setClock: ['time'],
      allocate: ['int32 out'],
      release: ['ids'],
      retain: ['ids'],
      touch: ['ids'],
      register: ['ids', 'hashes', 'hashes'],
      evict: ['count'],
      lookup: ['hash'],
      matchPrefix: ['hashes', 'int32 out'],
      unreferencedCount: ['ids'],
      isMemoryAvailable: ['count', 'count'],
      distinctCount: ['ids'],
      generationsOf: ['ids', 'uint64 out'],
      trackRemoved: ['flag'],
    },
  },
  NativeSsmSlotPool: {
    make: newSlots,
    state: (slots: NativeSsmSlotPool) => [
      slots.freeStack(),
      slots.rows(),
      slots.generationsOf(ids(0), new BigUint64Array(1)),
    ],
    signatures: {
      allocateBatch: ['count'],
      free: ['id'],
      bind: ['row', 'id'],
      detach: ['row'],
      freeRequests: ['ids'],
      generationsOf: ['ids', 'uint64 out'],
    },
  },
  NativeGenerations: {
    make: () => new NativeGenerations(poolSize),
    state: (generations: NativeGenerations) => Array.from({ length: poolSize }, (_, id) => generations.get(id)),
    signatures: { get: ['id'], advance: ['ids'] },
  },
};

const good: Readonly<Record<Kind, unknown>> = {
  count: 1,
  time: 1,
  id: 2,
  row: 1,
  flag: true,
  policy: 'lru',
  generations: null,
  hash: 7n,
  ids: Int32Array.of(1),
  hashes: BigInt64Array.of(7n),
  'int32 out': new Int32Array(1),
  'uint64 out': new BigUint64Array(1),
  'int64 out': new BigInt64Array(1),
  tokens: Int32Array.of(1),
  parent: new Uint8Array(32),
};

const wrong = (kinds: readonly Kind[]): (readonly [string, unknown[]])[] =>
  kinds.flatMap((kind, index) =>
    strangers
      .filter(([, , fine]) => !fine.includes(kind))
      .map(([what, value]) => {
        const values = kinds.map((each, at) => (at === index ? value : good[each]));
        return [`argument ${index} as ${what}`, values] as const;
      }),
  );

describe.each(Object.entries(subjects))('%s', (name, { make, state, signatures }) => {
  const methods = Object.entries(signatures);

  test.each(methods)('%s', (method, kinds) => {
    const subject = make();
    const before = state(subject as never);
    const call = (subject as Record<string, (...values: unknown[]) => unknown>)[method]!;
    for (const [what, values] of [...wrong(kinds), ['no arguments', []] as const]) {
      const error = (() => {
        try {
          return { code: undefined, message: `returned ${String(call.apply(subject, values as unknown[]))}` };
        } catch (thrown) {
          return thrown as { code: string; message: string };
        }
      })();
      expect([what, error.code, error.message]).toEqual([
        what,
        expect.stringMatching(/^(?:ARGUMENT_INVALID|SLOT_OUT_OF_RANGE)$/),
        expect.stringMatching(/^[a-zA-Z]+(?:\[\d+\])?: expected .+, got .+$/),
      ]);
      expect(state(subject as never)).toEqual(before);
    }
  });

  test('has a signature here for every method', () => {
    const free = ['constructor', 'close', 'freeCount', 'evictableCount', 'count', 'reset', 'removed', 'snapshot'];
    const bare = ['audit', 'allocate', 'bindDummy', 'freeStack', 'rows'];
    const known = new Set([...free, ...bare, ...Object.keys(signatures)]);
    const prototype = (addon() as unknown as Record<string, { prototype: object }>)[name]!.prototype;
    expect(Object.getOwnPropertyNames(prototype).filter((each) => !known.has(each))).toEqual([]);
    expect(methods.length).toBeGreaterThan(0);
  });

  test('methods refuse receivers of any other class', () => {
    const subject = make() as Record<string, (...values: unknown[]) => unknown>;
    const foreign = Object.entries(subjects).filter(([other]) => other !== name);
    const receivers = [
      ...[null, {}, new Int32Array(1), subject['constructor'], Object.create(Object.getPrototypeOf(subject) as object)],
      ...foreign.map(([, each]) => each.make()),
    ];
    for (const [method, kinds] of methods) {
      for (const receiver of receivers) {
        expect(() =>
          subject[method]!.apply(
            receiver,
            kinds.map((kind) => good[kind]),
          ),
        ).toThrow('Illegal invocation');
      }
    }
  });

  test('after close every method says so', () => {
    const subject = make() as Record<string, (...values: unknown[]) => unknown>;
    subject['close']!();
    subject['close']!();
    for (const [method, kinds] of methods) {
      expect([method, codeOf(() => subject[method]!(...kinds.map((kind) => good[kind])))]).toEqual([method, 'CLOSED']);
    }
  });
});

describe('constructors', () => {
  const classes: Readonly<Record<string, readonly [new (...values: never[]) => object, readonly Kind[], unknown[]]>> = {
    NativeBlockPool: [NativeBlockPool, ['count', 'policy', 'generations'], [4, 'lru', null]],
    NativeSsmSlotPool: [NativeSsmSlotPool, ['count', 'flag', 'generations'], [4, false, null]],
    NativeGenerations: [NativeGenerations, ['count'], [4]],
  };

  test.each(Object.entries(classes))(
    '%s refuses every wrong argument and leaves nothing',
    (_, [Class, kinds, fine]) => {
      const before = addon().memoryCounters();
      for (const [index, kind] of kinds.entries()) {
        for (const [what, value, goodFor] of strangers) {
          // 0 and 2^31 are no sizes; generations of six do for a pool of four.
          if (goodFor.includes(kind) && kind !== 'count') continue;
          const values = fine.map((each, at) => (at === index ? value : each));
          expect([what, codeOf(() => new Class(...(values as never[])))]).toEqual([what, 'ARGUMENT_INVALID']);
        }
      }
      expect(() => (Class as unknown as () => object)()).toThrow("cannot be invoked without 'new'");
      expect(addon().memoryCounters()).toEqual(before);
    },
  );

  test('sizes beyond the limit are refused before memory is asked for', () => {
    expect(() => new NativeBlockPool(2 ** 24 + 1, 'lru', null)).toThrow(
      'poolSize: expected an integer in [2, 16777216], got 16777217',
    );
    expect(codeOf(() => new NativeSsmSlotPool(2 ** 20 + 1, false, null))).toBe('ARGUMENT_INVALID');
    expect(codeOf(() => new NativeGenerations(2 ** 24 + 1))).toBe('ARGUMENT_INVALID');
    expect(codeOf(() => new NativeBlockPool(1, 'lru', null))).toBe('ARGUMENT_INVALID');
    new NativeBlockPool(2, 'lru', null).close();
  });
});

describe('ids and arrays', () => {
  test.each([[-1], [-(2 ** 31)], [poolSize - 1], [poolSize], [2 ** 31 - 1]])('block %i is out of range', (id) => {
    const pool = newPool();
    const before = pool.snapshot();
    const calls = [
      () => pool.release(ids(4, id)),
      () => pool.retain(ids(4, id)),
      () => pool.touch(ids(4, id)),
      () => pool.register(ids(4, id), hashes(8, 9), hashes(0, 0)),
      () => pool.unreferencedCount(ids(4, id)),
      () => pool.generationsOf(ids(4, id), new BigUint64Array(2)),
      () => pool.distinctCount(ids(4, id === -1 ? -2 : id)),
    ];
    for (const call of calls) {
      expect(codeOf(call)).toBe('ARGUMENT_INVALID');
      expect(call).toThrow(/ids\[\d\]: expected a block id in \[0, 4\], got -?\d+/);
    }
    expect(pool.snapshot()).toEqual(before);
  });

  test('lists whose lengths differ are refused', () => {
    const pool = newPool();
    expect(() => pool.register(ids(4), hashes(8, 9), hashes(0))).toThrow(
      'hashes: expected a BigInt64Array of 1, got a BigInt64Array of 2',
    );
    expect(() => pool.register(ids(4), hashes(8), hashes())).toThrow(
      'parents: expected a BigInt64Array of 1, got a BigInt64Array of 0',
    );
    expect(() => pool.matchPrefix(hashes(7), new Int32Array(2))).toThrow('out: expected an Int32Array of 1');
    expect(() => pool.generationsOf(ids(3), new BigUint64Array(2))).toThrow('out: expected a BigUint64Array of 1');
  });

  test('a detached array is not an empty one', () => {
    const pool = newPool();
    const lists = [ids(3), hashes(7), new BigUint64Array(1)] as const;
    for (const { buffer } of lists) structuredClone(buffer, { transfer: [buffer as ArrayBuffer] });
    const [gone, goneHashes, goneOut] = lists;
    const calls = [
      () => pool.allocate(gone),
      () => pool.release(gone),
      () => pool.retain(gone),
      () => pool.touch(gone),
      () => pool.register(gone, hashes(), hashes()),
      () => pool.register(ids(), goneHashes, hashes()),
      () => pool.matchPrefix(goneHashes, ids()),
      () => pool.unreferencedCount(gone),
      () => pool.generationsOf(ids(), goneOut),
      () => newSlots().freeRequests(gone),
      () => new NativeGenerations(2).advance(gone),
      () => addon().blockHashes(gone, 1, new Uint8Array(32), 0, hashes()),
    ];
    for (const call of calls) {
      expect(call).toThrow(/: expected an array in memory, got one whose buffer was detached$/);
      expect(codeOf(call)).toBe('ARGUMENT_INVALID');
    }
    pool.release(ids());
    expect(pool.audit()).toBe('');
  });

  test('shared memory is read like any other', () => {
    const pool = newPool();
    const shared = new Int32Array(new SharedArrayBuffer(8));
    shared.set([3, 4]);
    pool.retain(shared);
    pool.release(shared);
    pool.release(shared);
    expect([pool.freeCount, pool.audit()]).toEqual([4, '']);
  });
});

describe('block hashes', () => {
  const kinds: readonly Kind[] = ['tokens', 'count', 'parent', 'count'];

  test.each(['blockHashes', 'blockHashesAsync'] as const)('%s refuses every wrong argument', async (name) => {
    const before = addon().memoryCounters().hashJobs;
    const signature = name === 'blockHashes' ? ([...kinds, 'int64 out'] as const) : kinds;
    const call = addon()[name] as (...values: unknown[]) => unknown;
    for (const [what, values] of wrong(signature)) {
      expect([what, codeOf(() => call(...values))]).toEqual([what, 'ARGUMENT_INVALID']);
    }
    expect(codeOf(() => call(Int32Array.of(1), 0, new Uint8Array(32), 0, hashes(0)))).toBe('ARGUMENT_INVALID');
    expect(codeOf(() => call())).toBe('ARGUMENT_INVALID');
    expect(addon().memoryCounters().hashJobs).toBe(before);
    await Promise.resolve();
  });

  test('an output of another length is refused before anything is hashed', () => {
    const parent = new Uint8Array(32);
    expect(() => addon().blockHashes(ids(1, 2, 3), 1, parent, 0, hashes(0))).toThrow(
      'out: expected a BigInt64Array of 3, got a BigInt64Array of 1',
    );
    expect(parent).toEqual(new Uint8Array(32));
  });
});
