/** Every section that can be run. A new one: write its file, add its line. */
import { aggregatedRoutingSection } from './aggregated-routing.js';
import { blockHashesSection } from './block-hashes.js';
import { completionReportBytesSection } from './completion-report-bytes.js';
import { completionTrackerSection } from './completion-tracker.js';
import { coordinatorRuntimeSection } from './coordinator-runtime.js';
import { decodeAdmissionSection } from './decode-admission.js';
import { dropPrefixSection } from './drop-prefix.js';
import { headersSection } from './headers-gen-b.js';
import { inferenceShardsSection } from './inference-shards.js';
import { kvBlockAllocatorSection } from './kv-block-allocator.js';
import { kvLayoutErrorsSection } from './kv-layout-errors.js';
import { kvReshardSection } from './kv-reshard.js';
import { messageBytesSection } from './message-bytes.js';
import { ncclOpOrderSection } from './nccl-op-order.js';
import { nixlAgentMetadataSection } from './nixl-agent-metadata.js';
import { nixlDescriptorsSection } from './nixl-descriptors.js';
import { nixlSsmDescriptorsSection } from './nixl-ssm-descriptors.js';
import type { Section } from './section.js';
import { ssmLayoutErrorsSection } from './ssm-layout-errors.js';
import { ssmReshardSection } from './ssm-reshard.js';
import { ssmSlotPoolSection } from './ssm-slot-pool.js';
import { transferRecordsSection } from './transfer-records.js';

export const sections: readonly Section[] = [
  aggregatedRoutingSection,
  blockHashesSection,
  completionReportBytesSection,
  completionTrackerSection,
  coordinatorRuntimeSection,
  decodeAdmissionSection,
  dropPrefixSection,
  headersSection,
  inferenceShardsSection,
  kvBlockAllocatorSection,
  kvLayoutErrorsSection,
  kvReshardSection,
  messageBytesSection,
  ncclOpOrderSection,
  nixlAgentMetadataSection,
  nixlDescriptorsSection,
  nixlSsmDescriptorsSection,
  ssmLayoutErrorsSection,
  ssmReshardSection,
  ssmSlotPoolSection,
  transferRecordsSection,
];
