/** Section `nixl_ssm_descriptors`: the READs of conv and recurrent state, one a band and layer. */
import { rowMajorBuffer } from '../memory/axes-geometry.js';
import { ssmBands } from '../memory/ssm-layout.js';
import { defaultTicketLimits } from '../limits.js';
import { deepFreeze } from '../json.js';
import { transferPeerRecords } from '../prefill/transfer-records.js';
import { planSsmState, representativeSsmSources } from '../transfer/plan-ssm.js';
import { parseSsmDescriptor } from '../transfer/rank-descriptor.js';
import { programOf, readsOf } from './descriptor-values.js';
import type { ExactValue } from './exact-json.js';
import { ssmLayoutOf } from './layout-values.js';
import { expectEqual, Mismatch, render } from './mismatch.js';
import { bigintOf, fieldsOf, integerOf, type Section } from './section.js';

export const nixlSsmDescriptorsSection: Section = {
  name: 'nixl_ssm_descriptors',
  keys: ['columns'],
  groups: {
    cases(value, document) {
      const keys = [
        'state',
        'slots',
        'element_size',
        'local_base_addr',
        'local_layout',
        'peer_meta',
        'dst_slot',
        'reads',
      ];
      const fields = fieldsOf(value, '', keys, ['name']);
      const { state } = fields;
      if (state !== 'conv' && state !== 'recurrent')
        throw new Mismatch('state', '"conv" or "recurrent"', render(state));
      const layout = ssmLayoutOf(fields['local_layout'], 'local_layout');
      const { headdim, dState, dConv } = layout.dims;
      const bands = ssmBands(layout).filter(({ name }) => (name === 'recurrent') === (state === 'recurrent'));
      const buffer = rowMajorBuffer({
        elementBytes: integerOf(fields['element_size'], 'element_size'),
        axes: [
          ['layer', layout.numLayers],
          ['slot', integerOf(fields['slots'], 'slots')],
          [state === 'conv' ? 'channel' : 'head', bands.reduce((sum, { localWidth }) => sum + localWidth, 0)],
          ['dim', state === 'conv' ? dConv : headdim * dState],
        ],
      });
      const local = { address: bigintOf(fields['local_base_addr'], 'local_base_addr'), deviceId: 0 };
      const slot = integerOf(fields['dst_slot'], 'dst_slot');
      const records = transferPeerRecords(deepFreeze(fields['peer_meta']), []);
      const ranks = records.map(({ descriptor, path }) =>
        parseSsmDescriptor(descriptor, path, state, [], defaultTicketLimits),
      );
      const got = representativeSsmSources(ranks.map((rank) => rank.layout)).flatMap((index) => {
        const rank = ranks[index]!;
        const templates = planSsmState(state, rank.layout, rank.buffer, layout, buffer);
        const program = programOf(templates, [...records[index]!.blockIds], [slot]);
        const remote = { address: rank.slices!.baseAddress, deviceId: rank.slices!.deviceId };
        return readsOf(document, program, local, remote);
      });
      expectEqual('reads', fields['reads'] as ExactValue, got);
    },
  },
};
