/** Section `kv_reshard`: which layers and KV heads move between which ranks. */
import { planKvReshard } from '../transfer/plan-kv.js';
import type { ExactValue } from './exact-json.js';
import { kvLayoutsOf, pair } from './layout-values.js';
import { expectEqual } from './mismatch.js';
import { expectedPlan, fieldsOf, planKeys, type Section } from './section.js';

export const kvReshardSection: Section = {
  name: 'kv_reshard',
  keys: ['order'],
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['src', 'dst', 'plan'], ['name', ...planKeys]);
      const { path, plan } = expectedPlan(fields);
      const got = planKvReshard(kvLayoutsOf(fields['src'], 'src'), kvLayoutsOf(fields['dst'], 'dst'));
      expectEqual(
        path,
        plan as ExactValue,
        got.map((transfer) => ({
          src_rank: transfer.sourceRank,
          dst_rank: transfer.targetRank,
          layers: pair(transfer.layers),
          heads: pair(transfer.heads),
          src_layers: pair(transfer.sourceLayers),
          src_heads: pair(transfer.sourceHeads),
          dst_layers: pair(transfer.targetLayers),
          dst_heads: pair(transfer.targetHeads),
        })),
      );
    },
  },
};
