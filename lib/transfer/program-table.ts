/**
 * The block tables of a program: which part of which source block goes to which part of which target block. Blocks of
 * one size are copied whole; of two sizes, in units of their greatest common divisor.
 */
import type { CopyProgram, Rectangle, Table } from './copy-program.js';
import type { RectangleTemplate } from './rectangle.js';

/** Rows of a table without strides. */
export type BlockRows = Pick<Table, 'source' | 'target' | 'sourceSub' | 'targetSub'>;

/** Blocks of a sequence on both sides, each list from the first token of the sequence on. */
export interface PairedBlocks {
  readonly source: Int32Array;
  readonly target: Int32Array;
  /** Tokens per block. */
  readonly sourceTokens: number;
  readonly targetTokens: number;
  /** Leading blocks of the target that are there already. */
  readonly skipTargetBlocks: number;
}

/** Rows for every token that both lists have room for, but for the skipped ones. */
export function pairBlocks({ source, target, sourceTokens, targetTokens, skipTargetBlocks }: PairedBlocks): BlockRows {
  if (sourceTokens === targetTokens) {
    const end = Math.min(source.length, target.length);
    // Nothing is left where more blocks are skipped than there are.
    return { source: source.subarray(skipTargetBlocks, end), target: target.subarray(skipTargetBlocks, end) };
  }
  const unit = greatestDivisor(sourceTokens, targetTokens);
  const [sourceUnits, targetUnits] = [sourceTokens / unit, targetTokens / unit];
  const from = skipTargetBlocks * targetUnits;
  const count = Math.max(0, Math.min(source.length * sourceUnits, target.length * targetUnits) - from);
  const rows = {
    source: new Int32Array(count),
    target: new Int32Array(count),
    sourceSub: new Int32Array(count),
    targetSub: new Int32Array(count),
  };
  for (let row = 0; row < count; row++) {
    const at = from + row;
    rows.source[row] = source[Math.floor(at / sourceUnits)]!;
    rows.sourceSub[row] = at % sourceUnits;
    rows.target[row] = target[Math.floor(at / targetUnits)]!;
    rows.targetSub[row] = at % targetUnits;
  }
  return rows;
}

/** Rows `from … from + count - 1` of the whole table. */
export interface RowShare {
  readonly from: number;
  readonly count: number;
}

/** The program that runs all templates over one set of rows; without rectangles where there are no rows. */
export function programOver(
  templates: readonly RectangleTemplate[],
  rows: BlockRows,
  share: RowShare = { from: 0, count: rows.source.length },
): CopyProgram {
  if (share.count === 0) return { rectangles: [], tables: [] };
  const { strides, tableOf } = tablesOf(templates);
  const { from: tableFrom, count: tableCount } = share;
  return {
    tables: strides.map((each): Table => ({ ...rows, strides: each })),
    rectangles: templates.map(({ rectangle }, index): Rectangle => {
      const { sourceRegion, targetRegion, sourceOffset, targetOffset, fragmentBytes, loops, label } = rectangle;
      const table = tableOf[index] as number;
      // Written out: a copy by spreading costs more than all else here.
      return label === undefined
        ? { sourceRegion, targetRegion, table, tableFrom, tableCount, sourceOffset, targetOffset, fragmentBytes, loops }
        : {
            sourceRegion,
            targetRegion,
            table,
            tableFrom,
            tableCount,
            sourceOffset,
            targetOffset,
            fragmentBytes,
            loops,
            label,
          };
    }),
  };
}

/** Which of the tables each template runs over: templates with the same strides share one. */
interface TemplateTables {
  readonly strides: readonly Table['strides'][];
  /** By template. */
  readonly tableOf: readonly number[];
}

/** Plans are kept for each peer, and what follows from them alone is, too. */
const keptTables = new WeakMap<readonly RectangleTemplate[], TemplateTables>();

function tablesOf(templates: readonly RectangleTemplate[]): TemplateTables {
  const kept = keptTables.get(templates);
  if (kept !== undefined) return kept;
  const strides: Table['strides'][] = [];
  const tableOf = templates.map(({ tableStrides }) => {
    const own = {
      sourceBlock: tableStrides.source,
      targetBlock: tableStrides.target,
      sourceSub: tableStrides.sourceSub ?? 0,
      targetSub: tableStrides.targetSub ?? 0,
    };
    const table = strides.findIndex((known) => isSame(known, own));
    return table < 0 ? strides.push(own) - 1 : table;
  });
  const tables = { strides, tableOf };
  keptTables.set(templates, tables);
  return tables;
}

function isSame(a: Table['strides'], b: Table['strides']): boolean {
  return (
    a.sourceBlock === b.sourceBlock &&
    a.targetBlock === b.targetBlock &&
    a.sourceSub === b.sourceSub &&
    a.targetSub === b.targetSub
  );
}

/** Tokens that both block sizes are multiples of. */
export function greatestDivisor(a: number, b: number): number {
  let [x, y] = [a, b];
  while (y !== 0) [x, y] = [y, x % y];
  return x;
}
