/**
 * Which attention state moves from which source rank to which target rank: layers × KV heads (spec 7.1).
 *
 * Pure: both sides compute the same plan from the same layouts. Replicas of a shard are read from the one with the
 * smallest global rank, unless the caller spreads the load. Layouts of different models are refused.
 */
import { HandoffError } from '../errors.js';
import { axisSize, defaultContent, type BufferGeometry } from '../memory/axes-geometry.js';
import { intersection, rangeSize, relativeTo, type IndexRange } from '../memory/index-range.js';
import { ownedHeads, ownedLayers, type KvLayout } from '../memory/kv-layout.js';
import { coverFault, type HeldCells } from './plan-coverage.js';
import { RepeatedPairs, type HeldPart } from './plan-repeats.js';
import { greatestDivisor } from './program-table.js';
import { rectangleBetween, type AxisRange, type RectangleOptions, type RectangleTemplate } from './rectangle.js';

/** One rank's attention buffers, as its descriptor tells them. */
export interface KvEndpoint {
  readonly layout: KvLayout;
  readonly buffers: readonly BufferGeometry[];
  readonly layerStarts: readonly number[];
}

/** What one source rank gives one target rank. Ranges of the whole model, and the same in each rank's own counting. */
export interface KvTransfer {
  readonly sourceRank: number;
  readonly targetRank: number;
  readonly layers: IndexRange;
  readonly heads: IndexRange;
  readonly sourceLayers: IndexRange;
  readonly sourceHeads: IndexRange;
  readonly targetLayers: IndexRange;
  readonly targetHeads: IndexRange;
}

/** Ranks that hold the same shard are replicas; each group by index, the smallest global rank first. */
export function replicaGroups(sources: readonly KvLayout[]): readonly (readonly number[])[] {
  const groups = new Map<string, number[]>();
  sources.forEach((layout, index) => {
    if (layout.layerEnd <= layout.layerStart) return;
    const heads = ownedHeads(layout);
    const key = `${layout.layerStart}:${layout.layerEnd}:${heads.from}:${heads.to}`;
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [index]);
    else group.push(index);
  });
  const rank = (index: number): number => (sources[index] as KvLayout).globalRank;
  return [...groups.values()].map((group) => group.sort((a, b) => rank(a) - rank(b) || a - b));
}

/** The smallest global rank of each group of replicas stands for it; in the order of the list. */
export function representativeSources(sources: readonly KvLayout[]): readonly number[] {
  return replicaGroups(sources)
    .map((group) => group[0] as number)
    .sort((a, b) => a - b);
}

/**
 * The whole plan between two instances: targets in the order of their list, for each the sources in the order of
 * theirs, each pair at most once (spec 7.1).
 *
 * @throws `INCOMPATIBLE` when two of the layouts describe different models
 */
export function planKvReshard(sources: readonly KvLayout[], targets: readonly KvLayout[]): readonly KvTransfer[] {
  const [first] = [...sources, ...targets];
  for (const layout of [...sources, ...targets]) requireSameModel(first as KvLayout, layout);
  const chosen = representativeSources(sources).map((index) => sources[index] as KvLayout);
  return targets.flatMap((target) =>
    chosen.flatMap((source) => {
      const transfer = kvTransfer(source, target);
      return transfer === null ? [] : [transfer];
    }),
  );
}

/** What `source` has for `target`, or null. */
function kvTransfer(source: KvLayout, target: KvLayout): KvTransfer | null {
  const [sourceHeads, targetHeads] = [ownedHeads(source), ownedHeads(target)];
  const layers = intersection(ownedLayers(source), ownedLayers(target));
  const heads = intersection(sourceHeads, targetHeads);
  if (layers === null || heads === null) return null;
  return {
    sourceRank: source.globalRank,
    targetRank: target.globalRank,
    layers,
    heads,
    sourceLayers: relativeTo(layers, source.layerStart),
    sourceHeads: relativeTo(heads, sourceHeads.from),
    targetLayers: relativeTo(layers, target.layerStart),
    targetHeads: relativeTo(heads, targetHeads.from),
  };
}

/**
 * Rectangles from `source` to `target`, one for each pair of buffers that overlap; empty when the ranks share nothing.
 *
 * @throws `INCOMPATIBLE` when the two describe different models
 */
export function planKv(source: KvEndpoint, target: KvEndpoint): readonly RectangleTemplate[] {
  requireSameModel(source.layout, target.layout);
  const transfer = kvTransfer(source.layout, target.layout);
  if (transfer === null) return [];
  const tokens = { source: blockTokens(source.buffers), target: blockTokens(target.buffers) };
  const rectangles: RectangleTemplate[] = [];
  const repeats = new RepeatedPairs();
  const sources = source.buffers.map((_, index) => heldPart(source, index));
  for (const targetIndex of target.buffers.keys()) {
    const to = heldPart(target, targetIndex);
    for (const from of sources) {
      if (areApart(from.layers, to.layers) || areApart(from.planes, to.planes) || from.content !== to.content) continue;
      const like = repeats.find(from, to);
      const rectangle = like ?? rectangleOf(transfer, from, to, tokens);
      if (like === null) repeats.keep(from, to, rectangle);
      rectangles.push(rectangle);
    }
  }
  return rectangles;
}

