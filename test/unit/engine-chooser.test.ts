/** Which engine a request goes to: both generations, both pools, every policy. */
import { EngineChooser, type EngineLoad, type RoutingOptions } from '../../lib/control/routing/engine-chooser.js';

const hashes = (...values: number[]): BigInt64Array => BigInt64Array.from(values, BigInt);

class Pool {
  readonly chooser: EngineChooser;
  readonly loads: EngineLoad[];
  turn = 0;

  constructor(options: Partial<RoutingOptions>, loads: readonly Partial<EngineLoad>[]) {
    this.chooser = new EngineChooser({ behaviour: 'gen-c', policy: 'longest_prefix', ...options });
    this.loads = loads.map((load) => ({
      column: this.chooser.affinity.join()!,
      active: 0,
      queued: 0,
      slotsUsed: 0,
      freeFraction: 1,
      ...load,
    }));
  }

  assign(engine: number, ...values: number[]): void {
    this.chooser.assigned(this.loads[engine]!.column, hashes(...values), 0);
  }

  pooled(values: readonly number[], now = 0): number {
    return this.chooser.choosePooled(this.loads, hashes(...values), now, this.turn++);
  }

  aggregated(values: readonly number[], now = 0): number {
    return this.chooser.chooseAggregated(this.loads, hashes(...values), now);
  }
}

describe('a pool of one role', () => {
  test.each(['gen-b', 'gen-c'] as const)('%s: equals take turns', (behaviour) => {
    const pool = new Pool({ behaviour }, [{}, {}, {}]);
    expect([1, 2, 3, 4].map(() => pool.pooled([]))).toEqual([0, 1, 2, 0]);
    expect([1, 2, 3, 4].map(() => pool.pooled([9]))).toEqual([1, 2, 0, 1]);
  });

  test.each(['gen-b', 'gen-c'] as const)('%s: a held prefix wins whoever has the turn', (behaviour) => {
    const pool = new Pool({ behaviour }, [{}, {}, {}]);
    pool.assign(2, 5, 6);
    expect([1, 2, 3].map(() => pool.pooled([5, 6]))).toEqual([2, 2, 2]);
  });

  test.each(['gen-b', 'gen-c'] as const)('%s: without a prefix the least loaded wins', (behaviour) => {
    const busy = { active: 3, freeFraction: 0.25 };
    const pool = new Pool({ behaviour }, [busy, { active: 1, freeFraction: 0.75 }, busy]);
    expect([1, 2, 3].map(() => pool.pooled([]))).toEqual([1, 1, 1]);
    expect([1, 2, 3].map(() => pool.pooled([4]))).toEqual([1, 1, 1]);
  });

  test('gen-b: of equal scores the latest recording wins, then the shorter queue, fewer requests, fewer slots', () => {
    const recent = new Pool({ behaviour: 'gen-b' }, [{}, {}, {}]);
    recent.assign(0, 5);
    recent.assign(1, 5);
    expect([recent.pooled([5]), recent.pooled([5])]).toEqual([1, 1]);
    const pools: Partial<EngineLoad>[][] = [
      [{ queued: 1 }, { active: 9, slotsUsed: 9 }],
      [{ active: 1 }, { slotsUsed: 9 }],
      [{ slotsUsed: 1 }, {}],
    ];
    for (const loads of pools) {
      const pool = new Pool({ behaviour: 'gen-b' }, loads);
      expect([pool.pooled([]), pool.pooled([]), pool.pooled([7])]).toEqual([1, 1, 1]);
    }
  });

  test('gen-c: of equal scores and loads the one with more room wins', () => {
    const pool = new Pool({}, [{ freeFraction: 0.2 }, { freeFraction: 0.6 }]);
    expect([pool.pooled([]), pool.pooled([]), pool.pooled([7])]).toEqual([1, 1, 1]);
  });

  test('gen-c: load outweighs a prefix, and a smaller weight of load does not', () => {
    const loads = [{ active: 8 }, {}];
    const heavy = new Pool({}, loads);
    heavy.assign(0, 1);
    expect(heavy.pooled([1])).toBe(1);
    const light = new Pool({ alpha: 0.2 }, loads);
    light.assign(0, 1);
    expect(light.pooled([1])).toBe(0);
  });
});

describe('engines without roles', () => {
  test('the lowest index wins among equals, every time', () => {
    for (const behaviour of ['gen-b', 'gen-c'] as const) {
      const pool = new Pool({ behaviour }, [{ active: 1, freeFraction: 0.5 }, {}, {}]);
      expect([pool.aggregated([]), pool.aggregated([]), pool.aggregated([3])]).toEqual([1, 1, 1]);
    }
  });

  test('gen-c: of equal scores the less loaded wins, although it is later', () => {
    // 1 - 0.5 * 1 for the first, 0 + 0.5 * 1 for the second.
    const pool = new Pool({ alpha: 0.5 }, [{ active: 4 }, {}]);
    pool.assign(0, 1);
    expect(pool.aggregated([1])).toBe(1);
  });
});

test('gen-c: an assignment counts for its time to live, and no longer', () => {
  const pool = new Pool({ affinityTtlMs: 1000 }, [{}, {}]);
  pool.assign(1, 1, 2);
  expect(pool.aggregated([1, 2], 999)).toBe(1);
  expect(pool.aggregated([1, 2], 1000)).toBe(0);
});

test('gen-c: only a prefix without a gap counts; gen-b: the last block that anybody holds', () => {
  const pools = (['gen-c', 'gen-b'] as const).map((behaviour) => new Pool({ behaviour }, [{}, {}]));
  for (const pool of pools) {
    pool.assign(0, 1);
    pool.assign(1, 2, 3);
  }
  expect(pools.map((pool) => pool.aggregated([1, 2, 3]))).toEqual([0, 1]);
});

test('first_prefix_block looks at one block, and remembers one', () => {
  const pool = new Pool({ policy: 'first_prefix_block' }, [{}, {}, {}]);
  pool.assign(1, 1, 2, 3);
  expect(pool.chooser.affinity.size).toBe(1);
  pool.assign(2, 4);
  expect(pool.aggregated([4, 2, 3])).toBe(2);
});

test('load_balanced neither asks nor remembers', () => {
  const pool = new Pool({ policy: 'load_balanced' }, [{}, { active: 1 }]);
  pool.assign(1, 1);
  expect(pool.chooser.affinity.size).toBe(0);
  expect(pool.chooser.usesPrefixes).toBe(false);
  expect([pool.aggregated([1]), pool.pooled([1]), pool.pooled([1])]).toEqual([0, 0, 0]);
});

test.each([
  [{ behaviour: 'gen-d' }, 'routing.behaviour: expected gen-b or gen-c, got "gen-d"'],
  [
    { policy: 'random' },
    'routing.policy: expected longest_prefix or first_prefix_block or load_balanced, got "random"',
  ],
  [{ alpha: -1 }, 'routing.alpha: expected a number of at least 0, got -1'],
  [{ alpha: NaN }, 'routing.alpha: expected a number of at least 0, got NaN'],
])('%j is refused', (options, message) => {
  expect(() => new Pool(options as unknown as Partial<RoutingOptions>, [])).toThrow(message);
});
