/**
 * The end of an instance as a whole: its ranks have diverged, or one of them is gone. One record of the log says so, and
 * every rank that is left makes the same error of it.
 */
import type { LogRecord } from '../control/rank-group.js';
import type { RequestId } from '../engine-context.js';
import { HandoffError } from '../errors.js';
import type { PlacementConflict } from './completion-tracker.js';

export type InstanceFailedRecord = Extract<LogRecord, { kind: 'instance-failed' }>;

/** Rank 0: a rank of the group is lost, or the group did not come together. */
export function lossRecord({ code, message, details }: HandoffError): InstanceFailedRecord {
  const { rank } = details;
  return {
    kind: 'instance-failed',
    code: code === 'RANK_SETUP_FAILED' ? code : 'RANK_LOST',
    rank: typeof rank === 'number' ? rank : null,
    attemptId: null,
    reason: message,
  };
}

/** Rank 0: two ranks placed one request differently. */
export function divergenceRecord(
  { requestId: attemptId, rank, otherRank }: PlacementConflict,
  label: RequestId | undefined,
): InstanceFailedRecord {
  const request = label === undefined ? `attempt ${attemptId}` : `request ${String(label)} (attempt ${attemptId})`;
  return {
    kind: 'instance-failed',
    code: 'DIVERGENCE',
    rank,
    attemptId,
    reason: `rank ${rank} placed ${request} elsewhere than rank ${otherRank}; the ranks of this instance have diverged and must be restarted`,
  };
}

/** What the engine hears: it must stop. */
export function failureError(
  { code, rank, attemptId, reason }: InstanceFailedRecord,
  label: RequestId | undefined,
): HandoffError {
  return new HandoffError(code, reason, {
    sourceSafe: false,
    targetSafe: false,
    details: { rank, attemptId, ...(label === undefined ? {} : { requestId: label }) },
  });
}

/** What one request hears of it; `safe`: nothing of it moves any more. */
export function requestFailure({ code, message, details }: HandoffError, safe: boolean): HandoffError {
  return new HandoffError(code, message, { sourceSafe: safe, targetSafe: safe, details });
}
