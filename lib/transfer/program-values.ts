/**
 * The kinds and bounds of all values of a copy program, looked at before anything is computed from them. What they mean
 * together is `check-program.ts`'s question.
 */
import { argumentError } from '../errors.js';
import { isInt32Array, loopsMax, rectanglesMax, rowValuesMax, tablesMax, type CopyProgram } from './copy-program.js';

/** @throws `ARGUMENT_INVALID` naming the first value that is no count, size, id or column */
export function checkValues(program: CopyProgram): void {
  const { rectangles, tables } = program;
  if (tables.length > tablesMax) throw argumentError('tables', `at most ${tablesMax} tables`, tables);
  if (rectangles.length > rectanglesMax) {
    throw argumentError('rectangles', `at most ${rectanglesMax} rectangles`, rectangles);
  }
  let values = 0;
  for (const [index, table] of tables.entries()) {
    for (const name of ['source', 'target', 'sourceSub', 'targetSub'] as const) {
      const column: unknown = table[name];
      if (column === undefined && name.endsWith('Sub')) continue;
      if (!isInt32Array(column) || column.length !== table.source.length) {
        throw argumentError(`tables[${index}].${name}`, 'an Int32Array as long as the source column', column);
      }
      values += column.length;
    }
    for (const name of ['sourceBlock', 'targetBlock', 'sourceSub', 'targetSub'] as const) {
      requireWhole(table.strides[name], 0, () => `tables[${index}].strides.${name}`);
    }
  }
  if (values > rowValuesMax) throw argumentError('tables', `at most ${rowValuesMax} values in all rows`, values);
  for (const [index, rectangle] of rectangles.entries()) {
    const field = (name: string) => () => `rectangles[${index}].${name}`;
    requireWhole(rectangle.sourceRegion, 0, field('sourceRegion'));
    requireWhole(rectangle.targetRegion, 0, field('targetRegion'));
    requireWhole(rectangle.table, -1, field('table'));
    if (rectangle.table >= 0) {
      requireWhole(rectangle.tableFrom, 0, field('tableFrom'));
      requireWhole(rectangle.tableCount, 1, field('tableCount'));
    }
    requireWhole(rectangle.sourceOffset, 0, field('sourceOffset'));
    requireWhole(rectangle.targetOffset, 0, field('targetOffset'));
    requireWhole(rectangle.fragmentBytes, 1, field('fragmentBytes'));
    if (rectangle.loops.length > loopsMax) {
      throw argumentError(field('loops')(), `at most ${loopsMax} loops`, rectangle.loops);
    }
    for (const [depth, loop] of rectangle.loops.entries()) {
      requireWhole(loop.count, 1, field(`loops[${depth}].count`));
      requireWhole(loop.sourceStride, 0, field(`loops[${depth}].sourceStride`));
      requireWhole(loop.targetStride, 0, field(`loops[${depth}].targetStride`));
    }
  }
}

function requireWhole(value: number, least: number, path: () => string): void {
  if (!Number.isSafeInteger(value) || value < least)
    throw argumentError(path(), `an integer of at least ${least}`, value);
}
