/** One import's record: what it asked for, what it holds, where it stands. Plain data; `DecodeRole` moves it. */
import type { Fence, PrefilledRequest, RequestId, SamplingParams } from '../engine-context.js';
import type { HandoffError } from '../errors.js';
import type { ParsedKvMeta } from './handoff-parser.js';
import type { ImportState } from './kv-import.js';
import type { LocalTransfer } from './local-transfer.js';
import type { Reservation, ReservationRequest } from './reservation.js';

/** What the decode side needs of a ticket, already checked against this engine. */
export type ImportSource = Pick<ParsedKvMeta, 'handoff' | 'resumeTokens' | 'resumeLogProbs'> & {
  /** The whole ticket; null on a rank that refuses what rank 0 accepted. */
  readonly parsed: ParsedKvMeta | null;
  /** For a ticket of this very process whose state is not in place yet; null otherwise. */
  readonly ready: Fence | null;
};

export interface PendingImport extends ReservationRequest {
  readonly requestId: RequestId;
  readonly prompt: Int32Array;
  readonly samplingParams: SamplingParams;
  readonly source: ImportSource;
  readonly addedAt: number;
  state: ImportState;
  reservation: Reservation | null;
  local: LocalTransfer | null;
  /** Where this rank placed it, once it is reserved; null when nobody compares. */
  digest: bigint | null;
  startedAt: number;
  /** What it counts for against `maxInFlightBytes`: bytes over all ranks, so the same number on every rank. */
  inFlightBytes: number;
  /** Why it failed, on this rank or by rank 0's decision. */
  error: HandoffError | null;
  /** An abort or expiry was decided but its record has not come round yet. */
  endDecided: boolean;
}

/** What the engine is asked about and given. */
export function prefilledRequest(pending: PendingImport, reservation: Reservation): PrefilledRequest {
  return {
    attemptId: pending.attemptId,
    requestId: pending.requestId,
    prompt: pending.prompt,
    samplingParams: pending.samplingParams,
    resumeTokens: pending.source.resumeTokens,
    resumeLogProbs: pending.source.resumeLogProbs,
    blocks: reservation.blocks,
    continuationBlocks: reservation.continuation,
    slot: reservation.slot,
    cachedPrefixBlocks: reservation.cachedPrefixBlocks,
    blockHashes: pending.hashes,
    landed: pending.local?.landed ?? null,
  };
}

/** How many tokens may be generated, or null when only the sequence limit bounds them (spec 1.5.5). */
export function tokenLimit(promptTokens: number, samplingParams: SamplingParams): number | null {
  const { num_tokens_to_generate: generate, num_tokens_total: total } = samplingParams;
  if (generate !== undefined && generate !== null) return Math.max(0, generate);
  if (total !== undefined && total !== null) return Math.max(0, total - promptTokens);
  return null;
}
