/** Layouts as the vectors write them, read into ours; what a vector says beside the inputs is compared on the way. */
import { ownedHeads, ownedLayers, makeKvLayout, type KvLayout, type KvLayoutInput } from '../memory/kv-layout.js';
import type { IndexRange } from '../memory/index-range.js';
import { makeSsmLayout, ssmBands, type SsmDims, type SsmLayout } from '../memory/ssm-layout.js';
import type { HandoffErrorCode } from '../errors.js';
import type { ExactObject, ExactValue } from './exact-json.js';
import { expectEqual } from './mismatch.js';
import { at, fieldsOf, integerOf, listOf, refusedInput, type ErrorTypes } from './section.js';

/** Layouts that cannot be, or that do not belong together, are ValueErrors in the reference. */
export const layoutErrors: ErrorTypes = {
  ...refusedInput,
  ValueError: [...(refusedInput['ValueError'] as readonly HandoffErrorCode[]), 'INCOMPATIBLE'],
};

/** Rank and size of a parallelism that changes no ownership; 0 of 1 where the vector leaves it out. */
const replicaKeys = ['ep_size', 'ep_rank', 'etp_size', 'etp_rank'];
const placeKeys = ['tp_size', 'tp_rank', 'pp_size', 'pp_rank', 'global_rank'];
const windowKeys = ['layer_start', 'num_local_layers'];
const heldKeys = ['layer_range', 'head_range'];

/** The numbers of a KV layout, not yet asked whether they can be one. The reference shares no head between ranks. */
export function kvLayoutInput(
  value: ExactValue | undefined,
  path: string,
): { input: KvLayoutInput; fields: ExactObject } {
  const fields = fieldsOf(
    value,
    path,
    ['num_layers', 'num_heads'],
    [...placeKeys, ...windowKeys, ...replicaKeys, ...heldKeys],
  );
  const number = (key: string, otherwise: number): number =>
    Object.hasOwn(fields, key) ? integerOf(fields[key], at(path, key)) : otherwise;
  const window = (key: string): number | null => (fields[key] === null ? null : number(key, -1));
  for (const key of replicaKeys) number(key, 0);
  return {
    fields,
    input: {
      numLayersGlobal: number('num_layers', 0),
      numKvHeadsGlobal: number('num_heads', 0),
      headDim: 1,
      tpSize: number('tp_size', 1),
      tpRank: number('tp_rank', 0),
      ppSize: number('pp_size', 1),
      ppRank: number('pp_rank', 0),
      globalRank: number('global_rank', 0),
      layerStart: Object.hasOwn(fields, 'layer_start') ? window('layer_start') : null,
      numLocalLayers: Object.hasOwn(fields, 'num_local_layers') ? window('num_local_layers') : null,
      sharedHeads: false,
    },
  };
}

/** @throws what `makeKvLayout` throws, {@link Mismatch} where the vector's own ranges differ */
export function kvLayoutOf(value: ExactValue | undefined, path: string, headDim = 1): KvLayout {
  const { input, fields } = kvLayoutInput(value, path);
  const layout = makeKvLayout({ ...input, headDim });
  const held = { layer_range: ownedLayers(layout), head_range: ownedHeads(layout) };
  for (const [key, range] of Object.entries(held)) {
    if (Object.hasOwn(fields, key)) expectEqual(at(path, key), fields[key] as ExactValue, pair(range));
  }
  return layout;
}

/** A list of KV layouts. */
export function kvLayoutsOf(value: ExactValue | undefined, path: string, headDim = 1): KvLayout[] {
  return listOf(value, path).map((each, index) => kvLayoutOf(each, `${path}[${index}]`, headDim));
}

/** `[from, to]` */
export function pair({ from, to }: IndexRange): [number, number] {
  return [from, to];
}

/** Sizes of SSM layers. */
export function ssmDimsOf(value: ExactValue | undefined, path: string): SsmDims {
  const fields = fieldsOf(value, path, ['nheads', 'headdim', 'd_state', 'ngroups', 'd_conv']);
  const dim = (key: string): number => integerOf(fields[key], at(path, key));
  return {
    nheads: dim('nheads'),
    headdim: dim('headdim'),
    dState: dim('d_state'),
    ngroups: dim('ngroups'),
    dConv: dim('d_conv'),
  };
}

/** @throws what `makeSsmLayout` throws, {@link Mismatch} where the vector's own widths differ */
export function ssmLayoutOf(value: ExactValue | undefined, path: string): SsmLayout {
  const keys = ['global_rank', 'tp_size', 'tp_rank', 'layer_start', 'num_layers', 'dims'];
  const fields = fieldsOf(value, path, keys, ['local']);
  const number = (key: string): number => integerOf(fields[key], at(path, key));
  const layout = makeSsmLayout({
    globalRank: number('global_rank'),
    tpSize: number('tp_size'),
    tpRank: number('tp_rank'),
    layerStart: number('layer_start'),
    numLayers: number('num_layers'),
    dims: ssmDimsOf(fields['dims'], at(path, 'dims')),
  });
  if (Object.hasOwn(fields, 'local')) {
    expectEqual(at(path, 'local'), fields['local'] as ExactValue, localWidths(layout));
  }
  return layout;
}

function localWidths(layout: SsmLayout): unknown {
  const bands = ssmBands(layout);
  const [x, b, c] = bands.map(({ localWidth }) => localWidth) as [number, number, number];
  return {
    conv_dim: x + b + c,
    d_inner: x,
    nheads: layout.dims.nheads / layout.tpSize,
    ngroups: layout.dims.ngroups / layout.tpSize,
    bands: Object.fromEntries(
      bands.map(({ name, globalWidth, localWidth, localOffset }) => [name, [globalWidth, localWidth, localOffset]]),
    ),
  };
}
