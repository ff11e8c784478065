/** What `DecodeRole` needs from its owner, and what it tells it. */
import type { LogRecord } from '../control/rank-group.js';
import type { EngineContext, Finished } from '../engine-context.js';
import type { HandoffError } from '../errors.js';
import type { Metrics } from '../observe/metrics.js';
import type { CompiledOptions } from '../options.js';
import type { LocalTransfer } from './local-transfer.js';
import type { ImportSource, PendingImport } from './pending-import.js';
import type { Reservation } from './reservation.js';
import type { Transfers } from './transfers.js';

export type AddRecord = Extract<LogRecord, { kind: 'add' }>;

/** Who an import is, to those outside. */
export type ImportIdentity = Pick<PendingImport, 'attemptId' | 'requestId'> & {
  readonly source: Pick<ImportSource, 'handoff'>;
};

/** What the role tells its owner; the owner decides which rank speaks and to whom. */
export interface DecodeNotices {
  transferReady(pending: PendingImport, cachedPrefixBlocks: number): void;
  readDone(pending: ImportIdentity): void;
  failed(pending: PendingImport, error: HandoffError, sourceSafe: boolean): void;
  aborted(pending: ImportIdentity, sourceSafe: boolean): void;
  admitted(pending: PendingImport): void;
  quarantined(pending: PendingImport): void;
  reclaimed(pending: PendingImport): void;
  /** The instance must be restarted. */
  instanceFailed(error: HandoffError): void;
  /** A call into the host engine threw where nobody could be told by a throw. */
  engineCallFailed(error: unknown): void;
  /** The caller's promise: exactly one of these for every attempt. */
  settled(pending: PendingImport, outcome: Finished | HandoffError): void;
}

export interface DecodeDependencies {
  readonly context: EngineContext;
  readonly options: CompiledOptions;
  readonly metrics: Metrics;
  readonly notices: DecodeNotices;
  readonly transfers: Transfers;
  /** The ticket's contents for this rank, checked. Throws what is refused. */
  readonly parse: (record: AddRecord) => ImportSource;
  /** This rank's transfer for a reservation; failures before anything is posted come back as a failed transfer. */
  readonly startTransfer: (pending: PendingImport, reservation: Reservation) => LocalTransfer;
  /** Where this rank placed a reservation, to be compared with the other ranks'; null when there are none. */
  readonly digest: (reservation: Reservation) => bigint | null;
  /** Whether the source has to start too, and whether an unsafe failure ends the engine. */
  readonly transportTraits: (pending: PendingImport) => {
    readonly twoSided: boolean;
    readonly fatalWhenUnsafe: boolean;
  };
  /** Bytes one block and one slot of the model take over all ranks. */
  readonly blockBytes: number;
  readonly slotBytes: number;
}
