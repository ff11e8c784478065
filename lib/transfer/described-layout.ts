/**
 * Which part of the model a rank holds, by its own word (spec 1.5.1): attention and SSM layouts, each number in range and
 * in agreement with the widths that the same descriptor gives.
 */
import { argumentError } from '../errors.js';
import { fieldError, integerField, own, recordField, type Fields } from '../json-fields.js';
import { int32Max } from '../limits.js';
import type { KvLayout } from '../memory/kv-layout.js';
import type { SsmLayout } from '../memory/ssm-layout.js';
import type { DescribedBlocks } from './rank-descriptor.js';

const ranksMax = 1 << 20;
const layersMax = 1 << 16;

/** Heads that more than one rank holds leave the reference without a layout; ours then travels apart, under its own key. */
export const replicatedLayoutKey = 'replicated_layout';

/** @throws `TICKET_INVALID` */
export function parseKvLayout(descriptor: Fields, path: string, described: DescribedBlocks): KvLayout {
  const apart = own(descriptor, replicatedLayoutKey);
  const isApart = apart !== undefined;
  const fields = isApart ? recordField(descriptor, replicatedLayoutKey, path) : descriptor;
  const at = isApart ? `${path}.${replicatedLayoutKey}` : path;
  const tpSize = integerField(fields, 'tp_size', at, 1, ranksMax);
  const ppSize = integerField(fields, 'pp_size', at, 1, ranksMax);
  const numLayersGlobal = integerField(fields, 'num_layers_global', at, 0, layersMax);
  const layerStart = integerField(fields, 'layer_start', at, 0, numLayersGlobal);
  const heads = integerField(fields, 'num_kv_heads_global', at, 1, int32Max);
  const held = isApart && tpSize % heads === 0 ? 1 : heads / tpSize;
  if (described.headsPerPartition !== held) {
    throw fieldError(
      path,
      'heads_per_partition',
      `${held}, as the layout implies`,
      described.headsPerPartition,
      'TICKET_INVALID',
    );
  }
  return {
    globalRank: integerField(fields, 'global_rank', at, 0, ranksMax),
    tpSize,
    tpRank: integerField(fields, 'tp_rank', at, 0, tpSize - 1),
    ppSize,
    ppRank: integerField(fields, 'pp_rank', at, 0, ppSize - 1),
    numLayersGlobal,
    numKvHeadsGlobal: heads,
    headDim: described.headDim,
    layerStart,
    layerEnd: integerField(fields, 'layer_end', at, layerStart, numLayersGlobal),
  };
}

/** @throws `SSM_METADATA_INVALID` */
export function parseSsmLayout(descriptor: Fields, path: string): SsmLayout {
  const code = 'SSM_METADATA_INVALID';
  const fields = recordField(descriptor, 'ssm_layout', path, code);
  const at = `${path}.ssm_layout`;
  const dims = recordField(fields, 'dims', at, code);
  const dim = (key: string) => integerField(dims, key, `${at}.dims`, 1, 1 << 24, code);
  const tpSize = integerField(fields, 'tp_size', at, 1, ranksMax, code);
  const layout: SsmLayout = {
    globalRank: integerField(fields, 'global_rank', at, 0, ranksMax, code),
    tpSize,
    tpRank: integerField(fields, 'tp_rank', at, 0, tpSize - 1, code),
    layerStart: integerField(fields, 'layer_start', at, 0, layersMax, code),
    numLayers: integerField(fields, 'num_layers', at, 0, layersMax, code),
    dims: {
      nheads: dim('nheads'),
      headdim: dim('headdim'),
      dState: dim('d_state'),
      ngroups: dim('ngroups'),
      dConv: dim('d_conv'),
    },
  };
  for (const key of ['nheads', 'ngroups'] as const) {
    if (layout.dims[key] % tpSize !== 0) {
      throw argumentError(`${at}.dims.${key}`, `a multiple of tp_size ${tpSize}`, layout.dims[key], code);
    }
  }
  return layout;
}
