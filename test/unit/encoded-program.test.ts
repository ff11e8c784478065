/**
 * Promises of encoding programs for native code: an encoding that is kept stays what it was, and one for a single call has
 * the same values however many rows came before it.
 */
import { encodeForCall, encodePrograms } from '../../lib/native/encoded-program.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';

function rowsFrom(first: number, count: number): CopyProgram {
  const ids = Int32Array.from({ length: count }, (_, row) => first + row);
  const strides = { sourceBlock: 8, targetBlock: 8, sourceSub: 0, targetSub: 0 };
  const rectangle = {
    ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: count },
    ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: 8, loops: [] },
  };
  return { rectangles: [rectangle], tables: [{ source: ids, target: ids.slice().reverse(), strides }] };
}

test('an encoding that is kept is not written to by later ones', () => {
  const kept = encodePrograms([rowsFrom(0, 4)]);
  encodePrograms([rowsFrom(100, 4)]);
  encodeForCall([rowsFrom(200, 4)]);
  expect([...kept.rows]).toEqual([0, 1, 2, 3, 3, 2, 1, 0]);
});

test.each([1, 3, 1000, 2, 1 << 19, (1 << 19) + 1, 5])('for one call, %d rows are what they are when kept', (count) => {
  const programs = [rowsFrom(7, count), rowsFrom(9, 2)];
  const kept = encodePrograms(programs);
  const once = encodeForCall(programs);
  expect(once.rows.length).toBe(kept.rows.length);
  expect(Buffer.compare(Buffer.from(once.rows.slice().buffer), Buffer.from(kept.rows.buffer))).toBe(0);
  expect(once.rectangles).toEqual(kept.rectangles);
  expect(once.tables).toEqual(kept.tables);
});
