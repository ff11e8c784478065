/** Every section that can be run. A new one: write its file, add its line. */
import { aggregatedRoutingSection } from './aggregated-routing.js';
import { blockHashesSection } from './block-hashes.js';
import { completionReportBytesSection } from './completion-report-bytes.js';
import { completionTrackerSection } from './completion-tracker.js';
import { decodeAdmissionSection } from './decode-admission.js';
import { dropPrefixSection } from './drop-prefix.js';
import { kvBlockAllocatorSection } from './kv-block-allocator.js';
import type { Section } from './section.js';
import { ssmSlotPoolSection } from './ssm-slot-pool.js';
import { transferRecordsSection } from './transfer-records.js';

export const sections: readonly Section[] = [
  aggregatedRoutingSection,
  blockHashesSection,
  completionReportBytesSection,
  completionTrackerSection,
  decodeAdmissionSection,
  dropPrefixSection,
  kvBlockAllocatorSection,
  ssmSlotPoolSection,
  transferRecordsSection,
];
