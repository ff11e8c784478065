/**
 * Whether two rectangles in normal form write a common byte: decided exactly, without expanding either.
 *
 * Two bytes meet when `sum(x[d] * d) + r` is the distance of the bases, where `x[d]` is the difference of the two digits
 * of stride `d` and `r` the difference inside the fragments. The strides are walked from the largest down; in a common
 * nest at most two values of each `x[d]` can still succeed, and a step whose remainder no multiple of the strides left
 * can reach ends at once. Tables come in at the end: do two rows with just these differences exist?
 *
 * Step for step the same as `cuda/core/copy_program_overlap.cc`, so that both always come to one verdict.
 */
import { digitOf, type Column, type Shape } from './program-shape.js';

export type Meeting = 'apart' | 'meet' | 'unproven';

/** Steps left to all pairs of a program. */
export interface StepBudget {
  left: number;
}

/** Steps one pair may take: a full walk over a common nest of 14 strides. */
export const pairStepsMax = 2 ** 15;

interface Side {
  readonly count: number;
  readonly column: Column | null;
}

interface Joint {
  readonly stride: number;
  readonly a: Side;
  readonly b: Side;
  /** Differences the walk has settled on. */
  low: number;
  high: number;
}

const absent: Side = { count: 1, column: null };

/** Takes the steps it used, one a node of the walk and one a row looked at, from `budget`. */
export function decideMeeting(a: Shape, b: Shape, budget: StepBudget): Meeting {
  return new Walk(a, b, budget).run();
}

class Walk {
  private readonly joints: Joint[];
  private fragmentLow: number;
  private fragmentHigh: number;
  /** For each level: the sums that it and those further in can reach, and the common divisor of their strides. */
  private readonly low: number[] = [];
  private readonly high: number[] = [];
  private readonly divisor: number[] = [];
  private nodes = 0;
  private exhausted = false;

  constructor(
    private readonly a: Shape,
    private readonly b: Shape,
    private readonly budget: StepBudget,
  ) {
    this.fragmentLow = -(b.fragmentBytes - 1);
    this.fragmentHigh = a.fragmentBytes - 1;
    this.joints = this.fold(mergeAxes(a, b));
    let low = this.fragmentLow;
    let high = this.fragmentHigh;
    let divisor = 0;
    this.low[this.joints.length] = low;
    this.high[this.joints.length] = high;
    for (let level = this.joints.length - 1; level >= 0; level -= 1) {
      const joint = this.joints[level] as Joint;
      low -= (joint.b.count - 1) * joint.stride;
      high += (joint.a.count - 1) * joint.stride;
      divisor = greatestCommonDivisor(divisor, joint.stride);
      this.low[level] = low;
      this.high[level] = high;
      this.divisor[level] = divisor;
    }
  }

  run(): Meeting {
    const met = this.visit(0, this.b.base - this.a.base);
    return this.exhausted ? 'unproven' : met ? 'meet' : 'apart';
  }

  /** A loop whose stride is no longer than the run of differences reached inside it only makes that run longer. */
  private fold(joints: Joint[]): Joint[] {
    const kept: Joint[] = [];
    for (const joint of joints.reverse()) {
      if (hasColumn(joint) || joint.stride > this.fragmentHigh - this.fragmentLow + 1) {
        kept.unshift(joint);
      } else {
        this.fragmentLow -= (joint.b.count - 1) * joint.stride;
        this.fragmentHigh += (joint.a.count - 1) * joint.stride;
      }
    }
    return kept;
  }

  private spend(steps: number): boolean {
    this.budget.left -= steps;
    this.exhausted ||= this.nodes > pairStepsMax || this.budget.left < 0;
    return !this.exhausted;
  }

