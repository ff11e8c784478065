/**
 * The copy program: what to move, as one small value that every transport lowers its own way.
 *
 * A program copies rectangles between registered regions. A rectangle is a fragment repeated over up to five strided
 * loops and, for each row of a block table, over the table's source and target blocks. See `checkProgram` for the
 * normal form that makes the proof "every target byte is written exactly once" exact.
 */

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

export interface CopyProgram {
  readonly rectangles: readonly Rectangle[];
  readonly tables: readonly Table[];
}

export const loopsMax = 5;

/** Also for one made in another realm, as native code's are under some test runners. */
export function isInt32Array(value: unknown): value is Int32Array {
  return (
    ArrayBuffer.isView(value) && (value as { [Symbol.toStringTag]?: unknown })[Symbol.toStringTag] === 'Int32Array'
  );
}
