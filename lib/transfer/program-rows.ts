/**
 * The rows of block tables that the rectangles of a program use: their bounds, the reach they add, and whether each
 * names its target once. Every range is looked through once, however many rectangles share it.
 */
import { argumentError, HandoffError } from '../errors.js';
import type { CopyProgram, Rectangle, Table } from './copy-program.js';
import { digitOf, type RowRange } from './program-shape.js';

/** Places that the rows of a range span, for each of them, up to which a bit a place is kept. */
const denseRows = 64;

/** The row ranges that rectangles use, each looked through once. */
export class RowRanges {
  private readonly known = new Map<string, RowRange>();
  private readonly distinct = new Set<RowRange>();
  /** The rectangles of one plan mostly use the same rows, one after the other. */
  private last: { readonly range: RowRange; readonly table: number } | null = null;

  constructor(private readonly program: CopyProgram) {}

  /** @throws `PROGRAM_OUT_OF_RANGE` for a table or rows that do not exist, and for negative ids */
  of(rectangle: Rectangle, index: number): RowRange {
    const { table, tableFrom, tableCount } = rectangle;
    const { last } = this;
    if (last?.table === table && last.range.from === tableFrom && last.range.count === tableCount) return last.range;
    const key = `${table}/${tableFrom}/${tableCount}`;
    let range = this.known.get(key);
    if (range === undefined) {
      range = this.make(rectangle, index);
      this.known.set(key, range);
    }
    this.last = { range, table };
    return range;
  }

  /** @throws `PROGRAM_OVERLAP` */
  checkDistinct(range: RowRange, rectangle: Rectangle, index: number): void {
    if (this.distinct.has(range)) return;
    const subs = range.subMax - range.subMin + 1;
    const places = (range.blockMax - range.blockMin + 1) * subs;
    const twice =
      places <= denseRows * range.count ? repeatedInBits(range, subs, places) : repeatedInOrder(range, subs);
    if (twice !== null) {
      const block = Math.floor(twice / subs) + range.blockMin;
      throw new HandoffError(
        'PROGRAM_OVERLAP',
        `tables[${rectangle.table}]: expected each target once in the rows of rectangles[${index}], got block ${block} twice`,
      );
    }
    this.distinct.add(range);
  }

  private make(rectangle: Rectangle, index: number): RowRange {
    const { tableFrom: from, tableCount: count } = rectangle;
    const table = this.program.tables[rectangle.table];
    if (table === undefined) {
      throw argumentError(
        `rectangles[${index}].table`,
        `an index below ${this.program.tables.length}`,
        rectangle.table,
        'PROGRAM_OUT_OF_RANGE',
      );
    }
    if (from > table.source.length || count > table.source.length - from) {
      throw new HandoffError(
        'PROGRAM_OUT_OF_RANGE',
        `rectangles[${index}].tableFrom: expected rows inside the table's ${table.source.length}, got ${count} from row ${from}`,
      );
    }
    const extremes = (column: Int32Array | undefined): Extremes => extremesOf(column, from, count);
    const [source, target] = [extremes(table.source), extremes(table.target)];
    const [sourceSub, targetSub] = [extremes(table.sourceSub), extremes(table.targetSub)];
    if (Math.min(source.least, target.least, sourceSub.least, targetSub.least) < 0) {
      throw negativeId(rectangle, table);
    }
    const { strides } = table;
    return {
      ...{ table, from, count, blockMin: target.least, blockMax: target.most },
      ...{ subMin: targetSub.least, subMax: targetSub.most },
      sourceReach: reachOf(table.source, source, strides.sourceBlock, table.sourceSub, strides.sourceSub, from, count),
      targetReach: reachOf(table.target, target, strides.targetBlock, table.targetSub, strides.targetSub, from, count),
    };
  }
}

interface Extremes {
  readonly least: number;
  readonly most: number;
}

/** Of some rows of a column; all 0 for one that is absent. */
function extremesOf(column: Int32Array | undefined, from: number, count: number): Extremes {
  if (column === undefined) return { least: 0, most: 0 };
  let least = column[from] as number;
  let most = least;
  for (let row = from + 1; row < from + count; row += 1) {
    const id = column[row] as number;
    if (id < least) least = id;
    else if (id > most) most = id;
  }
  return { least, most };
}

/** The largest offset that a row adds; no id is negative. */
function reachOf(
  blocks: Int32Array,
  extremes: Extremes,
  blockStride: number,
  subs: Int32Array | undefined,
  subStride: number,
  from: number,
  count: number,
): number {
  if (subs === undefined) return extremes.most * blockStride;
  let reach = 0;
  for (let row = from; row < from + count; row += 1) {
    reach = Math.max(reach, (blocks[row] as number) * blockStride + (subs[row] as number) * subStride);
  }
  return reach;
}

function negativeId({ table: index, tableFrom, tableCount }: Rectangle, table: Table): HandoffError {
  const columns = [table.source, table.target, table.sourceSub, table.targetSub];
  let row = tableFrom;
  while (row < tableFrom + tableCount && columns.every((column) => (column?.[row] ?? 0) >= 0)) row += 1;
  return new HandoffError(
    'PROGRAM_OUT_OF_RANGE',
    `tables[${index}]: expected ids of at least 0, got a negative one in row ${row}`,
  );
}

/** The first place that two rows name, or null: a bit for each place between the smallest and the largest. */
function repeatedInBits(range: RowRange, subs: number, places: number): number | null {
  const seen = new Int32Array((places >>> 5) + 1);
  for (let row = 0; row < range.count; row += 1) {
    const place = digitOf(range, 'block', row) * subs + digitOf(range, 'sub', row);
    const [word, bit] = [place >>> 5, 1 << (place & 31)];
    if (((seen[word] as number) & bit) !== 0) return place;
    seen[word] = (seen[word] as number) | bit;
  }
  return null;
}

/** The smallest place that two rows name, or null: by sorting, for rows that lie far apart. */
function repeatedInOrder(range: RowRange, subs: number): number | null {
  const places = new Float64Array(range.count);
  for (let row = 0; row < range.count; row += 1) {
    places[row] = digitOf(range, 'block', row) * subs + digitOf(range, 'sub', row);
  }
  places.sort();
  for (let at = 1; at < places.length; at += 1) if (places[at] === places[at - 1]) return places[at] as number;
  return null;
}
