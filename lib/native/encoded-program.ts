/**
 * Copy programs as flat arrays, the one form in which they cross into native code (one call a transfer, never one a
 * copy). Shapes only: what the numbers mean is checked on the other side, again and whatever was checked here.
 */
import { argumentError } from '../errors.js';
import { isInt32Array, loopsMax, type CopyProgram, type Rectangle, type Table } from '../transfer/copy-program.js';

/** See `cuda/core/copy_program.h` for the places of the values. */
export interface EncodedProgram {
  readonly rectangles: Float64Array;
  readonly tables: Float64Array;
  readonly rows: Int32Array;
}

/** Rows that are copied into one and the same array: a fresh one costs more than the copying, page by page. */
const reusedRowsMax = 1 << 20;
let reusedRows = new Int32Array(0);

const rectangleValues = 9 + 3 * loopsMax;
const tableValues = 7;

/**
 * One program out of several: tables are numbered through.
 *
 * @throws `ARGUMENT_INVALID` for columns of unlike lengths or more than five loops
 */
export function encodePrograms(programs: readonly CopyProgram[]): EncodedProgram {
  return encode(programs, (count) => new Int32Array(count));
}

/**
 * What `encodePrograms` gives, good for the native call that follows at once: the next encoding may write to the same
 * rows.
 *
 * @throws `ARGUMENT_INVALID` for columns of unlike lengths or more than five loops
 */
export function encodeForCall(programs: readonly CopyProgram[]): EncodedProgram {
  return encode(programs, reusableRows);
}

function encode(programs: readonly CopyProgram[], rowsOf: (count: number) => Int32Array): EncodedProgram {
  let rectangleCount = 0;
  let tableCount = 0;
  let rowCount = 0;
  for (const program of programs) {
    rectangleCount += program.rectangles.length;
    tableCount += program.tables.length;
    for (const [index, table] of program.tables.entries())
      rowCount += columnsOf(table, index).length * table.source.length;
  }
  const rectangles = new Float64Array(rectangleCount * rectangleValues);
  const tables = new Float64Array(tableCount * tableValues);
  const rows = rowsOf(rowCount);
  let rectangleAt = 0;
  let tableAt = 0;
  let rowAt = 0;
  for (const program of programs) {
    const firstTable = tableAt / tableValues;
    for (const [index, table] of program.tables.entries()) {
      const { strides } = table;
      tables.set(
        [
          table.source.length,
          table.sourceSub === undefined ? 0 : 1,
          table.targetSub === undefined ? 0 : 1,
          strides.sourceBlock,
          strides.targetBlock,
          strides.sourceSub,
          strides.targetSub,
        ],
        tableAt,
      );
      tableAt += tableValues;
      for (const column of columnsOf(table, index)) {
        rows.set(column, rowAt);
        rowAt += column.length;
      }
    }
    for (const [index, rectangle] of program.rectangles.entries()) {
      encodeRectangle(rectangle, index, firstTable, program.tables.length, rectangles, rectangleAt);
      rectangleAt += rectangleValues;
    }
  }
  return { rectangles, tables, rows };
}

function reusableRows(count: number): Int32Array {
  if (count > reusedRowsMax) return new Int32Array(count);
  if (reusedRows.length < count) reusedRows = new Int32Array(Math.min(2 * count, reusedRowsMax));
  return reusedRows.subarray(0, count);
}

function columnsOf(table: Table, index: number): Int32Array[] {
  const columns = {
    source: table.source,
    target: table.target,
    sourceSub: table.sourceSub,
    targetSub: table.targetSub,
  };
  const present: Int32Array[] = [];
  for (const [name, column] of Object.entries(columns)) {
    if (column === undefined) continue;
    if (!isInt32Array(column) || column.length !== table.source.length) {
      throw argumentError(`tables[${index}].${name}`, `an Int32Array of ${table.source.length} rows`, column);
    }
    present.push(column);
  }
  return present;
}

function encodeRectangle(
  rectangle: Rectangle,
  index: number,
  firstTable: number,
  tableCount: number,
  into: Float64Array,
  at: number,
): void {
  const { loops, table } = rectangle;
  if (loops.length > loopsMax) {
    throw argumentError(`rectangles[${index}].loops`, `at most ${loopsMax} loops`, loops);
  }
  into[at] = rectangle.sourceRegion;
  into[at + 1] = rectangle.targetRegion;
  // A table that does not exist must not become one of the next program.
  into[at + 2] = table >= 0 ? (table < tableCount ? firstTable + table : Number.MAX_SAFE_INTEGER) : table;
  into[at + 3] = rectangle.tableFrom;
  into[at + 4] = rectangle.tableCount;
  into[at + 5] = rectangle.sourceOffset;
  into[at + 6] = rectangle.targetOffset;
  into[at + 7] = rectangle.fragmentBytes;
  into[at + 8] = loops.length;
  let loopAt = at + 9;
  for (const loop of loops) {
    into[loopAt] = loop.count;
    into[loopAt + 1] = loop.sourceStride;
    into[loopAt + 2] = loop.targetStride;
    loopAt += 3;
  }
}
