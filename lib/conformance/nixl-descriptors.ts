/** Section `nixl_descriptors`: the READs of attention state, descriptor by descriptor. */
import { rowMajorBuffer } from '../memory/axes-geometry.js';
import { ownedHeads } from '../memory/kv-layout.js';
import { defaultTicketLimits } from '../limits.js';
import { deepFreeze } from '../json.js';
import { transferPeerRecords } from '../prefill/transfer-records.js';
import { planKv, representativeSources, type KvEndpoint } from '../transfer/plan-kv.js';
import { parseKvDescriptor } from '../transfer/rank-descriptor.js';
import { programOf, readsOf } from './descriptor-values.js';
import type { ExactObject, ExactValue } from './exact-json.js';
import { kvLayoutOf } from './layout-values.js';
import { expectEqual } from './mismatch.js';
import { at, bigintOf, fieldsOf, integerOf, integersOf, type Section } from './section.js';

export const nixlDescriptorsSection: Section = {
  name: 'nixl_descriptors',
  keys: ['columns'],
  groups: {
    cases(value, document) {
      const keys = ['geometry', 'peer_meta', 'local_layout', 'src_block_ids', 'dst_block_ids', 'reads'];
      const fields = fieldsOf(value, '', keys, ['name']);
      const local = localBuffer(fields);
      const sourceBlocks = integersOf(fields['src_block_ids'], 'src_block_ids');
      const targetBlocks = integersOf(fields['dst_block_ids'], 'dst_block_ids');
      const records = transferPeerRecords(deepFreeze(fields['peer_meta']), sourceBlocks);
      const ranks = records.map(({ descriptor, path }) => parseKvDescriptor(descriptor, path, defaultTicketLimits));
      const got = representativeSources(ranks.map(({ endpoint }) => endpoint.layout)).flatMap((index) => {
        const { endpoint, slices } = ranks[index]!;
        const program = programOf(planKv(endpoint, local.endpoint), [...records[index]!.blockIds], targetBlocks);
        const remote = { address: slices!.baseAddress, deviceId: slices!.deviceId };
        return readsOf(document, program, { address: local.address, deviceId: 0 }, remote);
      });
      expectEqual('reads', fields['reads'] as ExactValue, got);
    },
  },
};

function localBuffer(fields: ExactObject): { readonly endpoint: KvEndpoint; readonly address: bigint } {
  const keys = ['tokens_per_block', 'head_dim', 'num_blocks', 'element_size', 'planes', 'local_base_addr'];
  const geometry = fieldsOf(fields['geometry'], 'geometry', keys);
  const size = (key: string): number => integerOf(geometry[key], at('geometry', key));
  const headDim = size('head_dim');
  const layout = kvLayoutOf(fields['local_layout'], 'local_layout', headDim);
  const heads = ownedHeads(layout);
  const buffer = rowMajorBuffer({
    elementBytes: size('element_size'),
    axes: [
      ['plane', size('planes')],
      ['layer', layout.layerEnd - layout.layerStart],
      ['block', size('num_blocks')],
      ['token', size('tokens_per_block')],
      ['head', heads.to - heads.from],
      ['dim', headDim],
    ],
  });
  return {
    endpoint: { layout, buffers: [buffer], layerStarts: [layout.layerStart] },
    address: bigintOf(geometry['local_base_addr'], 'geometry.local_base_addr'),
  };
}
