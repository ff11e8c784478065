/**
 * The proof that a copy program writes every target byte at most once and touches nothing outside its regions; on
 * request also that it leaves out nothing that is wanted. Its cost depends on the numbers of rectangles and table rows,
 * never on the number of fragments.
 *
 * Native code makes the same decision again before it forms an address (`cuda/core/copy_program_check.cc`); tests hold
 * both to one verdict.
 */
import { requireList, requireObject } from '../argument-shape.js';
import { argumentError, HandoffError } from '../errors.js';
import { regionBytesMax, type CopyProgram, type Loop, type Rectangle } from './copy-program.js';
import { Coverage } from './program-coverage.js';
import { decideMeeting, type StepBudget } from './program-overlap.js';
import { RowRanges } from './program-rows.js';
import type { Axis, RowRange, Shape } from './program-shape.js';
import { checkValues } from './program-values.js';

/** Bytes of a target region that a program has to write whole. */
export interface WantedRange {
  readonly region: number;
  readonly offset: number;
  readonly bytes: number;
}

/** What else a program must satisfy. */
export interface CheckOptions {
  readonly wanted?: readonly WantedRange[];
}

/** Steps all pairs of one program may take together; a row that is looked at counts as one. */
const programStepsMax = 2 ** 26;

/**
 * Accepts a program in normal form (see `copy-program.ts`) that is safe to run on regions of these sizes.
 *
 * @param sourceBytes - byte length of each region the program may read
 * @param targetBytes - byte length of each region it may write
 * @throws `ARGUMENT_INVALID` for a value that is no count, size or column; `PROGRAM_OUT_OF_RANGE`;
 * `PROGRAM_NOT_NORMAL`; `PROGRAM_OVERLAP` when two fragments would write one byte; `PROGRAM_INCOMPLETE` when a wanted
 * range is not written whole
 */
export function checkProgram(
  program: CopyProgram,
  sourceBytes: readonly number[],
  targetBytes: readonly number[],
  options: CheckOptions = {},
): void {
  requireObject('options', options);
  const { wanted = [] } = options;
  requireList('options.wanted', wanted);
  wanted.forEach((range, index) => requireObject(`options.wanted[${index}]`, range));
  checkSizes(sourceBytes, 'sourceBytes');
  checkSizes(targetBytes, 'targetBytes');
  checkValues(program);
  const ranges = new RowRanges(program);
  const shapes = program.rectangles.map((rectangle, index) => {
    const rows = rectangle.table < 0 ? null : ranges.of(rectangle, index);
    checkReach('sourceRegion', index, rectangle.sourceRegion, sourceBytes, sourceReach(rectangle, rows));
    checkReach('targetRegion', index, rectangle.targetRegion, targetBytes, targetReach(rectangle, rows));
    const shape = nestOf(rectangle, index, rows);
    if (rows !== null) ranges.checkDistinct(rows, rectangle, index);
    return shape;
  });
  checkPairs(shapes);
  checkCoverage(shapes, targetBytes, wanted);
}

function checkSizes(sizes: readonly number[], field: string): void {
  requireList(field, sizes, 'a list of sizes');
  for (const [index, bytes] of sizes.entries()) {
    if (!Number.isSafeInteger(bytes) || bytes < 0 || bytes > regionBytesMax) {
      throw argumentError(`${field}[${index}]`, 'a size of at most 2^52 bytes', bytes);
    }
  }
}

/** One past the last byte read. A sum that is not exact is far above any region's size. */
function sourceReach({ sourceOffset, fragmentBytes, loops }: Rectangle, rows: RowRange | null): number {
  let reach = sourceOffset + fragmentBytes + (rows?.sourceReach ?? 0);
  for (const loop of loops) reach += (loop.count - 1) * loop.sourceStride;
  return reach;
}

function targetReach({ targetOffset, fragmentBytes, loops }: Rectangle, rows: RowRange | null): number {
  let reach = targetOffset + fragmentBytes + (rows?.targetReach ?? 0);
  for (const loop of loops) reach += (loop.count - 1) * loop.targetStride;
  return reach;
}

function checkReach(
  side: 'sourceRegion' | 'targetRegion',
  index: number,
  region: number,
  sizes: readonly number[],
  reach: number,
): void {
  const bytes = sizes[region];
  if (bytes !== undefined && reach <= bytes) return;
  const field = `rectangles[${index}].${side}`;
  if (bytes === undefined) throw argumentError(field, `an index below ${sizes.length}`, region, 'PROGRAM_OUT_OF_RANGE');
  throw new HandoffError(
    'PROGRAM_OUT_OF_RANGE',
    `${field}: expected bytes inside the region's ${bytes}, got an end at ${reach}`,
  );
}

