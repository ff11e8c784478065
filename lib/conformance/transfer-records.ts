/** Section `transfer_records`: the three shapes of transfer metadata, read. */
import { deepFreeze } from '../json.js';
import { handoffBlockCount, transferPeerRecords } from '../prefill/transfer-records.js';
import type { ExactValue } from './exact-json.js';
import { expectEqual } from './mismatch.js';
import { expectError, fieldsOf, refusedInput, type Section } from './section.js';

export const transferRecordsSection: Section = {
  name: 'transfer_records',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['peer_meta', 'src_block_ids', 'records', 'block_count'], ['name']);
      const meta = deepFreeze(fields['peer_meta']);
      const blocks = deepFreeze(fields['src_block_ids']);
      const records = transferPeerRecords(meta, blocks);
      const got = records.map(({ descriptor, blockIds }) => [descriptor, blockIds]);
      expectEqual('records', fields['records'] as ExactValue, got);
      expectEqual('block_count', fields['block_count'] as ExactValue, handoffBlockCount(meta, blocks));
    },
    errors(value) {
      const fields = fieldsOf(value, '', ['peer_meta', 'error'], ['name', 'src_block_ids']);
      expectError(fields['error'], 'error', refusedInput, () =>
        transferPeerRecords(fields['peer_meta'], fields['src_block_ids'] ?? []),
      );
    },
  },
};
