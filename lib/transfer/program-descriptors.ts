/**
 * A copy program as lists of contiguous runs, in the orders that the reference's backends use (spec 7.3, 7.4): what NIXL
 * is given as descriptors, and what NCCL is given as messages. Exact for the row-major buffers that the reference has;
 * other axis orders come in the same order of rows and loops.
 *
 * A list is as long as the program has fragments. Refuses rows and tables that do not exist; whether the program stays
 * inside its regions is `check-program.ts`'s question.
 */
import { argumentError } from '../errors.js';
import type { CopyProgram, Loop, Rectangle, Table } from './copy-program.js';

/** `nixl`: a list is one READ. `nccl`: a list is one message, sent and received in the order of the lists. */
export type DescriptorOrder = 'nixl' | 'nccl';

/** Runs of equal length: `source[i]` goes to `target[i]`. */
export interface DescriptorList {
  readonly sourceRegion: number;
  readonly targetRegion: number;
  /** Byte offsets in the regions. */
  readonly source: Float64Array;
  readonly target: Float64Array;
  /** Length of each run. */
  readonly bytes: number;
  /** The tensor that one message carries; null in the order of NIXL, or where the rectangle has no label. */
  readonly shape: readonly number[] | null;
}

/**
 * The lists of one (source rank, target rank) pair, rectangles in the order of the program.
 *
 * `nixl`: one list a rectangle, or one for each turn of its label's `requests` loop; inside, rows of the table first.
 * `nccl`: one list for each row, SSM state one for each layer and row.
 *
 * @throws `ARGUMENT_INVALID` for a row or a table that does not exist
 */
export function lowerToDescriptors(program: CopyProgram, order: DescriptorOrder): DescriptorList[] {
  return program.rectangles.flatMap((rectangle, index) => {
    const rows = rowOffsets(program, rectangle, `rectangles[${index}]`);
    const { label } = rectangle;
    const isMessage = order === 'nccl';
    const turned = isMessage && label?.state === 'attention' ? null : (label?.requests ?? null);
    const at = turned === null ? -1 : rectangle.loops.findIndex((loop) => isSame(loop, turned));
    const split = at < 0 ? null : (rectangle.loops[at] as Loop);
    const loops = rectangle.loops.filter((_, depth) => depth !== at);
    const lists: DescriptorList[] = [];
    for (let turn = 0; turn < (split?.count ?? 1); turn++) {
      const sourceAt = rectangle.sourceOffset + turn * (split?.sourceStride ?? 0);
      const targetAt = rectangle.targetOffset + turn * (split?.targetStride ?? 0);
      const shape = isMessage ? (label?.shape ?? null) : null;
      for (const some of isMessage ? rows.map((row) => [row]) : [rows]) {
        lists.push({ ...runs(rectangle, loops, some, sourceAt, targetAt), shape });
      }
    }
    return lists;
  });
}

/**
 * The program whose rows are, rectangle by rectangle, the messages of {@link lowerToDescriptors} in the order of NCCL: SSM
 * state has a rectangle for each layer.
 */
export function splitMessages({ rectangles, tables }: CopyProgram): CopyProgram {
  const split = rectangles.flatMap((rectangle): Rectangle[] => {
    const { label, loops } = rectangle;
    const turned = label === undefined || label.state === 'attention' ? null : label.requests;
    const at = turned === null ? -1 : loops.findIndex((loop) => isSame(loop, turned));
    if (at < 0) return [rectangle];
    const { count, sourceStride, targetStride } = loops[at] as Loop;
    return Array.from({ length: count }, (_, turn) => ({
      ...rectangle,
      sourceOffset: rectangle.sourceOffset + turn * sourceStride,
      targetOffset: rectangle.targetOffset + turn * targetStride,
      loops: loops.filter((__, depth) => depth !== at),
    }));
  });
  return { rectangles: split, tables };
}

/** What a row adds on either side. */
type RowOffset = readonly [source: number, target: number];

function rowOffsets(program: CopyProgram, rectangle: Rectangle, path: string): readonly RowOffset[] {
  if (rectangle.table < 0) return [[0, 0]];
  const table = program.tables[rectangle.table];
  if (table === undefined) throw argumentError(`${path}.table`, `below ${program.tables.length}`, rectangle.table);
  const { tableFrom: from, tableCount: count } = rectangle;
  const rows = Math.min(table.source.length, table.target.length);
  if (from < 0 || count < 0 || from + count > rows) {
    throw argumentError(`${path}.tableFrom + tableCount`, `at most the table's ${rows} rows`, from + count);
  }
  return Array.from({ length: count }, (_, index) => rowOffset(table, from + index));
}

function rowOffset({ source, target, sourceSub, targetSub, strides }: Table, row: number): RowOffset {
  return [
    source[row]! * strides.sourceBlock + (sourceSub?.[row] ?? 0) * strides.sourceSub,
    target[row]! * strides.targetBlock + (targetSub?.[row] ?? 0) * strides.targetSub,
  ];
}

/** Row by row; in each, the loops from the outside in. */
function runs(
  rectangle: Rectangle,
  loops: readonly Loop[],
  rows: readonly RowOffset[],
  sourceAt: number,
  targetAt: number,
): Omit<DescriptorList, 'shape'> {
  const perRow = loops.reduce((count, loop) => count * loop.count, 1);
  const source = new Float64Array(perRow * rows.length);
  const target = new Float64Array(perRow * rows.length);
  // The places of one row, grown from the inside out.
  const places = { source: new Float64Array(perRow), target: new Float64Array(perRow) };
  let filled = 1;
  for (const { count, sourceStride, targetStride } of [...loops].reverse()) {
    for (let turn = 1; turn < count; turn++) {
      for (let index = 0; index < filled; index++) {
        places.source[turn * filled + index] = places.source[index]! + turn * sourceStride;
        places.target[turn * filled + index] = places.target[index]! + turn * targetStride;
      }
    }
    filled *= count;
  }
  let at = 0;
  for (const [sourceRow, targetRow] of rows) {
    for (let index = 0; index < perRow; index++, at++) {
      source[at] = sourceAt + sourceRow + places.source[index]!;
      target[at] = targetAt + targetRow + places.target[index]!;
    }
  }
  const { sourceRegion, targetRegion, fragmentBytes: bytes } = rectangle;
  return { sourceRegion, targetRegion, source, target, bytes };
}

function isSame(a: Loop, b: Loop): boolean {
  return a.count === b.count && a.sourceStride === b.sourceStride && a.targetStride === b.targetStride;
}
