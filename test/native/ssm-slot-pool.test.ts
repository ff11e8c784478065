/**
 * Goal: the native slot pool is spec 5's pool of live slots. Method: the reference's traces step by step with the whole
 * state, then one test for each promise that the traces do not reach.
 */
import { Generations } from '../../lib/memory/generations.js';
import { SsmSlotPool } from '../../lib/memory/ssm-slot-pool.js';
import { codeOf, ids } from '../support/pool-values.js';
import { vectorCases, type TraceStep } from '../support/vector-cases.js';

describe('the traces of the reference', () => {
  interface TraceCase {
    readonly name: string;
    readonly max_requests: number;
    readonly trace: readonly TraceStep[];
  }
  const codes: Readonly<Record<string, string>> = { free: 'SLOT_POOL_OVERFLOW', detach: 'SLOT_NOT_BOUND' };

  function apply(pool: SsmSlotPool, [name, ...args]: readonly [string, ...unknown[]]): unknown {
    const [first, second] = args as [number, number];
    switch (name) {
      case 'allocate': {
        const slot = pool.allocate();
        return slot === -1 ? null : slot;
      }
      case 'batch': {
        const slots = pool.batchAllocate(first);
        return slots === null ? null : [...slots];
      }
      case 'free':
        return pool.free(first) ?? null;
      case 'bind':
        return pool.bind(first, second) ?? null;
      case 'detach':
        return pool.detach(first);
      case 'free_requests':
        return pool.freeRequests(ids(...(args[0] as number[]))) ?? null;
      case 'reset':
        return pool.reset() ?? null;
      default:
        throw new Error(`the trace has an operation of unknown name ${name}`);
    }
  }

  const cases = vectorCases<TraceCase>('ssm_slot_pool');
  test('are there', () => expect(cases.length).toBeGreaterThanOrEqual(4));

  test.each(cases)('$name', ({ max_requests: maxRequests, trace }) => {
    const pool = new SsmSlotPool({ maxRequests });
    for (const { init, op, result, state, error } of trace) {
      if (op !== undefined) {
        if (error === undefined) expect(apply(pool, op)).toEqual(result);
        else expect(codeOf(() => apply(pool, op))).toBe(codes[op[0]]);
      }
      expect(pool.snapshot()).toEqual(init ?? state);
    }
  });
});

describe('slots', () => {
  test('out of range cannot be freed, the dummy slot included', () => {
    const pool = new SsmSlotPool({ maxRequests: 2, dummySlot: true });
    for (const slot of [-1, 2, 3, 2 ** 40]) {
      expect(codeOf(() => pool.free(slot))).toBe('SLOT_OUT_OF_RANGE');
    }
    expect(() => pool.free(2)).toThrow('slot: expected a slot in [0, 1], got 2');
    expect(pool.freeCount).toBe(2);
  });

  test('are never free twice, also while others are held', () => {
    const pool = new SsmSlotPool({ maxRequests: 3 });
    const slots = pool.batchAllocate(3)!;
    pool.free(slots[0]!);
    expect(() => pool.free(slots[0]!)).toThrow('free failed because slot 0 is free already');
    expect(codeOf(() => pool.free(slots[0]!))).toBe('SLOT_POOL_OVERFLOW');
    expect(pool.snapshot().free_stack).toEqual([0]);
  });

  test('bound to a row are returned through the row only', () => {
    const pool = new SsmSlotPool({ maxRequests: 2 });
    const slot = pool.allocate();
    pool.bind(0, slot);
    expect(() => pool.free(slot)).toThrow('slot: expected a slot bound to no row, got 1, which row 0 holds');
    pool.freeRequests(ids(0, 0, 1));
    expect(pool.snapshot()).toEqual({ free_stack: [0, 1], bound: [-1, -1], dummy: null });
  });

  test('are bound by whoever holds them, to one row, once', () => {
    const pool = new SsmSlotPool({ maxRequests: 3 });
    const slot = pool.allocate();
    expect(codeOf(() => pool.bind(0, 0))).toBe('ARGUMENT_INVALID');
    pool.bind(0, slot);
    pool.bind(0, slot);
    expect(() => pool.bind(1, slot)).toThrow('slot: expected an allocated slot that no other row holds, got 2');
    expect(() => pool.bind(0, pool.allocate())).toThrow('row: expected a row without a slot, got 0');
    expect(() => pool.bind(3, slot)).toThrow('row: expected a row in [0, 2], got 3');
    expect(codeOf(() => pool.bind(1, 3))).toBe('SLOT_OUT_OF_RANGE');
    expect([...pool.rows()]).toEqual([2, -1, -1]);
  });

  test('detached survive a reset and can be bound again', () => {
    const pool = new SsmSlotPool({ maxRequests: 3 });
    pool.bind(2, pool.allocate());
    pool.bind(0, pool.allocate());
    const slot = pool.detach(0);
    pool.reset();
    expect(pool.snapshot()).toEqual({ free_stack: [0, 2], bound: [-1, -1, -1], dummy: null });
    pool.bind(1, slot);
    expect([...pool.rows()]).toEqual([-1, slot, -1]);
    expect(() => pool.detach(0)).toThrow('detach failed because row 0 has no live slot');
  });

  test('a bad row among others frees none', () => {
    const pool = new SsmSlotPool({ maxRequests: 2 });
    pool.bind(0, pool.allocate());
    expect(() => pool.freeRequests(ids(0, 2))).toThrow('rows[1]: expected a row in [0, 1], got 2');
    expect([...pool.rows()]).toEqual([1, -1]);
  });

  test('a batch is whole or nothing', () => {
    const pool = new SsmSlotPool({ maxRequests: 2 });
    expect(pool.batchAllocate(3)).toBeNull();
    expect(pool.batchAllocate(0)).toEqual(ids());
    expect(pool.batchAllocate(2)).toEqual(ids(0, 1));
    expect([pool.freeCount, pool.allocate()]).toEqual([0, -1]);
  });
});

