/**
 * From two buffers' named axes and the ranges they share to one rectangle of a copy program.
 *
 * Axes of any order on either side: contiguous runs that both sides agree on become the fragment, the rest become loops
 * sorted by target stride, neighbours that continue each other are merged.
 */
import { HandoffError } from '../errors.js';
import type { Axis, AxisName, BufferGeometry } from '../memory/axes-geometry.js';
import { loopsMax, type Loop, type Rectangle } from './copy-program.js';
import type { RectangleLabel } from './program-label.js';

/** Indices `source … source + count - 1` of an axis go to `target … target + count - 1`. */
export interface AxisRange {
  readonly source: number;
  readonly target: number;
  readonly count: number;
}

/** A rectangle that does not know its table yet, and the byte strides of the axes that the table runs over. */
export interface RectangleTemplate {
  readonly rectangle: Omit<Rectangle, 'table' | 'tableFrom' | 'tableCount'>;
  readonly tableStrides: {
    readonly source: number;
    readonly target: number;
    /** Bytes from one unit of a block to the next; absent (or 0) where blocks are copied whole. */
    readonly sourceSub?: number;
    readonly targetSub?: number;
  };
}

/** How {@link rectangleBetween} treats single axes. */
export interface RectangleOptions {
  /** Stays a loop of its own where it has more than one index: what its turns are must be told apart later. */
  readonly apart?: AxisName | null;
  /** Blocks of unlike sizes: one row of the table moves so many indices of the axis, from a multiple of it on. */
  readonly unit?: { readonly axis: AxisName; readonly count: number } | null;
  readonly label?: Omit<RectangleLabel, 'requests'>;
}

/**
 * The rectangle that copies `ranges` of the axes they name, and every other axis whole, except `tableAxis`, over which
 * the block table runs. An axis that one side leaves out has one index there.
 *
 * @throws `INCOMPATIBLE` naming the axis when the two buffers do not have the same axes, sizes or element size
 */
export function rectangleBetween(
  source: BufferGeometry,
  target: BufferGeometry,
  ranges: Readonly<Partial<Record<AxisName, AxisRange>>>,
  tableAxis: AxisName,
  { apart, unit, label }: RectangleOptions = {},
): RectangleTemplate {
  if (source.elementBytes !== target.elementBytes) {
    throw mismatch('elementBytes', source.elementBytes, target.elementBytes);
  }
  let sourceOffset = source.offsetBytes;
  let targetOffset = target.offsetBytes;
  let tableStrides: RectangleTemplate['tableStrides'] | null = null;
  let subStrides: { readonly sourceSub: number; readonly targetSub: number } | null = null;
  let kept: Loop | null = null;
  const loops: Loop[] = [];
  for (const { name, sourceAxis, targetAxis } of pairedAxes(source, target)) {
    if (name === tableAxis) {
      if (axisOf(source, name) === undefined || axisOf(target, name) === undefined) break;
      tableStrides = { source: sourceAxis.strideBytes, target: targetAxis.strideBytes };
      continue;
    }
    let range = ranges[name];
    if (name === unit?.axis) {
      if (sourceAxis.size % unit.count !== 0 || targetAxis.size % unit.count !== 0) {
        throw mismatch(`axes.${name}.size`, sourceAxis.size, targetAxis.size);
      }
      range = { source: 0, target: 0, count: unit.count };
      subStrides = {
        sourceSub: unit.count * sourceAxis.strideBytes,
        targetSub: unit.count * targetAxis.strideBytes,
      };
    } else if (range === undefined) {
      if (sourceAxis.size !== targetAxis.size) {
        throw mismatch(`axes.${name}.size`, sizeOf(source, name), sizeOf(target, name));
      }
      range = { source: 0, target: 0, count: targetAxis.size };
    }
    if (range.source + range.count > sourceAxis.size || range.target + range.count > targetAxis.size) {
      throw mismatch(`axes.${name}.size`, sourceAxis.size, targetAxis.size);
    }
    sourceOffset += range.source * sourceAxis.strideBytes;
    targetOffset += range.target * targetAxis.strideBytes;
    if (range.count === 1) continue;
    const loop = { count: range.count, sourceStride: sourceAxis.strideBytes, targetStride: targetAxis.strideBytes };
    if (name === apart) kept = loop;
    loops.push(loop);
  }
  const { fragmentBytes, rest } = mergeLoops(loops, kept, target.elementBytes);
  if (rest.length > loopsMax) {
    throw new HandoffError(
      'INCOMPATIBLE',
      `the two layouts need ${rest.length} nested loops, more than the ${loopsMax} a rectangle has`,
    );
  }
  if (tableStrides === null) {
    throw mismatch(`axes.${tableAxis}.size`, sizeOf(source, tableAxis), sizeOf(target, tableAxis));
  }
  const { region: sourceRegion } = source;
  const { region: targetRegion } = target;
  return {
    rectangle:
      label === undefined
        ? { sourceRegion, targetRegion, sourceOffset, targetOffset, fragmentBytes, loops: rest }
        : {
            sourceRegion,
            targetRegion,
            sourceOffset,
            targetOffset,
            fragmentBytes,
            loops: rest,
            label: labelled(label, kept),
          },
    tableStrides: subStrides === null ? tableStrides : { ...tableStrides, ...subStrides },
  };
}

