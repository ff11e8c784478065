/** Ranks of small instances as a peer describes them, any of their numbers changed: what pairing is tested with. */
import type { HandoffError } from '../../lib/errors.js';
import { rowMajorBuffer, type AxisName, type RowMajorInput } from '../../lib/memory/axes-geometry.js';
import { makeKvLayout, ownedHeads, type KvLayoutInput } from '../../lib/memory/kv-layout.js';
import { planPull, type OwnState, type PeerRank } from '../../lib/transfer/peer-pairing.js';

const model = { numLayersGlobal: 4, numKvHeadsGlobal: 2, headDim: 8 };

export interface Change extends Partial<KvLayoutInput> {
  readonly tokens?: number;
  readonly elementBytes?: number;
  /** Further buffers, or instead of the one for all. */
  readonly buffers?: readonly (Partial<RowMajorInput> & { readonly layerStart?: number })[];
}

export function rank(
  globalRank: number,
  { tokens = 4, elementBytes = 2, buffers = [{}], ...changes }: Change = {},
): PeerRank {
  const layout = makeKvLayout({ ...model, globalRank, ...changes });
  const heads = ownedHeads(layout);
  const axes: readonly (readonly [AxisName, number])[] = [
    ['plane', 2],
    ['layer', layout.layerEnd - layout.layerStart],
    ['block', 9],
    ['token', tokens],
    ['head', heads.to - heads.from],
    ['dim', layout.headDim],
  ];
  const made = layout.layerEnd === layout.layerStart ? [] : buffers;
  return {
    key: `peer/${globalRank}`,
    kv: {
      layout,
      buffers: made.map(({ layerStart: _, ...input }, region) =>
        rowMajorBuffer({ region, elementBytes, axes, ...input }),
      ),
      layerStarts: made.map(({ layerStart = layout.layerStart }) => layerStart),
    },
    ssm: null,
    transports: { fake: globalRank },
  };
}

export const tensorRanks = (tpSize: number, changes: Change = {}): PeerRank[] =>
  Array.from({ length: tpSize }, (_, tpRank) => rank(tpRank, { tpSize, tpRank, ...changes }));

/** What `own` is refused with as the target of `ranks`. */
export function refusal(own: OwnState, ranks: readonly PeerRank[]): HandoffError {
  try {
    planPull(own, ranks, 'first');
  } catch (error) {
    return error as HandoffError;
  }
  throw new Error('expected a refusal');
}