function areApart(a: IndexRange, b: IndexRange): boolean {
  return a.to <= b.from || b.to <= a.from;
}

/** Which layers and planes one buffer holds. */
function heldPart({ buffers, layout, layerStarts }: KvEndpoint, index: number): HeldPart {
  const buffer = buffers[index] as BufferGeometry;
  const range = (from: number, count: number): IndexRange => ({ from, to: from + count });
  return {
    buffer,
    layout,
    content: buffer.content ?? defaultContent,
    layers: range(layerStarts[index] as number, axisSize(buffer, 'layer')),
    planes: range(buffer.planeStart ?? 0, axisSize(buffer, 'plane')),
  };
}

function rectangleOf(
  transfer: KvTransfer,
  from: HeldPart,
  to: HeldPart,
  tokens: { readonly source: number; readonly target: number },
): RectangleTemplate {
  const layers = intersection(from.layers, to.layers) as IndexRange;
  const planes = intersection(from.planes, to.planes) as IndexRange;
  const across = (shared: IndexRange, source: IndexRange, target: IndexRange): AxisRange => ({
    source: shared.from - source.from,
    target: shared.from - target.from,
    count: rangeSize(shared),
  });
  const { sourceHeads, targetHeads, heads } = transfer;
  const isCut = tokens.source !== tokens.target;
  const held = { source: axisSize(from.buffer, 'token'), target: axisSize(to.buffer, 'token') };
  if (isCut && (held.source !== tokens.source || held.target !== tokens.target)) {
    throw new HandoffError(
      'INCOMPATIBLE',
      `blocks of ${tokens.source} tokens (source) and ${tokens.target} tokens (target) are cut, ` +
        `and ${to.content} has one value a block; use one block size on both sides`,
      { details: { tokens, held } },
    );
  }
  const unit = isCut ? greatestDivisor(tokens.source, tokens.target) : held.target;
  const isWhole =
    sameRange(from.layers, to.layers) &&
    sameRange(ownedHeads(from.layout), ownedHeads(to.layout)) &&
    sameRange(from.planes, to.planes);
  const options: RectangleOptions = {
    // The reference reads equal parts in one request and others plane by plane.
    apart: isWhole ? null : 'plane',
    unit: isCut ? { axis: 'token', count: unit } : null,
    label: {
      sourceRank: transfer.sourceRank,
      targetRank: transfer.targetRank,
      state: 'attention',
      part: to.content,
      layers,
      sourceUnits: sourceHeads,
      targetUnits: targetHeads,
      shape: [rangeSize(planes), rangeSize(layers), unit, rangeSize(heads), axisSize(to.buffer, 'dim')],
    },
  };
  return rectangleBetween(
    from.buffer,
    to.buffer,
    {
      plane: across(planes, from.planes, to.planes),
      layer: across(layers, from.layers, to.layers),
      ...headRange(transfer, from, to),
    },
    'block',
    options,
  );
}

/** Tokens per block, as the buffers that have a token axis say; 1 for none. */
export function blockTokens(buffers: readonly BufferGeometry[]): number {
  return buffers.reduce((most, buffer) => Math.max(most, axisSize(buffer, 'token')), 1);
}

/**
 * The heads that move, or none where a buffer has one value for all heads of its rank: those go whole from a rank to one
 * with the same heads, and cannot be split or joined.
 */
function headRange(
  { heads, sourceHeads, targetHeads }: KvTransfer,
  from: HeldPart,
  to: HeldPart,
): { readonly head?: AxisRange } {
  const isShared = axisSize(from.buffer, 'head') === 1 && axisSize(to.buffer, 'head') === 1;
  const held = Math.max(rangeSize(ownedHeads(from.layout)), rangeSize(ownedHeads(to.layout)));
  if (!isShared || held === 1) {
    return { head: { source: sourceHeads.from, target: targetHeads.from, count: rangeSize(heads) } };
  }
  if (sameRange(ownedHeads(from.layout), ownedHeads(to.layout))) return {};
  throw new HandoffError(
    'INCOMPATIBLE',
    `axes.head: ${to.content} has one value for all heads of a rank, and ranks ${from.layout.globalRank} (source) and ` +
      `${to.layout.globalRank} (target) have different heads; give it a head axis`,
  );
}

/** Whether `sources` hold all that `target` wants, each cell once but for replicas; what is wrong in words, or null. */
export function kvCoverFault(sources: readonly KvLayout[], target: KvLayout): string | null {
  const cells = (layout: KvLayout): HeldCells => ({
    rank: layout.globalRank,
    layers: ownedLayers(layout),
    units: ownedHeads(layout),
  });
  return coverFault(
    representativeSources(sources).map((index) => cells(sources[index] as KvLayout)),
    cells(target),
  );
}

/** @throws `INCOMPATIBLE` naming the field */
export function requireSameModel(source: KvLayout, target: KvLayout): void {
  for (const field of ['numLayersGlobal', 'numKvHeadsGlobal', 'headDim'] as const) {
    if (source[field] === target[field]) continue;
    throw new HandoffError(
      'INCOMPATIBLE',
      `${field}: the source has ${source[field]} and the target ${target[field]}`,
      { details: { field, source: source[field], target: target[field] } },
    );
  }
}

function sameRange(a: IndexRange, b: IndexRange): boolean {
  return a.from === b.from && a.to === b.to;
}
