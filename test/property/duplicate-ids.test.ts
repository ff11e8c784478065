/** Duplicate ids against a `Set`, on both sides of the bitmap's reach, and that nothing stays marked. */
import fc from 'fast-check';
import { hasDuplicates } from '../../lib/decode/duplicate-ids.js';

const bitmapIds = 1 << 22;

describe('hasDuplicates', () => {
  it('agrees with a set, call after call', () => {
    const id = fc.oneof(
      fc.nat(70),
      fc.integer({ min: bitmapIds - 40, max: bitmapIds + 40 }),
      fc.integer({ min: 2 ** 31 - 10, max: 2 ** 31 - 1 }),
    );
    fc.assert(
      fc.property(fc.array(fc.array(id, { maxLength: 12 }), { maxLength: 6 }), (lists) => {
        for (const ids of lists) {
          const list = Int32Array.from(ids);
          expect(hasDuplicates(list)).toBe(new Set(ids).size !== ids.length);
          expect(Array.from(list)).toEqual(ids);
        }
      }),
      { numRuns: 500 },
    );
  });

  it.each([0, 31, 32, 63, 64, bitmapIds - 1, bitmapIds, 2 ** 31 - 1])('sees %d twice, and once', (id) => {
    expect(hasDuplicates(Int32Array.of(id, id))).toBe(true);
    expect(hasDuplicates(Int32Array.of(id))).toBe(false);
  });
});
