/**
 * How many bytes a rectangle in normal form writes below an address: counted digit by digit, never one by one. The same
 * count as `cuda/core/copy_program_coverage.cc`.
 */
import { digitOf, type Column, type Shape } from './program-shape.js';

export class Coverage {
  /** For each axis: bytes of one digit of it, for one row. */
  private readonly innerBytes: number[] = [];
  /** The digits of each row in the order of the axes that are columns, sorted by the first, then the second. */
  private readonly digits: Float64Array[];
  private readonly rows: number;

  constructor(private readonly shape: Shape) {
    const { rows, axes, fragmentBytes } = shape;
    this.rows = rows?.count ?? 1;
    let bytes = fragmentBytes;
    for (let index = axes.length - 1; index >= 0; index -= 1) {
      const axis = axes[index] as Shape['axes'][number];
      this.innerBytes[index] = bytes;
      if (axis.column === null) bytes *= axis.count;
    }
    const columns = axes.flatMap((axis) => (axis.column === null ? [] : [axis.column]));
    if (rows === null) {
      this.digits = [];
      return;
    }
    const digit = (column: Column, row: number): number => digitOf(rows, column, row);
    const order = Array.from({ length: columns.length === 0 ? 0 : rows.count }, (_, row) => row);
    order.sort((left, right) => {
      const column = columns.find((each) => digit(each, left) !== digit(each, right));
      return column === undefined ? 0 : digit(column, left) - digit(column, right);
    });
    this.digits = columns.map((column) => Float64Array.from(order, (row) => digit(column, row)));
  }

  /** Bytes written at addresses below `address`. */
  below(address: number): number {
    // How far into the part not yet settled, and the rows whose columns so far are those of it.
    let left = address - this.shape.base;
    let first = 0;
    let last = this.rows;
    let count = 0;
    let column = 0;
    for (const [index, axis] of this.shape.axes.entries()) {
      if (left <= 0 || first === last) return count;
      const inner = this.innerBytes[index] as number;
      const digit = Math.floor(left / axis.stride);
      if (axis.column === null) {
        const whole = Math.min(digit, axis.count);
        count += whole * inner * (last - first);
        if (whole === axis.count) return count;
      } else {
        const digits = this.digits[column] as Float64Array;
        column += 1;
        const lower = lowerBound(digits, first, last, digit);
        const upper = lowerBound(digits, lower, last, digit + 1);
        count += (lower - first) * inner;
        first = lower;
        last = upper;
      }
      left -= digit * axis.stride;
    }
    return count + Math.min(Math.max(left, 0), this.shape.fragmentBytes) * (last - first);
  }
}

/** First index in `[first, last)` whose value is at least `value`, or `last`. */
function lowerBound(values: Float64Array, first: number, last: number, value: number): number {
  let low = first;
  let high = last;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((values[middle] as number) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
