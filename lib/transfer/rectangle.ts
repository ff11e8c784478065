/**
 * From two buffers' named axes and the ranges they share to one rectangle of a copy program.
 *
 * Axes of any order on either side: contiguous runs that both sides agree on become the fragment, the rest become loops
 * sorted by target stride, neighbours that continue each other are merged.
 */
import { HandoffError } from '../errors.js';
import type { AxisName, BufferGeometry } from '../memory/axes-geometry.js';
import { loopsMax, type Loop, type Rectangle } from './copy-program.js';

/** Indices `source … source + count - 1` of an axis go to `target … target + count - 1`. */
export interface AxisRange {
  readonly source: number;
  readonly target: number;
  readonly count: number;
}

/** A rectangle that does not know its table yet, and the byte strides of the axis that the table runs over. */
export interface RectangleTemplate {
  readonly rectangle: Omit<Rectangle, 'table' | 'tableFrom' | 'tableCount'>;
  readonly tableStrides: { readonly source: number; readonly target: number };
}

/**
 * The rectangle that copies `ranges` of the axes they name, and every other axis whole, except `tableAxis`, over which
 * the block table runs.
 *
 * @throws `INCOMPATIBLE` naming the axis when the two buffers do not have the same axes, sizes or element size
 */
export function rectangleBetween(
  source: BufferGeometry,
  target: BufferGeometry,
  ranges: Readonly<Partial<Record<AxisName, AxisRange>>>,
  tableAxis: AxisName,
): RectangleTemplate {
  if (source.elementBytes !== target.elementBytes) {
    throw mismatch('elementBytes', source.elementBytes, target.elementBytes);
  }
  if (source.axes.length !== target.axes.length) {
    throw mismatch('axes', source.axes.map((axis) => axis.name).join(), target.axes.map((axis) => axis.name).join());
  }
  let sourceOffset = source.offsetBytes;
  let targetOffset = target.offsetBytes;
  let tableStrides: RectangleTemplate['tableStrides'] | null = null;
  const loops: Loop[] = [];
  for (const targetAxis of target.axes) {
    const sourceAxis = source.axes.find((axis) => axis.name === targetAxis.name);
    if (sourceAxis === undefined) throw mismatch(`axes.${targetAxis.name}`, 'absent', 'present');
    if (targetAxis.name === tableAxis) {
      tableStrides = { source: sourceAxis.strideBytes, target: targetAxis.strideBytes };
      continue;
    }
    let range = ranges[targetAxis.name];
    if (range === undefined) {
      if (sourceAxis.size !== targetAxis.size)
        throw mismatch(`axes.${targetAxis.name}.size`, sourceAxis.size, targetAxis.size);
      range = { source: 0, target: 0, count: targetAxis.size };
    }
    if (range.source + range.count > sourceAxis.size || range.target + range.count > targetAxis.size) {
      throw mismatch(`axes.${targetAxis.name}.size`, sourceAxis.size, targetAxis.size);
    }
    sourceOffset += range.source * sourceAxis.strideBytes;
    targetOffset += range.target * targetAxis.strideBytes;
    if (range.count > 1) {
      loops.push({ count: range.count, sourceStride: sourceAxis.strideBytes, targetStride: targetAxis.strideBytes });
    }
  }
  const { fragmentBytes, rest } = mergeLoops(loops, target.elementBytes);
  if (rest.length > loopsMax) {
    throw new HandoffError(
      'INCOMPATIBLE',
      `the two layouts need ${rest.length} nested loops, more than the ${loopsMax} a rectangle has`,
    );
  }
  if (tableStrides === null) throw mismatch(`axes.${tableAxis}`, 'absent', 'absent');
  return {
    rectangle: {
      sourceRegion: source.region,
      targetRegion: target.region,
      sourceOffset,
      targetOffset,
      fragmentBytes,
      loops: rest,
    },
    tableStrides,
  };
}

/** Grows the fragment over axes that are contiguous on both sides, and joins loops that continue each other. */
function mergeLoops(loops: readonly Loop[], elementBytes: number): { fragmentBytes: number; rest: Loop[] } {
  const ascending = [...loops].sort((a, b) => a.targetStride - b.targetStride || a.sourceStride - b.sourceStride);
  let fragmentBytes = elementBytes;
  const rest: Loop[] = [];
  for (const loop of ascending) {
    if (rest.length === 0 && loop.sourceStride === fragmentBytes && loop.targetStride === fragmentBytes) {
      fragmentBytes *= loop.count;
      continue;
    }
    const inner = rest[0];
    if (
      inner !== undefined &&
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
