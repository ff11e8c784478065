/** Section `completion_report_bytes`: the 14 bytes, written and read. */
import { decodeCompletionReport, encodeCompletionReport } from '../control/completion-report.js';
import type { ExactValue } from './exact-json.js';
import { expectEqual, Mismatch } from './mismatch.js';
import { bigintOf, booleanOf, fieldsOf, integerOf, stringOf, type Section } from './section.js';

export const completionReportBytesSection: Section = {
  name: 'completion_report_bytes',
  keys: ['format'],
  groups: {
    cases(value) {
      const keys = ['request_id', 'rank', 'failed', 'source_safe'];
      const fields = fieldsOf(value, '', [...keys, 'hex'], ['name']);
      const report = {
        requestId: Number(bigintOf(fields['request_id'], 'request_id')),
        rank: integerOf(fields['rank'], 'rank'),
        failed: booleanOf(fields['failed'], 'failed'),
        sourceSafe: booleanOf(fields['source_safe'], 'source_safe'),
      };
      const hex = stringOf(fields['hex'], 'hex');
      expectEqual('hex', hex, Buffer.from(encodeCompletionReport(report)).toString('hex'));
      if (!/^([\da-f]{2})*$/.test(hex)) throw new Mismatch('hex', 'pairs of lower-case hex digits', hex);
      const decoded = decodeCompletionReport(Uint8Array.from(Buffer.from(hex, 'hex')));
      const got = [BigInt(decoded.requestId), decoded.rank, decoded.failed, decoded.sourceSafe];
      keys.forEach((key, index) => expectEqual(key, fields[key] as ExactValue, got[index]));
    },
  },
};
