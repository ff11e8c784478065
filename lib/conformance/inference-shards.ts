/**
 * Section `inference_shards`: what the reference makes of `--inference-shards`.
 *
 * `declares_disagg` is the reference's own look at the text, which overlooks a role that is spaced (`role = prefill`);
 * where it does, the reference is wrong (spec 17) and the answer here is the roles that were parsed.
 */
import { parseInferenceShards, shardObject } from '../topology/inference-shards.js';
import { expectEqual } from './mismatch.js';
import {
  booleanOf,
  expectError,
  fieldsOf,
  integerOf,
  listOf,
  stringOf,
  type ErrorTypes,
  type Section,
} from './section.js';

const refused: ErrorTypes = Object.fromEntries(
  ['AssertionError', 'ValueError', 'ZeroDivisionError'].map((type) => [type, ['ARGUMENT_INVALID'] as const]),
);

export const inferenceShardsSection: Section = {
  name: 'inference_shards',
  groups: {
    accepted(value) {
      const fields = fieldsOf(value, '', ['spec', 'world_size', 'shards', 'declares_disagg']);
      const spec = stringOf(fields['spec'], 'spec');
      const parsed = parseInferenceShards(spec, integerOf(fields['world_size'], 'world_size'));
      expectEqual(
        'shards',
        listOf(fields['shards'], 'shards'),
        parsed.shards.map((shard) => ({ ...shardObject(shard), cp: 1, world_size: shard.worldSize })),
      );
      const declared = booleanOf(fields['declares_disagg'], 'declares_disagg');
      expectEqual('declares_disagg', declared, parsed.isDisaggregated && hasTightRole(spec));
    },
    rejected(value) {
      const fields = fieldsOf(value, '', ['spec', 'world_size', 'error']);
      const spec = stringOf(fields['spec'], 'spec');
      const worldSize = integerOf(fields['world_size'], 'world_size');
      expectError(fields['error'], 'error', refused, () => parseInferenceShards(spec, worldSize));
    },
  },
};

/** What the reference looks for. */
function hasTightRole(spec: string): boolean {
  return spec.split(/[+;,]/).some((pair) => pair.trim().startsWith('role='));
}
