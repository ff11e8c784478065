/**
 * The target side of one rectangle in normal form, as the checks look at it: a base, and a nest of axes. Each loop of
 * more than one turn is an axis; so are the block column and the sub column of a table, wherever their values differ.
 *
 * The same shapes as in `cuda/core/copy_program_shape.h`.
 */
import type { Table } from './copy-program.js';

export type Column = 'block' | 'sub';

export interface Axis {
  readonly stride: number;
  /** Digits run from 0 to `count - 1`. */
  readonly count: number;
  /** Null for a loop, which takes every digit. */
  readonly column: Column | null;
}

/** Rows `from … from + count - 1` of a table. */
export interface RowRange {
  readonly table: Table;
  readonly from: number;
  readonly count: number;
  readonly blockMin: number;
  readonly blockMax: number;
  readonly subMin: number;
  readonly subMax: number;
  /** The largest offset that a row adds on either side. */
  readonly sourceReach: number;
  readonly targetReach: number;
}

export interface Shape {
  /** Index in the program. */
  readonly rectangle: number;
  readonly region: number;
  /** Address of the byte with all digits 0. */
  readonly base: number;
  /** No byte lies at or beyond `base + extent`. */
  readonly extent: number;
  readonly fragmentBytes: number;
  /** Strides descending. */
  readonly axes: readonly Axis[];
  readonly rows: RowRange | null;
}

/** A row's digit: its column's value less the smallest in the range. */
export function digitOf(rows: RowRange, column: Column, row: number): number {
  return column === 'block'
    ? (rows.table.target[rows.from + row] as number) - rows.blockMin
    : (rows.table.targetSub?.[rows.from + row] ?? 0) - rows.subMin;
}