  /** Whether the joints from `level` on can make up `distance`. */
  private visit(level: number, distance: number): boolean {
    this.nodes += 1;
    if (!this.spend(1)) return false;
    if (distance < (this.low[level] as number) || distance > (this.high[level] as number)) return false;
    const joint = this.joints[level];
    if (joint === undefined) return this.rowsExist();
    const divisor = this.divisor[level] as number;
    if (Math.floor((distance - this.fragmentLow) / divisor) * divisor < distance - this.fragmentHigh) return false;

    const { stride, a, b } = joint;
    const first = Math.max(-(b.count - 1), Math.ceil((distance - (this.high[level + 1] as number)) / stride));
    const last = Math.min(a.count - 1, Math.floor((distance - (this.low[level + 1] as number)) / stride));
    if (first > last) return false;
    const bothColumns = a.column !== null && b.column !== null;
    if (level + 1 === this.joints.length && !bothColumns) {
      // Inside is one unbroken run: all of these succeed.
      joint.low = first;
      joint.high = last;
      return this.rowsExist();
    }
    for (let difference = first; difference <= last; difference += 1) {
      joint.low = difference;
      joint.high = difference;
      if (this.visit(level + 1, distance - difference * stride)) return true;
      if (this.exhausted) return false;
    }
    return false;
  }

  /** Whether a row of each side has the digits that the settled differences ask for. */
  private rowsExist(): boolean {
    const withColumns = this.joints.filter(hasColumn);
    const sameRows =
      this.a.rows === this.b.rows &&
      withColumns.every((joint) => joint.a.column === joint.b.column && joint.low <= 0 && joint.high >= 0);
    if (sameRows) return true;

    const [one, two] = withColumns.filter((joint) => joint.a.column !== null && joint.b.column !== null);
    if (one === undefined) return this.anyRow(this.a, true) && this.anyRow(this.b, false);
    const aRows = this.a.rows;
    const bRows = this.b.rows;
    if (aRows === null || bRows === null) return false;
    if (!this.spend(aRows.count + bRows.count)) return false;
    // Keys of the rows of b; a second shared column is folded in, as digits of it are below its count.
    const base = two === undefined ? 1 : two.b.count;
    const keys = new Set<number>();
    for (let row = 0; row < bRows.count; row += 1) {
      if (!this.fits(this.b, row, false)) continue;
      const high = digitOf(bRows, one.b.column as Column, row);
      keys.add(high * base + (two === undefined ? 0 : digitOf(bRows, two.b.column as Column, row)));
    }
    for (let row = 0; row < aRows.count; row += 1) {
      if (!this.fits(this.a, row, true)) continue;
      const high = digitOf(aRows, one.a.column as Column, row) - one.low;
      const low = two === undefined ? 0 : digitOf(aRows, two.a.column as Column, row) - two.low;
      if (high < 0 || high >= one.b.count || low < 0 || low >= base) continue;
      if (keys.has(high * base + low)) return true;
    }
    return false;
  }

  private anyRow(shape: Shape, isA: boolean): boolean {
    if (shape.rows === null) return true;
    if (!this.spend(shape.rows.count)) return false;
    for (let row = 0; row < shape.rows.count; row += 1) {
      if (this.fits(shape, row, isA)) return true;
    }
    return false;
  }

  /** Whether this row can keep to the differences of the columns that only its own side has. */
  private fits(shape: Shape, row: number, isA: boolean): boolean {
    for (const joint of this.joints) {
      const own = isA ? joint.a : joint.b;
      const other = isA ? joint.b : joint.a;
      if (own.column === null || other.column !== null || shape.rows === null) continue;
      const digit = digitOf(shape.rows, own.column, row);
      // The other side's digit runs over 0 … count - 1.
      const fits = isA
        ? digit >= joint.low && digit - (other.count - 1) <= joint.high
        : other.count - 1 - digit >= joint.low && -digit <= joint.high;
      if (!fits) return false;
    }
    return true;
  }
}

/** One joint for each stride of either side, the largest first. */
function mergeAxes(a: Shape, b: Shape): Joint[] {
  const joints: Joint[] = [];
  let i = 0;
  let j = 0;
  while (i < a.axes.length || j < b.axes.length) {
    const stride = Math.max(a.axes[i]?.stride ?? 0, b.axes[j]?.stride ?? 0);
    let ofA = absent;
    let ofB = absent;
    if (a.axes[i]?.stride === stride) ofA = a.axes[i++] as Side;
    if (b.axes[j]?.stride === stride) ofB = b.axes[j++] as Side;
    joints.push({ stride, a: ofA, b: ofB, low: 0, high: 0 });
  }
  return joints;
}

function hasColumn(joint: Joint): boolean {
  return joint.a.column !== null || joint.b.column !== null;
}

function greatestCommonDivisor(a: number, b: number): number {
  while (b !== 0) [a, b] = [b, a % b];
  return a;
}