/** The rectangle's axes in order, if they are a nest. */
function nestOf(rectangle: Rectangle, index: number, rows: RowRange | null): Shape {
  const axes: Axis[] = [];
  const { loops } = rectangle;
  let outer = Infinity;
  for (let depth = 0; depth < loops.length; depth += 1) {
    const { count, targetStride: stride } = loops[depth] as Loop;
    if (count === 1) continue;
    if (stride > outer) {
      throw new HandoffError(
        'PROGRAM_NOT_NORMAL',
        `rectangles[${index}].loops[${depth}]: expected target strides from the largest to the smallest, ` +
          `got ${stride} after ${outer}`,
      );
    }
    outer = stride;
    axes.push({ stride, count, column: null });
  }
  let base = rectangle.targetOffset;
  if (rows !== null) {
    const { targetBlock, targetSub } = rows.table.strides;
    base += rows.blockMin * targetBlock + rows.subMin * targetSub;
    if (rows.blockMax > rows.blockMin) {
      insert(axes, { stride: targetBlock, count: rows.blockMax - rows.blockMin + 1, column: 'block' });
    }
    if (rows.subMax > rows.subMin) {
      insert(axes, { stride: targetSub, count: rows.subMax - rows.subMin + 1, column: 'sub' });
    }
  }
  let extent = rectangle.fragmentBytes;
  for (let at = axes.length - 1; at >= 0; at -= 1) {
    const { stride, count } = axes[at] as Axis;
    if (stride < extent) {
      throw new HandoffError(
        'PROGRAM_NOT_NORMAL',
        `rectangles[${index}]: expected every target stride to be at least the extent of what lies inside it, ` +
          `got a stride of ${stride} around ${extent} bytes`,
      );
    }
    extent += (count - 1) * stride;
  }
  if (extent > regionBytesMax) {
    throw new HandoffError('PROGRAM_NOT_NORMAL', `rectangles[${index}]: expected an extent of at most 2^52 bytes`);
  }
  const { targetRegion: region, fragmentBytes } = rectangle;
  return { rectangle: index, region, base, extent, fragmentBytes, axes, rows };
}

/** Behind all axes whose strides are at least as large. */
function insert(axes: Axis[], axis: Axis): void {
  let at = axes.length;
  while (at > 0 && (axes[at - 1] as Axis).stride < axis.stride) at -= 1;
  axes.splice(at, 0, axis);
}

function checkPairs(shapes: readonly Shape[]): void {
  const order = [...shapes].sort((left, right) => left.region - right.region || left.base - right.base);
  const budget: StepBudget = { left: programStepsMax };
  for (const [at, a] of order.entries()) {
    for (let next = at + 1; next < order.length; next += 1) {
      const b = order[next] as Shape;
      if (b.region !== a.region || b.base >= a.base + a.extent) break;
      const meeting = decideMeeting(a, b, budget);
      if (meeting === 'apart') continue;
      const first = `rectangles[${Math.min(a.rectangle, b.rectangle)}]`;
      const second = `rectangles[${Math.max(a.rectangle, b.rectangle)}]`;
      if (meeting === 'meet') {
        throw new HandoffError(
          'PROGRAM_OVERLAP',
          `${second} writes target bytes that ${first} writes too; every byte may be written once`,
        );
      }
      throw new HandoffError(
        'PROGRAM_NOT_NORMAL',
        `${second} and ${first} interleave in a way that cannot be decided in bounded steps; ` +
          'give both the strides of one layout',
      );
    }
  }
}

function checkCoverage(shapes: readonly Shape[], targetBytes: readonly number[], wanted: readonly WantedRange[]): void {
  if (wanted.length === 0) return;
  const coverages = shapes.map((shape) => ({ region: shape.region, coverage: new Coverage(shape) }));
  for (const [index, { region, offset, bytes }] of wanted.entries()) {
    const size = targetBytes[region];
    const isRange = Number.isSafeInteger(offset) && Number.isSafeInteger(bytes) && offset >= 0 && bytes >= 0;
    if (size === undefined || !isRange || offset > size || bytes > size - offset) {
      throw argumentError(
        `wanted[${index}]`,
        'bytes inside a target region',
        `${bytes} at ${offset} of region ${region}`,
      );
    }
    let written = 0;
    for (const each of coverages) {
      if (each.region === region) written += each.coverage.below(offset + bytes) - each.coverage.below(offset);
    }
    if (written !== bytes) {
      throw new HandoffError(
        'PROGRAM_INCOMPLETE',
        `wanted[${index}]: expected all ${bytes} bytes to be written, got ${written}`,
        { details: { region, offset, bytes, written } },
      );
    }
  }
}