describe('the dummy slot', () => {
  test('is beyond the pool: bound to row 0 again and again, never freed into it', () => {
    const pool = new SsmSlotPool({ maxRequests: 2, dummySlot: true });
    expect([pool.size, pool.physicalSlots, pool.dummySlot]).toEqual([2, 3, 2]);
    pool.bindDummy();
    pool.bindDummy();
    expect(pool.snapshot()).toEqual({ free_stack: [0, 1], bound: [2, -1], dummy: 2 });
    expect(codeOf(() => pool.detach(0))).toBe('SLOT_NOT_BOUND');
    pool.freeRequests(ids(0));
    pool.bindDummy();
    pool.reset();
    expect(pool.snapshot()).toEqual({ free_stack: [0, 1], bound: [-1, -1], dummy: 2 });
    expect(pool.batchAllocate(3)).toBeNull();
  });

  test('does not push out a live slot', () => {
    const pool = new SsmSlotPool({ maxRequests: 2, dummySlot: true });
    pool.bind(0, pool.allocate());
    expect(() => pool.bindDummy()).toThrow('row 0: expected a row without a slot, got one that holds slot 1');
    expect([...pool.rows()]).toEqual([1, -1]);
  });

  test('is absent unless asked for', () => {
    const pool = new SsmSlotPool({ maxRequests: 2 });
    expect([pool.physicalSlots, pool.dummySlot]).toEqual([2, null]);
    expect(codeOf(() => pool.bindDummy())).toBe('SLOT_NOT_BOUND');
  });
});

describe('generations and life', () => {
  test('a generation moves when its slot is handed out and at no other time', () => {
    const pool = new SsmSlotPool({ maxRequests: 3, generations: new Generations(3) });
    const slot = pool.allocate();
    pool.bind(0, slot);
    pool.bind(1, pool.batchAllocate(1)![0]!);
    expect(pool.generationsOf(ids(0, 1, 2))).toEqual(BigUint64Array.of(1n, 2n, 2n));
    pool.free(pool.detach(0));
    pool.reset();
    expect(pool.generationsOf(ids(0, 1, 2))).toEqual(BigUint64Array.of(1n, 2n, 2n));
    pool.allocate();
    expect(pool.generationsOf(ids(1))).toEqual(BigUint64Array.of(3n));
    expect(() => pool.generationsOf(ids(0, 3))).toThrow('slots[1]: expected a slot in [0, 2], got 3');
  });

  test('without generations there are none to tell, and too few are refused', () => {
    expect(new SsmSlotPool({ maxRequests: 3 }).generationsOf(ids(0))).toBeNull();
    expect(() => new SsmSlotPool({ maxRequests: 3, generations: new Generations(2) })).toThrow(
      'generations: expected a table of at least 3 entries, got 2',
    );
  });

  test('after close every call says so', () => {
    const pool = new SsmSlotPool({ maxRequests: 3, generations: new Generations(3) });
    pool.close();
    pool.close();
    const calls: Record<string, () => unknown> = {
      freeCount: () => pool.freeCount,
      allocate: () => pool.allocate(),
      batchAllocate: () => pool.batchAllocate(1),
      free: () => pool.free(0),
      bind: () => pool.bind(0, 0),
      bindDummy: () => pool.bindDummy(),
      rows: () => pool.rows(),
      detach: () => pool.detach(0),
      freeRequests: () => pool.freeRequests(ids(0)),
      reset: () => pool.reset(),
      generationsOf: () => pool.generationsOf(ids(0)),
      snapshot: () => pool.snapshot(),
    };
    for (const [name, call] of Object.entries(calls)) expect([name, codeOf(call)]).toEqual([name, 'CLOSED']);
  });
});
