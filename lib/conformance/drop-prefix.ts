/** Section `drop_prefix`: metadata without the blocks that the target has already. */
import { deepFreeze } from '../json.js';
import { dropPrefix, type BlockIdList } from '../prefill/transfer-records.js';
import type { ExactObject, ExactValue } from './exact-json.js';
import { expectEqual } from './mismatch.js';
import { expectError, fieldsOf, integerOf, refusedInput, type Section } from './section.js';

export const dropPrefixSection: Section = {
  name: 'drop_prefix',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['peer_meta', 'src_block_ids', 'prefix', 'result'], ['name']);
      const { kvMeta, sourceBlockIds } = drop(fields);
      expectEqual('result', fields['result'] as ExactValue, [kvMeta, sourceBlockIds]);
    },
    errors(value) {
      const fields = fieldsOf(value, '', ['prefix', 'error'], ['name', 'peer_meta', 'src_block_ids']);
      expectError(fields['error'], 'error', refusedInput, () => drop(fields));
    },
  },
};

/** On frozen input, so that a change to it would throw. */
function drop(fields: ExactObject): { readonly kvMeta: unknown; readonly sourceBlockIds: readonly number[] } {
  const blocks = (fields['src_block_ids'] ?? []) as BlockIdList;
  return dropPrefix<unknown>(
    deepFreeze(fields['peer_meta'] ?? {}),
    deepFreeze(blocks),
    integerOf(fields['prefix'], 'prefix'),
  );
}
