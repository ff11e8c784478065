/**
 * Which part of the model's attention state a rank owns: a range of layers × a range of KV heads (spec 1.5.1, 7.1).
 *
 * Heads split evenly over TP; where there are fewer heads than ranks, neighbours share one (GQA, MQA, MLA). Layers split
 * evenly over PP or by an explicit window. EP and expert-TP change nothing here. What cannot be split so is refused.
 */
import { requireObject } from '../argument-shape.js';
import { argumentError, HandoffError } from '../errors.js';
import type { IndexRange } from './index-range.js';
import { requireInteger } from './integer-field.js';

/** Which part of the model's attention state a rank owns (spec 1.5.1, 7.1). */
export interface KvLayout {
  readonly numLayersGlobal: number;
  readonly numKvHeadsGlobal: number;
  readonly headDim: number;
  readonly tpSize: number;
  readonly tpRank: number;
  readonly ppSize: number;
  readonly ppRank: number;
  readonly globalRank: number;
  /** First attention layer of this rank and one past its last, in global numbering. */
  readonly layerStart: number;
  readonly layerEnd: number;
}

/** What {@link makeKvLayout} makes a layout of. */
export interface KvLayoutInput {
  readonly numLayersGlobal: number;
  readonly numKvHeadsGlobal: number;
  readonly headDim: number;
  /** Default 1. */
  readonly tpSize?: number;
  /** Default 0, as are the other ranks. */
  readonly tpRank?: number;
  readonly ppSize?: number;
  readonly ppRank?: number;
  readonly globalRank?: number;
  /** An explicit window of layers; both or neither. Default: an even split over PP. */
  readonly layerStart?: number | null;
  readonly numLocalLayers?: number | null;
  /** Whether ranks may share a head where there are fewer heads than ranks. Default true; the reference refuses it. */
  readonly sharedHeads?: boolean;
}

/**
 * A layout from the sizes of its parallelism, as the reference makes it.
 *
 * @throws `ARGUMENT_INVALID` naming the field: sizes that do not divide, ranks out of range, half a window
 */
export function makeKvLayout(input: KvLayoutInput): KvLayout {
  requireObject('input', input);
  const { numLayersGlobal, numKvHeadsGlobal, headDim, tpSize = 1, tpRank = 0, ppSize = 1, ppRank = 0 } = input;
  const { globalRank = 0, sharedHeads = true } = input;
  requireInteger('numLayersGlobal', numLayersGlobal, 0);
  requireInteger('numKvHeadsGlobal', numKvHeadsGlobal, 1);
  requireInteger('headDim', headDim, 1);
  requireInteger('tpSize', tpSize, 1);
  requireInteger('tpRank', tpRank, 0, tpSize - 1);
  requireInteger('ppSize', ppSize, 1);
  requireInteger('ppRank', ppRank, 0, ppSize - 1);
  requireInteger('globalRank', globalRank, 0);
  if (numKvHeadsGlobal % tpSize !== 0 && !(sharedHeads && tpSize % numKvHeadsGlobal === 0)) {
    const expected = sharedHeads ? 'a multiple or a divisor' : 'a multiple';
    throw argumentError('numKvHeadsGlobal', `${expected} of tpSize ${tpSize}`, numKvHeadsGlobal);
  }
  const { from, to } = layerWindow(input, ppSize, ppRank);
  return {
    ...{ numLayersGlobal, numKvHeadsGlobal, headDim, tpSize, tpRank, ppSize, ppRank, globalRank },
    ...{ layerStart: from, layerEnd: to },
  };
}

function layerWindow({ numLayersGlobal, ...input }: KvLayoutInput, ppSize: number, ppRank: number): IndexRange {
  const start = input.layerStart ?? null;
  const count = input.numLocalLayers ?? null;
  if ((start === null) !== (count === null)) {
    const [missing, given] = start === null ? ['layerStart', 'numLocalLayers'] : ['numLocalLayers', 'layerStart'];
    throw argumentError(missing, `a number, since ${given} is given`, input[missing as 'layerStart']);
  }
  if (start === null || count === null) {
    if (numLayersGlobal % ppSize !== 0) {
      throw argumentError('numLayersGlobal', `a multiple of ppSize ${ppSize}, or a window`, numLayersGlobal);
    }
    const each = numLayersGlobal / ppSize;
    return { from: ppRank * each, to: (ppRank + 1) * each };
  }
  requireInteger('layerStart', start, 0, numLayersGlobal);
  requireInteger('numLocalLayers', count, 0, numLayersGlobal - start);
  return { from: start, to: start + count };
}

/** @throws `ARGUMENT_INVALID` naming the field below `path` that no layout has */
export function requireKvLayout(path: string, layout: KvLayout): void {
  requireObject(path, layout, 'a layout of makeKvLayout');
  const { numLayersGlobal, tpSize, ppSize, layerStart } = layout;
  requireInteger(`${path}.numLayersGlobal`, numLayersGlobal, 0);
  requireInteger(`${path}.numKvHeadsGlobal`, layout.numKvHeadsGlobal, 1);
  requireInteger(`${path}.headDim`, layout.headDim, 1);
  requireInteger(`${path}.tpSize`, tpSize, 1);
  requireInteger(`${path}.tpRank`, layout.tpRank, 0, tpSize - 1);
  requireInteger(`${path}.ppSize`, ppSize, 1);
  requireInteger(`${path}.ppRank`, layout.ppRank, 0, ppSize - 1);
  requireInteger(`${path}.globalRank`, layout.globalRank, 0);
  requireInteger(`${path}.layerStart`, layerStart, 0, numLayersGlobal);
  requireInteger(`${path}.layerEnd`, layout.layerEnd, layerStart, numLayersGlobal);
}

/** The attention layers a rank owns; empty for a stage without any. */
export function ownedLayers({ layerStart, layerEnd }: KvLayout): IndexRange {
  return { from: layerStart, to: layerEnd };
}

/**
 * The KV heads a rank owns: an even split over TP, or one shared head where there are fewer heads than ranks.
 *
 * @throws `INCOMPATIBLE` when neither divides the other
 */
export function ownedHeads({ numKvHeadsGlobal: heads, tpSize, tpRank }: KvLayout): IndexRange {
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
