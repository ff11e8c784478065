/**
 * Promise: the native slot pool and a plain model of spec 5 never differ, whatever is done to them.
 *
 * Method: random calls, right and wrong, on both; after each the same answer or error code, the same whole state and the
 * same generations. The model keeps a list and two maps, and says for each call what would be wrong with it.
 */
import fc from 'fast-check';
import { Generations } from '../../lib/memory/generations.js';
import { SsmSlotPool } from '../../lib/memory/ssm-slot-pool.js';
import { codeOf } from '../support/pool-values.js';

class Model {
  readonly stack: number[];
  readonly slotOf = new Map<number, number>();
  readonly generations: bigint[];

  constructor(
    readonly size: number,
    readonly dummy: boolean,
  ) {
    this.stack = Array.from({ length: size }, (_, slot) => slot);
    this.generations = this.stack.map(() => 1n);
  }

  rowOf(slot: number): number | undefined {
    return [...this.slotOf].find(([, bound]) => bound === slot)?.[0];
  }

  batchAllocate(count: number): Int32Array | null {
    if (count > this.stack.length) return null;
    const slots = this.stack.splice(this.stack.length - count);
    for (const slot of slots) this.generations[slot]! += 1n;
    return Int32Array.from(slots);
  }

  free(slot: number): string | undefined {
    if (slot < 0 || slot >= this.size) return 'SLOT_OUT_OF_RANGE';
    if (this.stack.includes(slot)) return 'SLOT_POOL_OVERFLOW';
    if (this.rowOf(slot) !== undefined) return 'ARGUMENT_INVALID';
    this.stack.push(slot);
    return undefined;
  }

  bind(row: number, slot: number): string | undefined {
    if (row < 0 || row >= this.size) return 'ARGUMENT_INVALID';
    if (slot < 0 || slot >= this.size) return 'SLOT_OUT_OF_RANGE';
    if (this.slotOf.get(row) === slot) return undefined;
    if (this.slotOf.has(row) || this.stack.includes(slot) || this.rowOf(slot) !== undefined) return 'ARGUMENT_INVALID';
    this.slotOf.set(row, slot);
    return undefined;
  }

  bindDummy(): string | undefined {
    if (!this.dummy) return 'SLOT_NOT_BOUND';
    if ((this.slotOf.get(0) ?? this.size) !== this.size) return 'ARGUMENT_INVALID';
    this.slotOf.set(0, this.size);
    return undefined;
  }

  detach(row: number): number | string {
    if (row < 0 || row >= this.size) return 'ARGUMENT_INVALID';
    const slot = this.slotOf.get(row) ?? this.size;
    if (slot === this.size) return 'SLOT_NOT_BOUND';
    this.slotOf.delete(row);
    return slot;
  }

  freeRequests(rows: readonly number[]): string | undefined {
    if (rows.some((row) => row < 0 || row >= this.size)) return 'ARGUMENT_INVALID';
    for (const row of rows) {
      const slot = this.slotOf.get(row) ?? this.size;
      this.slotOf.delete(row);
      if (slot < this.size) this.stack.push(slot);
    }
    return undefined;
  }
}

const names = ['allocate', 'batch', 'free', 'bind', 'dummy', 'detach', 'freeRequests', 'reset'] as const;
const number = fc.integer({ min: -1, max: 7 });
const calls = fc.array(fc.tuple(fc.constantFrom(...names, 'bind', 'allocate', 'free'), number, number), {
  maxLength: 80,
  size: 'max',
});

function apply(pool: SsmSlotPool, model: Model, [name, a, b]: readonly [string, number, number]): void {
  switch (name) {
    case 'allocate':
      return expect(pool.allocate()).toBe(model.batchAllocate(1)?.[0] ?? -1);
    case 'batch':
      return a < 0
        ? expect(codeOf(() => pool.batchAllocate(a))).toBe('ARGUMENT_INVALID')
        : expect(pool.batchAllocate(a)).toEqual(model.batchAllocate(a));
    case 'free':
      return expect(codeOf(() => pool.free(a))).toBe(model.free(a));
    case 'bind':
      return expect(codeOf(() => pool.bind(a, b))).toBe(model.bind(a, b));
    case 'dummy':
      return expect(codeOf(() => pool.bindDummy())).toBe(model.bindDummy());
    case 'detach':
      return expect(codeOf(() => pool.detach(a))).toBe(model.detach(a));
    case 'freeRequests':
      return expect(codeOf(() => pool.freeRequests(Int32Array.of(a, b)))).toBe(model.freeRequests([a, b]));
    default:
      pool.reset();
      model.freeRequests(Array.from({ length: model.size }, (_, row) => row));
  }
}

test('native pool and model agree', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 6 }), fc.boolean(), calls, (maxRequests, dummySlot, list) => {
      const pool = new SsmSlotPool({ maxRequests, dummySlot, generations: new Generations(maxRequests) });
      const model = new Model(maxRequests, dummySlot);
      const all = Int32Array.from({ length: maxRequests }, (_, slot) => slot);
      for (const call of list) {
        apply(pool, model, call);
        expect(pool.snapshot()).toEqual({
          free_stack: model.stack,
          bound: Array.from(all, (row) => model.slotOf.get(row) ?? -1),
          dummy: dummySlot ? maxRequests : null,
        });
        expect(pool.freeCount).toBe(model.stack.length);
        expect([...pool.generationsOf(all)!]).toEqual(model.generations);
      }
      pool.close();
    }),
    { numRuns: 300 },
  );
});
