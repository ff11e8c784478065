/** What `StateHandoff` tells its listeners. Names are past facts; each carries what a control plane needs to act. */
import type { RequestId } from './engine-context.js';
import type { HandoffError } from './errors.js';

/** Which handoff, for good: a restarted process is another incarnation and is never mistaken for it. */
export interface HandoffRef {
  readonly instance: string;
  readonly incarnation: string;
  readonly handoffId: number;
  readonly epoch: number;
}

/** Which import a notice is about. */
export interface ImportNotice {
  readonly requestId: RequestId;
  readonly attemptId: number;
  /** Where the state came from; null for a ticket of a peer without fenced identity. */
  readonly source: HandoffRef | null;
}

/** Events of `StateHandoff`, by name. */
export interface StateHandoffEvents {
  /** Decode, two-sided transports: targets are reserved, the source may start to send. Rank 0 only. */
  kvTransferReady: (notice: ImportNotice & { readonly cachedPrefixBlocks: number }) => void;
  /** Decode: nothing here reads the source any more; release it. Once for every handoff that was taken,
   * whatever its end, and once for each that was refused or rejected. Rank 0 only. */
  kvReadDone: (notice: ImportNotice) => void;
  /** The request failed. With `sourceSafe` false the source may still be read; `kvReadDone` follows when not. Rank 0 only. */
  requestError: (notice: ImportNotice & { readonly error: HandoffError; readonly sourceSafe: boolean }) => void;
  /** An abort took effect, or memory of a failed request became quiet (`sourceSafe` true). Rank 0 only. */
  requestAborted: (notice: ImportNotice & { readonly sourceSafe: boolean }) => void;
  /** Decode: the engine owns the request now. Every rank. */
  handoffAdmitted: (notice: ImportNotice) => void;
  /** Decode: memory that may still be written was put aside. Every rank. */
  quarantined: (notice: ImportNotice & { readonly blocks: number; readonly slot: number | null }) => void;
  /** Decode: quarantined memory is quiet and was given back. Every rank. */
  reclaimed: (notice: ImportNotice & { readonly blocks: number; readonly slot: number | null }) => void;
  /** Prefill: a request's state is pinned. Every rank. */
  pinned: (notice: { readonly requestId: RequestId; readonly handoffId: number; readonly blocks: number }) => void;
  /** Prefill: the ticket may be used now (its `ready` fence has fired). Every rank. */
  ticketReady: (notice: { readonly requestId: RequestId; readonly handoffId: number }) => void;
  /** Prefill: a pin ended and its memory was given back. Every rank. */
  released: (notice: {
    readonly requestId: RequestId;
    readonly handoffId: number;
    readonly reason: 'released' | 'expired' | 'attested';
  }) => void;
  /** Prefill: a pin is older than its limit and cannot be ended safely without a release or an attestation. */
  pinOverdue: (notice: {
    readonly requestId: RequestId;
    readonly handoffId: number;
    readonly ageMs: number;
    readonly owner: string | null;
  }) => void;
  /** A message of the host's own, given to `carry` on rank 0, at its place in the log. Every rank. */
  carried: (message: Readonly<Record<string, unknown>>) => void;
  /** The engine must stop: ranks diverged, or memory is in doubt beyond repair. */
  engineFailed: (error: HandoffError) => void;
  /** A poll may find something: bytes landed, a report or a frame came. */
  wake: () => void;
  /** Something odd that harms nobody: a transport's poll threw, a listener threw. */
  warning: (notice: { readonly message: string; readonly error: unknown }) => void;
}
