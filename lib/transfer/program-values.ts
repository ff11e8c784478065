/**
 * The kinds and bounds of all values of a copy program, looked at before anything is computed from them. What they mean
 * together is `check-program.ts`'s question.
 */
import { requireList, requireObject } from '../argument-shape.js';
import { argumentError } from '../errors.js';
import { isRecord } from '../json.js';
import {
  isInt32Array,
  loopsMax,
  rectanglesMax,
  rowValuesMax,
  tablesMax,
  type CopyProgram,
  type Loop,
  type Rectangle,
} from './copy-program.js';

/** @throws `ARGUMENT_INVALID` naming the first value that is no count, size, id or column */
export function checkValues(program: CopyProgram): void {
  requireObject('program', program);
  const { rectangles, tables } = program;
  requireList('tables', tables);
  requireList('rectangles', rectangles);
  if (tables.length > tablesMax) throw argumentError('tables', `at most ${tablesMax} tables`, tables);
  if (rectangles.length > rectanglesMax) {
    throw argumentError('rectangles', `at most ${rectanglesMax} rectangles`, rectangles);
  }
  let values = 0;
  for (const [index, table] of tables.entries()) {
    requireObject(`tables[${index}]`, table);
    for (const name of ['source', 'target', 'sourceSub', 'targetSub'] as const) {
      const column: unknown = table[name];
      if (column === undefined && name.endsWith('Sub')) continue;
      if (!isInt32Array(column) || column.length !== table.source.length) {
        throw argumentError(`tables[${index}].${name}`, 'an Int32Array as long as the source column', column);
      }
      values += column.length;
    }
    requireObject(`tables[${index}].strides`, table.strides);
    for (const name of ['sourceBlock', 'targetBlock', 'sourceSub', 'targetSub'] as const) {
      if (!isWhole(table.strides[name], 0)) throw notWhole(`tables[${index}].strides.${name}`, table.strides[name], 0);
    }
  }
  if (values > rowValuesMax) throw argumentError('tables', `at most ${rowValuesMax} values in all rows`, values);
  for (let index = 0; index < rectangles.length; index += 1) checkRectangle(rectangles[index] as Rectangle, index);
}

/** Hundreds of rectangles are nothing unusual, so no text is made before it is needed. */
function checkRectangle(rectangle: Rectangle, index: number): void {
  if (!isRecord(rectangle)) throw argumentError(`rectangles[${index}]`, 'an object', rectangle);
  const { sourceRegion, targetRegion, table, tableFrom, tableCount, loops } = rectangle;
  requireWhole(sourceRegion, 0, index, 'sourceRegion');
  requireWhole(targetRegion, 0, index, 'targetRegion');
  requireWhole(table, -1, index, 'table');
  if (table >= 0) {
    requireWhole(tableFrom, 0, index, 'tableFrom');
    requireWhole(tableCount, 1, index, 'tableCount');
  }
  requireWhole(rectangle.sourceOffset, 0, index, 'sourceOffset');
  requireWhole(rectangle.targetOffset, 0, index, 'targetOffset');
  requireWhole(rectangle.fragmentBytes, 1, index, 'fragmentBytes');
  if (!Array.isArray(loops)) throw argumentError(`rectangles[${index}].loops`, 'a list', loops);
  if (loops.length > loopsMax) throw argumentError(`rectangles[${index}].loops`, `at most ${loopsMax} loops`, loops);
  for (let depth = 0; depth < loops.length; depth += 1) {
    const loop = loops[depth] as Loop;
    if (!isRecord(loop)) throw argumentError(`rectangles[${index}].loops[${depth}]`, 'an object', loop);
    for (const [name, least] of loopFields) {
      if (!isWhole(loop[name], least))
        throw notWhole(`rectangles[${index}].loops[${depth}].${name}`, loop[name], least);
    }
  }
}

const loopFields = [
  ['count', 1],
  ['sourceStride', 0],
  ['targetStride', 0],
] as const;

function requireWhole(value: number, least: number, index: number, name: string): void {
  if (!isWhole(value, least)) throw notWhole(`rectangles[${index}].${name}`, value, least);
}

function isWhole(value: number, least: number): boolean {
  return Number.isSafeInteger(value) && value >= least;
}

function notWhole(path: string, value: number, least: number): Error {
  return argumentError(path, `an integer of at least ${least}`, value);
}