/** Field by field: there is one for each pair of buffers, and copies made by spreading are slow to make and to read. */
function labelled(label: Omit<RectangleLabel, 'requests'>, requests: Loop | null): RectangleLabel {
  const { sourceRank, targetRank, state, part, layers, sourceUnits, targetUnits, shape } = label;
  return { sourceRank, targetRank, state, part, layers, sourceUnits, targetUnits, shape, requests };
}

interface AxisPair {
  readonly name: AxisName;
  readonly sourceAxis: Axis;
  readonly targetAxis: Axis;
}

/** Every axis that either side names, the target's first. */
function pairedAxes(source: BufferGeometry, target: BufferGeometry): readonly AxisPair[] {
  const single = (name: AxisName): Axis => ({ name, size: 1, strideBytes: 0 });
  const pairs: AxisPair[] = target.axes.map((targetAxis) => ({
    name: targetAxis.name,
    sourceAxis: axisOf(source, targetAxis.name) ?? single(targetAxis.name),
    targetAxis,
  }));
  for (const sourceAxis of source.axes) {
    const { name } = sourceAxis;
    if (axisOf(target, name) === undefined) pairs.push({ name, sourceAxis, targetAxis: single(name) });
  }
  return pairs;
}

function axisOf({ axes }: BufferGeometry, name: AxisName): Axis | undefined {
  return axes.find((axis) => axis.name === name);
}

function sizeOf(buffer: BufferGeometry, name: AxisName): number | string {
  return axisOf(buffer, name)?.size ?? 'no such axis';
}

/** Grows the fragment over axes that are contiguous on both sides, and joins loops that continue each other. */
function mergeLoops(
  loops: readonly Loop[],
  kept: Loop | null,
  elementBytes: number,
): { fragmentBytes: number; rest: Loop[] } {
  const ascending = [...loops].sort((a, b) => a.targetStride - b.targetStride || a.sourceStride - b.sourceStride);
  let fragmentBytes = elementBytes;
  const rest: Loop[] = [];
  for (const loop of ascending) {
    if (
      loop !== kept &&
      rest.length === 0 &&
      loop.sourceStride === fragmentBytes &&
      loop.targetStride === fragmentBytes
    ) {
      fragmentBytes *= loop.count;
      continue;
    }
    const inner = rest[0];
    if (
      inner !== undefined &&
      loop !== kept &&
      inner !== kept &&
      loop.sourceStride === inner.sourceStride * inner.count &&
      loop.targetStride === inner.targetStride * inner.count
    ) {
      rest[0] = { ...inner, count: inner.count * loop.count };
      continue;
    }
    rest.unshift(loop);
  }
  return { fragmentBytes, rest };
}

function mismatch(path: string, source: unknown, target: unknown): HandoffError {
  return new HandoffError(
    'INCOMPATIBLE',
    `${path}: the source has ${String(source)} and the target ${String(target)}`,
    {
      details: { path, source, target },
    },
  );
}
