/**
 * Which attention state moves from which source rank to this target rank: layers × KV heads (spec 7.1).
 *
 * Pure: both sides compute the same plan from the same layouts. Replicas of a shard are read from the one with the
 * smallest global rank.
 */
import { HandoffError } from '../errors.js';
import type { BufferGeometry } from '../memory/axes-geometry.js';
import type { KvLayout } from '../memory/kv-layout.js';
import { rectangleBetween, type RectangleTemplate } from './rectangle.js';

/** One rank's attention buffers, as its descriptor tells them. */
export interface KvEndpoint {
  readonly layout: KvLayout;
  readonly buffers: readonly BufferGeometry[];
  readonly layerStarts: readonly number[];
}

interface Range {
  readonly from: number;
  readonly to: number;
}

/** The KV heads a rank owns: an even split over TP, or one shared head where there are fewer heads than ranks. */
export function ownedHeads(layout: KvLayout): Range {
  const { numKvHeadsGlobal: heads, tpSize, tpRank } = layout;
  if (heads % tpSize === 0) {
    const each = heads / tpSize;
    return { from: tpRank * each, to: (tpRank + 1) * each };
  }
  if (tpSize % heads === 0) {
    const head = Math.floor(tpRank / (tpSize / heads));
    return { from: head, to: head + 1 };
  }
  throw new HandoffError(
    'INCOMPATIBLE',
    `numKvHeadsGlobal: expected a multiple or a divisor of tpSize ${tpSize}, got ${heads}`,
  );
}

/** Ranks that hold the same shard are replicas; the smallest global rank stands for them. */
export function representativeSources(sources: readonly KvLayout[]): readonly number[] {
  const best = new Map<string, number>();
  sources.forEach((layout, index) => {
    if (layout.layerEnd <= layout.layerStart) return;
    const heads = ownedHeads(layout);
    const key = `${layout.layerStart}:${layout.layerEnd}:${heads.from}:${heads.to}`;
    const rival = best.get(key);
    if (rival === undefined || layout.globalRank < (sources[rival] as KvLayout).globalRank) best.set(key, index);
  });
  return [...best.values()].sort((a, b) => a - b);
}

/**
 * Rectangles from `source` to `target`, one for each pair of buffers that overlap; empty when the ranks share nothing.
 *
 * @throws `INCOMPATIBLE` when the two describe different models
 */
export function planKv(source: KvEndpoint, target: KvEndpoint): readonly RectangleTemplate[] {
  for (const field of ['numLayersGlobal', 'numKvHeadsGlobal', 'headDim'] as const) {
    if (source.layout[field] !== target.layout[field]) {
      throw new HandoffError(
        'INCOMPATIBLE',
        `${field}: the source has ${source.layout[field]} and the target ${target.layout[field]}`,
      );
    }
  }
  const sourceHeads = ownedHeads(source.layout);
  const targetHeads = ownedHeads(target.layout);
  const heads = intersect(sourceHeads, targetHeads);
  if (heads === null) return [];
  const rectangles: RectangleTemplate[] = [];
  for (const [targetIndex, targetBuffer] of target.buffers.entries()) {
    const targetLayers = bufferLayers(target, targetIndex);
    for (const [sourceIndex, sourceBuffer] of source.buffers.entries()) {
      const layers = intersect(bufferLayers(source, sourceIndex), targetLayers);
      if (layers === null) continue;
      rectangles.push(
        rectangleBetween(
          sourceBuffer,
          targetBuffer,
          {
            layer: {
              source: layers.from - (source.layerStarts[sourceIndex] as number),
              target: layers.from - (target.layerStarts[targetIndex] as number),
              count: layers.to - layers.from,
            },
            head: {
              source: heads.from - sourceHeads.from,
              target: heads.from - targetHeads.from,
              count: heads.to - heads.from,
            },
          },
          'block',
        ),
      );
    }
  }
  return rectangles;
}

/** How many (layer, head) cells of `target` the sources cover; a complete plan covers all of them. */
export function uncoveredKvCells(sources: readonly KvLayout[], target: KvLayout): number {
  const targetHeads = ownedHeads(target);
  let covered = 0;
  for (const index of representativeSources(sources)) {
    const source = sources[index] as KvLayout;
    const heads = intersect(ownedHeads(source), targetHeads);
    const layers = intersect(
      { from: source.layerStart, to: source.layerEnd },
      { from: target.layerStart, to: target.layerEnd },
    );
    if (heads !== null && layers !== null) covered += (heads.to - heads.from) * (layers.to - layers.from);
  }
  return (targetHeads.to - targetHeads.from) * (target.layerEnd - target.layerStart) - covered;
}

function bufferLayers(endpoint: KvEndpoint, index: number): Range {
  const from = endpoint.layerStarts[index] as number;
  const axis = (endpoint.buffers[index] as BufferGeometry).axes.find(({ name }) => name === 'layer');
  return { from, to: from + (axis?.size ?? 1) };
}

function intersect(a: Range, b: Range): Range | null {
  const from = Math.max(a.from, b.from);
  const to = Math.min(a.to, b.to);
  return from < to ? { from, to } : null;
}
