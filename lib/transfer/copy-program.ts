/**
 * The copy program: what to move, as one small value that every transport lowers its own way.
 *
 * A program copies rectangles between registered regions. A rectangle is a fragment repeated over up to five strided
 * loops and, for each row of a block table, over the table's source and target blocks.
 *
 * **Normal form.** Only programs in normal form are run; for them the check (`check-program.ts`, and again in native
 * code) is exact. A program is normal when
 *
 * 1. every rectangle is a *nest* on its target side: its loops of more than one turn are listed from the largest target
 *    stride to the smallest; and when the block column (stride `targetBlock`) and the sub column (stride `targetSub`) of
 *    its rows are sorted in among them, wherever their values differ, each stride is at least the extent of all that
 *    lies inside it: the fragment, and `(count - 1) * stride` of every loop or column further in, where the count of a
 *    column is its largest value less its smallest plus one;
 * 2. the rows that one rectangle uses name each (target, targetSub) once; else it overlaps itself;
 * 3. any two rectangles whose target spans overlap can be told apart, or shown to meet, in 32,768 steps. Whenever the
 *    strides of both merge into one nest, as those of one layout do, far fewer suffice; strides without a common
 *    measure and with long loops are what this refuses.
 *
 * The source side is free: strides in any order and of any size, also 0, and the same source bytes may be read twice.
 * Loops of one turn count for nothing, wherever they stand.
 */

import { labelInWords, type RectangleLabel } from './program-label.js';

/** One strided repetition. Strides in bytes. */
export interface Loop {
  readonly count: number;
  readonly sourceStride: number;
  readonly targetStride: number;
}

/** A fragment of contiguous bytes, repeated over loops and over rows `tableFrom … tableFrom + tableCount - 1` of a table. */
export interface Rectangle {
  /** Index into the peer's granted regions. */
  readonly sourceRegion: number;
  /** Index into this side's registered regions. */
  readonly targetRegion: number;
  /** Index into `CopyProgram.tables`, or -1 when the rectangle is copied once. */
  readonly table: number;
  readonly tableFrom: number;
  readonly tableCount: number;
  /** Byte offset in the region of the first fragment of block 0. */
  readonly sourceOffset: number;
  readonly targetOffset: number;
  readonly fragmentBytes: number;
  /** Outermost first; at most {@link loopsMax}. */
  readonly loops: readonly Loop[];
  /** What it means, for people and for the order of descriptor lists; no check and no copy looks at it. */
  readonly label?: RectangleLabel;
}

/** Which source block goes to which target block. Row `i` adds `source[i] * sourceBlock (+ sourceSub[i] * sourceSub)`. */
export interface Table {
  readonly source: Int32Array;
  readonly target: Int32Array;
  readonly sourceSub?: Int32Array;
  readonly targetSub?: Int32Array;
  /** Strides in bytes. */
  readonly strides: {
    readonly sourceBlock: number;
    readonly targetBlock: number;
    readonly sourceSub: number;
    readonly targetSub: number;
  };
}

/** What one transfer moves: rectangles over registered regions, and their block tables. */
export interface CopyProgram {
  readonly rectangles: readonly Rectangle[];
  readonly tables: readonly Table[];
}

/** Loops of one rectangle, at most. */
export const loopsMax = 5;
export const rectanglesMax = 65_536;
export const tablesMax = 65_536;
/** Values in all columns of all tables together. */
export const rowValuesMax = 2 ** 26;
/** Regions are at most this large, so that sums of addresses are exact. */
export const regionBytesMax = 2 ** 52;

/** Bytes that a program moves. */
export function programBytes(program: CopyProgram): number {
  return program.rectangles.reduce((bytes, rectangle) => bytes + fragmentCount(rectangle) * rectangle.fragmentBytes, 0);
}

/** How many times a rectangle copies its fragment. */
export function fragmentCount(rectangle: Rectangle): number {
  const rows = rectangle.table < 0 ? 1 : rectangle.tableCount;
  return rectangle.loops.reduce((count, loop) => count * loop.count, rows);
}

/** The program in words, for logs and for people: one sentence a rectangle, the first three of them. */
export function describe(program: CopyProgram): string {
  const { rectangles } = program;
  if (rectangles.length === 0) return 'Copies nothing.';
  const fragments = rectangles.reduce((count, rectangle) => count + fragmentCount(rectangle), 0);
  const whole =
    `Copies ${sizeInWords(programBytes(program))} in ${counted(fragments, 'fragment')}, ` +
    `described by ${counted(rectangles.length, 'rectangle')}.`;
  const shown = rectangles.slice(0, 3).map(describeRectangle);
  const more = rectangles.length - shown.length;
  return [whole, ...shown, ...(more === 0 ? [] : [`And ${counted(more, 'rectangle')} more.`])].join(' ');
}

function describeRectangle(rectangle: Rectangle): string {
  const { loops, table, tableFrom, tableCount } = rectangle;
  const turns = loops.filter((loop) => loop.count > 1).map((loop) => grouped(loop.count));
  const pieces = `${turns.length === 0 ? '' : `${turns.join(' × ')} × `}${sizeInWords(rectangle.fragmentBytes)}`;
  const rows = tableCount === 1 ? `row ${tableFrom}` : `rows ${tableFrom} to ${tableFrom + tableCount - 1}`;
  const blocks =
    table < 0
      ? 'once'
      : `for ${tableCount === 1 ? '' : 'each of '}${counted(tableCount, 'block')} (${rows} of table ${table})`;
  if (rectangle.label !== undefined) {
    const words = labelInWords(rectangle.label);
    const each = fragmentCount(rectangle) * rectangle.fragmentBytes;
    const amount = table < 0 ? '' : `${counted(tableCount, 'block')}, `;
    const size = `${sizeInWords(each)} in pieces of ${sizeInWords(rectangle.fragmentBytes)}`;
    return `${words.charAt(0).toUpperCase()}${words.slice(1)}: ${amount}${size}.`;
  }
  return (
    `From region ${rectangle.sourceRegion} at ${grouped(rectangle.sourceOffset)} to region ${rectangle.targetRegion} ` +
    `at ${grouped(rectangle.targetOffset)}: ${pieces}, ${blocks}.`
  );
}

function counted(count: number, noun: string): string {
  return `${grouped(count)} ${noun}${count === 1 ? '' : 's'}`;
}

function grouped(value: number): string {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ',');
}

function sizeInWords(bytes: number): string {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  if (unit === 0) return bytes === 1 ? '1 byte' : `${bytes} bytes`;
  return `${Number.isInteger(value) ? value : value.toFixed(1)} ${units[unit]}`;
}

/** Also for one made in another realm, as native code's are under some test runners. */
export function isInt32Array(value: unknown): value is Int32Array {
  return (
    ArrayBuffer.isView(value) && (value as { [Symbol.toStringTag]?: unknown })[Symbol.toStringTag] === 'Int32Array'
  );
}
