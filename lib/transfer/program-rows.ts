/**
 * The rows of block tables that the rectangles of a program use: their bounds, the reach they add, and whether each
 * names its target once. Every range is looked through once, however many rectangles share it.
 */
import { argumentError, HandoffError } from '../errors.js';
import type { CopyProgram, Rectangle } from './copy-program.js';
import { digitOf, type RowRange } from './program-shape.js';

/** The row ranges that rectangles use, each looked through once. */
export class RowRanges {
  private readonly known = new Map<string, RowRange>();
  private readonly distinct = new Set<RowRange>();

  constructor(private readonly program: CopyProgram) {}

  /** @throws `PROGRAM_OUT_OF_RANGE` for a table or rows that do not exist, and for negative ids */
  of(rectangle: Rectangle, index: number): RowRange {
    const key = `${rectangle.table}/${rectangle.tableFrom}/${rectangle.tableCount}`;
    let range = this.known.get(key);
    if (range === undefined) {
      range = this.make(rectangle, index);
      this.known.set(key, range);
    }
    return range;
  }

  /** @throws `PROGRAM_OVERLAP` */
  checkDistinct(range: RowRange, rectangle: Rectangle, index: number): void {
    if (this.distinct.has(range)) return;
    const subs = range.subMax - range.subMin + 1;
    const keys = new Float64Array(range.count);
    for (let row = 0; row < range.count; row += 1) {
      keys[row] = digitOf(range, 'block', row) * subs + digitOf(range, 'sub', row);
    }
    keys.sort();
    for (let at = 1; at < keys.length; at += 1) {
      if (keys[at] !== keys[at - 1]) continue;
      const block = Math.floor((keys[at] as number) / subs) + range.blockMin;
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
    const { strides } = table;
    const range = {
      ...{ table, from, count, blockMin: Infinity, blockMax: 0, subMin: Infinity, subMax: 0 },
      ...{ sourceReach: 0, targetReach: 0 },
    };
    for (let row = from; row < from + count; row += 1) {
      const source = table.source[row] as number;
      const target = table.target[row] as number;
      const sourceSub = table.sourceSub?.[row] ?? 0;
      const targetSub = table.targetSub?.[row] ?? 0;
      if (source < 0 || target < 0 || sourceSub < 0 || targetSub < 0) {
        throw new HandoffError(
          'PROGRAM_OUT_OF_RANGE',
          `tables[${rectangle.table}]: expected ids of at least 0, got a negative one in row ${row}`,
        );
      }
      range.blockMin = Math.min(range.blockMin, target);
      range.blockMax = Math.max(range.blockMax, target);
      range.subMin = Math.min(range.subMin, targetSub);
      range.subMax = Math.max(range.subMax, targetSub);
      range.sourceReach = Math.max(range.sourceReach, source * strides.sourceBlock + sourceSub * strides.sourceSub);
      range.targetReach = Math.max(range.targetReach, target * strides.targetBlock + targetSub * strides.targetSub);
    }
    return range;
  }
}
