/**
 * Which SSM state moves from which source rank to this target rank: conv bands x, B, C and recurrent heads (spec 7.2).
 *
 * A conv slot's channel axis is `[x | B | C]`, each band split over TP on its own; a flat split would mix them.
 */
import { HandoffError } from '../errors.js';
import type { BufferGeometry } from '../memory/axes-geometry.js';
import type { SsmLayout } from '../memory/ssm-layout.js';
import { rectangleBetween, type RectangleTemplate } from './rectangle.js';

/** One rank's SSM buffers, as its descriptors tell them. */
export interface SsmEndpoint {
  readonly layout: SsmLayout;
  readonly conv: BufferGeometry;
  readonly recurrent: BufferGeometry;
}

/** One band of an axis that TP splits: its global width, and where this rank's part starts in its buffer. */
interface Band {
  readonly globalWidth: number;
  readonly localOffset: number;
}

/** Channels of the conv state in order x, B, C. */
export function convBands(layout: SsmLayout): readonly Band[] {
  const { nheads, headdim, ngroups, dState } = layout.dims;
  const inner = nheads * headdim;
  const groups = ngroups * dState;
  return [
    { globalWidth: inner, localOffset: 0 },
    { globalWidth: groups, localOffset: inner / layout.tpSize },
    { globalWidth: groups, localOffset: inner / layout.tpSize + groups / layout.tpSize },
  ];
}

/** @throws `INCOMPATIBLE` when TP does not divide heads or groups, or the two describe different models */
export function planSsm(source: SsmEndpoint, target: SsmEndpoint): readonly RectangleTemplate[] {
  for (const field of ['nheads', 'headdim', 'dState', 'ngroups', 'dConv'] as const) {
    const [ours, theirs] = [source.layout.dims[field], target.layout.dims[field]];
    if (ours !== theirs)
      throw new HandoffError('INCOMPATIBLE', `ssm.${field}: the source has ${ours} and the target ${theirs}`);
  }
  for (const { layout } of [source, target]) {
    for (const field of ['nheads', 'ngroups'] as const) {
      if (layout.dims[field] % layout.tpSize !== 0) {
        throw new HandoffError(
          'INCOMPATIBLE',
          `ssm.${field}: expected a multiple of tpSize ${layout.tpSize}, got ${layout.dims[field]}`,
        );
      }
    }
  }
  const from = Math.max(source.layout.layerStart, target.layout.layerStart);
  const to = Math.min(
    source.layout.layerStart + source.layout.numLayers,
    target.layout.layerStart + target.layout.numLayers,
  );
  if (from >= to) return [];
  const layer = { source: from - source.layout.layerStart, target: from - target.layout.layerStart, count: to - from };
  const rectangles: RectangleTemplate[] = [];
  const sourceBands = convBands(source.layout);
  for (const [index, targetBand] of convBands(target.layout).entries()) {
    const channel = bandRange(source.layout, target.layout, sourceBands[index] as Band, targetBand);
    if (channel !== null) rectangles.push(rectangleBetween(source.conv, target.conv, { layer, channel }, 'slot'));
  }
  const heads: Band = { globalWidth: target.layout.dims.nheads, localOffset: 0 };
  const head = bandRange(source.layout, target.layout, heads, heads);
  if (head !== null) rectangles.push(rectangleBetween(source.recurrent, target.recurrent, { layer, head }, 'slot'));
  return rectangles;
}

/** SSM layouts that stand for their replicas; stages without an SSM layer are nobody's source. */
export function representativeSsmSources(sources: readonly SsmLayout[]): readonly number[] {
  const best = new Map<string, number>();
  sources.forEach((layout, index) => {
    if (layout.numLayers === 0) return;
    const key = `${layout.tpSize}:${layout.tpRank}:${layout.layerStart}:${layout.numLayers}`;
    const rival = best.get(key);
    if (rival === undefined || layout.globalRank < (sources[rival] as SsmLayout).globalRank) best.set(key, index);
  });
  return [...best.values()].sort((a, b) => a - b);
}

/** How many (layer, head) cells of `target` the sources leave out. */
export function uncoveredSsmCells(sources: readonly SsmLayout[], target: SsmLayout): number {
  const heads: Band = { globalWidth: target.dims.nheads, localOffset: 0 };
  let covered = 0;
  for (const index of representativeSsmSources(sources)) {
    const source = sources[index] as SsmLayout;
    const range = bandRange(source, target, heads, heads);
    const from = Math.max(source.layerStart, target.layerStart);
    const to = Math.min(source.layerStart + source.numLayers, target.layerStart + target.numLayers);
    if (range !== null && from < to) covered += range.count * (to - from);
  }
  return (target.dims.nheads / target.tpSize) * target.numLayers - covered;
}

function bandRange(
  source: SsmLayout,
  target: SsmLayout,
  sourceBand: Band,
  targetBand: Band,
): { source: number; target: number; count: number } | null {
  const sourceWidth = sourceBand.globalWidth / source.tpSize;
  const targetWidth = targetBand.globalWidth / target.tpSize;
  const from = Math.max(source.tpRank * sourceWidth, target.tpRank * targetWidth);
  const to = Math.min((source.tpRank + 1) * sourceWidth, (target.tpRank + 1) * targetWidth);
  if (from >= to) return null;
  return {
    source: sourceBand.localOffset + from - source.tpRank * sourceWidth,
    target: targetBand.localOffset + from - target.tpRank * targetWidth,
    count: to - from,
  };
}
