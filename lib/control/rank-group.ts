/**
 * How the ranks of one instance talk: a gather at setup, reports to rank 0, and one ordered frame a step from rank 0.
 *
 * Never a collective on the compute path, and never a wait on the event loop.
 */
import type { RequestId, SamplingParams } from '../engine-context.js';
import type { HandoffError } from '../errors.js';

/** Why an instance as a whole can fail. */
export const failureCodes: readonly InstanceFailureCode[] = ['DIVERGENCE', 'RANK_LOST', 'RANK_SETUP_FAILED'];

/** The code of an instance's failure: ranks that diverged, a rank that was lost, a set-up that failed. */
export type InstanceFailureCode = 'DIVERGENCE' | 'RANK_LOST' | 'RANK_SETUP_FAILED';

/** One entry of the ordered schedule log (law 4). */
export type LogRecord =
  | {
      readonly kind: 'add';
      readonly attemptId: number;
      readonly requestId: RequestId;
      readonly prompt: Int32Array;
      readonly samplingParams: SamplingParams;
      readonly kvMeta: Readonly<Record<string, unknown>>;
      readonly sourceBlockIds: readonly number[];
      /** Hashes of the prompt's complete blocks, computed once for all ranks. */
      readonly blockHashes: BigInt64Array;
    }
  | { readonly kind: 'abort'; readonly attemptId: number; readonly reason: 'caller' | 'queue-deadline' }
  | {
      readonly kind: 'decision';
      readonly attemptId: number;
      readonly failed: boolean;
      readonly sourceSafe: boolean;
      /** Why rank 0 decided so, for the error's message; never used to branch. */
      readonly reason: string | null;
    }
  | { readonly kind: 'release'; readonly handoffId: number; readonly reason: 'released' | 'expired' | 'attested' }
  | {
      readonly kind: 'push';
      readonly handoffId: number;
      /** The decode instance's rank descriptors, as it registered them. */
      readonly targets: readonly unknown[];
      readonly cachedPrefixBlocks: number;
      readonly targetInstance: string | null;
      readonly targetIncarnation: string | null;
    }
  | { readonly kind: 'push-safe'; readonly pushId: number }
  | { readonly kind: 'attest-dead'; readonly instance: string; readonly incarnation: string }
  /** What the host has for every rank; the log only carries it. */
  | { readonly kind: 'carried'; readonly message: Readonly<Record<string, unknown>> }
  | {
      readonly kind: 'instance-failed';
      readonly code: InstanceFailureCode;
      /** The rank that diverged or is gone; null when it is not known. */
      readonly rank: number | null;
      /** The request at which it showed; null for a rank that is gone. */
      readonly attemptId: number | null;
      readonly reason: string;
    };

/** What one rank says about one attempt. */
export interface RankReport {
  /** 14 bytes: how its part ended (spec 1.2). */
  readonly completion: Uint8Array;
  /** 20 bytes beside them: the digest of where it placed the request. Null from a peer that has none. */
  readonly placement: Uint8Array | null;
}

/** What rank 0 publishes once a step and each worker applies exactly once. */
export interface StepFrame {
  /** 1, 2, 3, … without gaps. */
  readonly step: number;
  readonly records: readonly LogRecord[];
}

/** One rank's view of the ranks of its instance. */
export interface RankGroup {
  readonly rank: number;
  readonly size: number;
  /** Setup only. Resolves with every rank's value, by rank. */
  allGather(value: unknown): Promise<readonly unknown[]>;
  /** Rank r > 0: what became of its part, to rank 0. */
  report(report: RankReport): void;
  /** Rank 0: reports that arrived since the last call. */
  drainReports(): readonly RankReport[];
  /** Rank 0: sends a frame to every worker. */
  publish(frame: StepFrame): void;
  /** Worker: the next frame, or null when it has not arrived. */
  nextFrame(): StepFrame | null;
  /** Why the group is no longer whole, with `details.rank`; null while every rank is there. Once set it stays. */
  readonly failure: HandoffError | null;
  /** Called when a report or a frame arrives, and when a rank is lost. */
  onWake: (() => void) | null;
  /** Idempotent. */
  close(): void;
}
