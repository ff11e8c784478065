/**
 * Which part of the model's SSM state a rank owns: a range of layers × the bands x, B, C of the conv state and a range
 * of recurrent heads, each split over TP on its own (spec 5, 7.2). What cannot be split so is refused.
 */
import { requireObject } from '../argument-shape.js';
import { argumentError } from '../errors.js';
import type { IndexRange } from './index-range.js';
import { requireInteger } from './integer-field.js';

/** Sizes of the model's SSM layers. */
export interface SsmDims {
  readonly nheads: number;
  readonly headdim: number;
  readonly dState: number;
  readonly ngroups: number;
  readonly dConv: number;
}

/** The part of the SSM layers and heads that one rank owns. */
export interface SsmLayout {
  readonly globalRank: number;
  readonly tpSize: number;
  readonly tpRank: number;
  readonly layerStart: number;
  readonly numLayers: number;
  readonly dims: SsmDims;
}

/** x, B, C: channels of the conv state; recurrent: heads. */
export type SsmBandName = 'x' | 'B' | 'C' | 'recurrent';

/** One band of an axis that TP splits. */
export interface SsmBand {
  readonly name: SsmBandName;
  /** Channels or heads of the whole model. */
  readonly globalWidth: number;
  /** Those of this rank. */
  readonly localWidth: number;
  /** Where this rank's part starts in its buffer. */
  readonly localOffset: number;
}

/**
 * The same layout when it can be one.
 *
 * @throws `ARGUMENT_INVALID` naming the field: sizes below 1, a rank out of range, heads or groups that TP does not divide
 */
export function makeSsmLayout(layout: SsmLayout): SsmLayout {
  requireSsmLayout('layout', layout);
  const { dims, tpSize } = layout;
  for (const field of ['nheads', 'ngroups'] as const) {
    if (dims[field] % tpSize !== 0) {
      throw argumentError(`layout.dims.${field}`, `a multiple of tpSize ${tpSize}`, dims[field]);
    }
  }
  return layout;
}

/** @throws `ARGUMENT_INVALID` naming the field below `path` that no layout has */
export function requireSsmLayout(path: string, layout: SsmLayout): void {
  requireObject(path, layout);
  const { globalRank, tpSize, tpRank, layerStart, numLayers, dims } = layout;
  requireInteger(`${path}.globalRank`, globalRank, 0);
  requireInteger(`${path}.tpSize`, tpSize, 1);
  requireInteger(`${path}.tpRank`, tpRank, 0, tpSize - 1);
  requireInteger(`${path}.layerStart`, layerStart, 0);
  requireInteger(`${path}.numLayers`, numLayers, 0);
  requireObject(`${path}.dims`, dims);
  for (const field of ['nheads', 'headdim', 'dState', 'ngroups', 'dConv'] as const) {
    requireInteger(`${path}.dims.${field}`, dims[field], 1);
  }
}

/** In the order of the plan: x, B, C, recurrent. A conv slot's channel axis is `[x | B | C]`. */
export function ssmBands({ dims, tpSize }: SsmLayout): readonly SsmBand[] {
  const inner = dims.nheads * dims.headdim;
  const groups = dims.ngroups * dims.dState;
  const band = (name: SsmBandName, globalWidth: number, localOffset: number): SsmBand => ({
    ...{ name, globalWidth, localWidth: globalWidth / tpSize, localOffset },
  });
  return [
    band('x', inner, 0),
    band('B', groups, inner / tpSize),
    band('C', groups, inner / tpSize + groups / tpSize),
    band('recurrent', dims.nheads, 0),
  ];
}

/** Channels (or heads) of `band` that a rank owns, in the numbering of the whole model. */
export function ownedBand({ tpRank }: SsmLayout, { localWidth }: SsmBand): IndexRange {
  return { from: tpRank * localWidth, to: (tpRank + 1) * localWidth };
}

/** The SSM layers a rank owns; empty for a stage without any. */
export function ownedSsmLayers({ layerStart, numLayers }: SsmLayout): IndexRange {
  return { from: layerStart, to: layerStart + numLayers };
}
