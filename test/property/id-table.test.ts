/** Whatever comes and goes, an {@link IdTable} answers as a `Map` does, and keeps nothing that was taken out. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { IdTable } from '../../lib/control/coordinator/id-table.js';

interface Named {
  readonly id: number;
}

/** Few, so that they come again; large ones, and some that lie at the same place of every small table. */
const id = fc.oneof(
  fc.nat(40),
  fc.nat(12).map((low) => low * 2 ** 20),
  fc.nat(12).map((high) => Number.MAX_SAFE_INTEGER - high * 2 ** 32),
);
const step = fc.oneof(
  { weight: 5, arbitrary: fc.record({ kind: fc.constant('set' as const), id }) },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('delete' as const), id }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('deleteFirst' as const), id }) },
);

test('as a Map in the order of coming', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 400 }), (steps) => {
      const table = new IdTable<Named>();
      const model = new Map<number, Named>();
      for (const { kind, id: given } of steps) {
        const named = { id: given };
        if (kind === 'set') {
          table.set(given, named);
          model.set(given, named);
        } else {
          const [first] = model.keys();
          const gone = kind === 'delete' ? given : (first ?? given);
          expect(table.delete(gone)).toBe(model.delete(gone));
        }
        expect(table.size).toBe(model.size);
        expect(table.has(given)).toBe(model.has(given));
        expect(table.get(given)).toBe(model.get(given));
        expect(table.first()).toBe([...model.values()][0] ?? null);
      }
      expect(table.values()).toEqual([...model.values()]);
      for (const [known, named] of model) expect(table.get(known)).toBe(named);
    }),
    { numRuns: 300 },
  );
});

test('first come, first gone: thousands pass through a few places', () => {
  const table = new IdTable<Named>();
  const wrong: number[] = [];
  for (let next = 0; next < 20_000; next++) {
    table.set(next, { id: next });
    if (next < 100) continue;
    const gone = next - 100;
    if (table.first()!.id !== gone || !table.delete(gone) || table.has(gone)) wrong.push(gone);
  }
  expect(wrong).toEqual([]);
  expect(table.size).toBe(100);
  expect(table.values().map((named) => named.id)).toEqual(Array.from({ length: 100 }, (_, at) => 19_900 + at));
});

test('what was taken out is kept by nothing', async () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const table = new IdTable<Named>();
  // What made the objects has returned before they are looked for.
  const gone = Array.from({ length: 20 }, (_, index) => {
    const named = { id: index };
    table.set(index, named);
    return new WeakRef<Named>(named);
  });
  for (let index = 0; index < 19; index++) table.delete(index);
  await new Promise((resolve) => setImmediate(resolve));
  collect();
  expect(gone.filter((reference) => reference.deref() !== undefined)).toHaveLength(1);
  expect(table.get(19)).toEqual({ id: 19 });
});
