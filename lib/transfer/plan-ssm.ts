/**
 * Which SSM state moves from which source rank to which target rank: conv bands x, B, C and recurrent heads (spec 7.2).
 *
 * A conv slot's channel axis is `[x | B | C]`, each band split over TP on its own; a flat split would mix them. Stages
 * without an SSM layer are nobody's source. Layouts of different models are refused.
 */
import { HandoffError } from '../errors.js';
import type { BufferGeometry } from '../memory/axes-geometry.js';
import { intersection, rangeSize, relativeTo, type IndexRange } from '../memory/index-range.js';
import {
  ownedBand,
  ownedSsmLayers,
  ssmBands,
  type SsmBand,
  type SsmBandName,
  type SsmLayout,
} from '../memory/ssm-layout.js';
import { coverFault, type HeldCells } from './plan-coverage.js';
import { rectangleBetween, type RectangleTemplate } from './rectangle.js';

/** One rank's SSM buffers, as its descriptors tell them. */
export interface SsmEndpoint {
  readonly layout: SsmLayout;
  readonly conv: BufferGeometry;
  readonly recurrent: BufferGeometry;
}

/** What one source rank gives one target rank of one band. Channels or heads as the buffers count them. */
export interface SsmTransfer {
  readonly sourceRank: number;
  readonly targetRank: number;
  readonly band: SsmBandName;
  readonly layers: IndexRange;
  readonly sourceLayers: IndexRange;
  readonly targetLayers: IndexRange;
  readonly sourceUnits: IndexRange;
  readonly targetUnits: IndexRange;
}

/** Ranks that hold the same shard are replicas; each group by index, the smallest global rank first. */
export function ssmReplicaGroups(sources: readonly SsmLayout[]): readonly (readonly number[])[] {
  const groups = new Map<string, number[]>();
  sources.forEach((layout, index) => {
    if (layout.numLayers === 0) return;
    const key = `${layout.tpSize}:${layout.tpRank}:${layout.layerStart}:${layout.numLayers}`;
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [index]);
    else group.push(index);
  });
  const rank = (index: number): number => (sources[index] as SsmLayout).globalRank;
  return [...groups.values()].map((group) => group.sort((a, b) => rank(a) - rank(b) || a - b));
}

/** The smallest global rank of each group of replicas stands for it; in the order of the list. */
export function representativeSsmSources(sources: readonly SsmLayout[]): readonly number[] {
  return ssmReplicaGroups(sources)
    .map((group) => group[0] as number)
    .sort((a, b) => a - b);
}

/**
 * The whole plan between two instances: sources in the order of their list, for each the targets in the order of
 * theirs, bands x, B, C, recurrent (spec 7.2). The reference has one entry a layer; here a range of layers is one.
 *
 * @throws `INCOMPATIBLE` when two of the layouts describe different models, or TP does not divide heads or groups
 */
export function planSsmReshard(sources: readonly SsmLayout[], targets: readonly SsmLayout[]): readonly SsmTransfer[] {
  return representativeSsmSources(sources).flatMap((index) =>
    targets.flatMap((target) => {
      const source = sources[index] as SsmLayout;
      requireSameSsm(source, target);
      return ssmTransfers(source, target);
    }),
  );
}

function ssmTransfers(source: SsmLayout, target: SsmLayout): SsmTransfer[] {
  const layers = intersection(ownedSsmLayers(source), ownedSsmLayers(target));
  if (layers === null) return [];
  const targetBands = ssmBands(target);
  return ssmBands(source).flatMap((sourceBand, index) => {
    const targetBand = targetBands[index] as SsmBand;
    const [held, wanted] = [ownedBand(source, sourceBand), ownedBand(target, targetBand)];
    const shared = intersection(held, wanted);
    if (shared === null) return [];
    return [
      {
        sourceRank: source.globalRank,
        targetRank: target.globalRank,
        band: sourceBand.name,
        layers,
        sourceLayers: relativeTo(layers, source.layerStart),
        targetLayers: relativeTo(layers, target.layerStart),
        sourceUnits: relativeTo(shared, held.from - sourceBand.localOffset),
        targetUnits: relativeTo(shared, wanted.from - targetBand.localOffset),
      },
    ];
  });
}

/** @throws `INCOMPATIBLE` when TP does not divide heads or groups, or the two describe different models */
export function planSsm(source: SsmEndpoint, target: SsmEndpoint): readonly RectangleTemplate[] {
  return (['conv', 'recurrent'] as const).flatMap((state) =>
    planSsmState(state, source.layout, source[state], target.layout, target[state]),
  );
}

/**
 * The part of {@link planSsm} that is about one of the two states.
 *
 * @throws `INCOMPATIBLE`
 */
export function planSsmState(
  state: 'conv' | 'recurrent',
  source: SsmLayout,
  sourceBuffer: BufferGeometry,
  target: SsmLayout,
  targetBuffer: BufferGeometry,
): readonly RectangleTemplate[] {
  requireSameSsm(source, target);
  const isConv = state === 'conv';
  const { headdim, dState, dConv } = target.dims;
  return ssmTransfers(source, target)
    .filter(({ band }) => (band === 'recurrent') === !isConv)
    .map(({ band, layers, sourceLayers, targetLayers, sourceUnits, targetUnits, sourceRank, targetRank }) => {
      const units = { source: sourceUnits.from, target: targetUnits.from, count: rangeSize(sourceUnits) };
      const shape = [units.count, isConv ? dConv : headdim * dState];
      return rectangleBetween(
        sourceBuffer,
        targetBuffer,
        {
          layer: { source: sourceLayers.from, target: targetLayers.from, count: rangeSize(layers) },
          [isConv ? 'channel' : 'head']: units,
        },
        'slot',
        {
          // The reference reads one layer of one band a request.
          apart: 'layer',
          label: { sourceRank, targetRank, state, part: band, layers, sourceUnits, targetUnits, shape },
        },
      );
    });
}

/** Whether `sources` hold all that `target` wants, each cell once but for replicas; what is wrong in words, or null. */
export function ssmCoverFault(sources: readonly SsmLayout[], target: SsmLayout): string | null {
  const cells = (layout: SsmLayout): HeldCells => ({
    rank: layout.globalRank,
    layers: ownedSsmLayers(layout),
    units: ownedBand(layout, ssmBands(layout)[3] as SsmBand),
  });
  return coverFault(
    representativeSsmSources(sources).map((index) => cells(sources[index] as SsmLayout)),
    cells(target),
  );
}

/** @throws `INCOMPATIBLE` naming the field; also when TP does not divide heads or groups */
export function requireSameSsm(source: SsmLayout, target: SsmLayout): void {
  for (const field of ['nheads', 'headdim', 'dState', 'ngroups', 'dConv'] as const) {
    const [theirs, ours] = [source.dims[field], target.dims[field]];
    if (theirs === ours) continue;
    throw new HandoffError('INCOMPATIBLE', `ssm.${field}: the source has ${theirs} and the target ${ours}`, {
      details: { field, source: theirs, target: ours },
    });
  }
  for (const layout of [source, target]) {
    for (const field of ['nheads', 'ngroups'] as const) {
      if (layout.dims[field] % layout.tpSize === 0) continue;
      throw new HandoffError(
        'INCOMPATIBLE',
        `ssm.${field}: expected a multiple of tpSize ${layout.tpSize}, got ${layout.dims[field]}`,
      );
    }
  }
}
