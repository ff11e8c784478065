/**
 * One import on the decode side: its states, its events and what each event causes.
 *
 * The table is the code. It is a pure function of the ordered log, so every rank of an instance goes through the same
 * states at the same log index; what a rank's own transfer does shows only in `LocalTransfer` and in the reports it makes.
 */
import { invariant } from '../invariant.js';

/**
 * - `queued`: waits for capacity, a slot or another import's hashes; owns nothing.
 * - `reserved`: owns blocks, continuation blocks, slot and hashes; bytes are on their way on every rank.
 * - `cancelling`: as `reserved`, but the caller gave up; waits for all ranks to agree.
 * - `agreed`: every rank has its bytes; waits for room in the batch.
 * - `admitted`: the engine owns the memory. `aborting`: the engine was told to stop it.
 * - `quarantined`: over for the caller, but the memory may still be written somewhere.
 * - `reclaimed`, `completed`: final; nothing is owned.
 */
export type ImportState =
  'queued' | 'reserved' | 'cancelling' | 'agreed' | 'admitted' | 'aborting' | 'quarantined' | 'reclaimed' | 'completed';

export type ImportEvent =
  /** Everything could be reserved. */
  | 'start'
  /** The caller gave up. */
  | 'abort'
  /** The queue deadline passed, or the weights that computed it are gone. */
  | 'expire'
  /** All ranks have their bytes. */
  | 'succeed'
  /** Some rank failed, and no rank's memory can still be written. */
  | 'failSafe'
  /** Some rank failed, and memory may still be written. */
  | 'failUnsafe'
  /** All ranks' memory is quiet now. */
  | 'nowSafe'
  /** The batch has room. */
  | 'admit'
  /** The first token ends the request; it needs no forward pass. */
  | 'completeWithoutForward'
  /** The engine finished it. */
  | 'finish'
  /** The engine failed it. */
  | 'engineFail';

/** What a transition causes, carried out in this order by `DecodeRole`. */
export type ImportEffect =
  | 'beginTransfer'
  | 'cancelTransfer'
  | 'leaveQueue'
  | 'registerHashes'
  | 'dropHashes'
  | 'queueAdmission'
  | 'leaveAdmission'
  | 'engineAdmit'
  | 'engineAbort'
  | 'releaseMemory'
  | 'holdMemory'
  | 'settleFinished'
  | 'settleAborted'
  | 'settleError'
  | 'noticeErrorSafe'
  | 'noticeErrorUnsafe'
  | 'noticeAbortedSafe'
  | 'noticeAbortedUnsafe'
  | 'noticeReadDone';

export interface ImportTransition {
  readonly next: ImportState;
  readonly effects: readonly ImportEffect[];
}

const to = (next: ImportState, ...effects: ImportEffect[]): ImportTransition => ({ next, effects });

/** What is absent cannot happen: `DecodeRole` never raises that event in that state, and `importTransition` throws. */
export const importTable: Readonly<Record<ImportState, Readonly<Partial<Record<ImportEvent, ImportTransition>>>>> = {
  queued: {
    start: to('reserved', 'leaveQueue', 'beginTransfer'),
    abort: to('reclaimed', 'leaveQueue', 'settleAborted', 'noticeAbortedSafe', 'noticeReadDone'),
    expire: to('reclaimed', 'leaveQueue', 'settleError', 'noticeErrorSafe', 'noticeReadDone'),
  },
  reserved: {
    abort: to('cancelling', 'cancelTransfer'),
    succeed: to('agreed', 'registerHashes', 'queueAdmission', 'noticeReadDone'),
    failSafe: to('reclaimed', 'dropHashes', 'releaseMemory', 'settleError', 'noticeErrorSafe', 'noticeReadDone'),
    failUnsafe: to('quarantined', 'dropHashes', 'cancelTransfer', 'holdMemory', 'settleError', 'noticeErrorUnsafe'),
  },
  cancelling: {
    abort: to('cancelling'),
    succeed: to('reclaimed', 'dropHashes', 'releaseMemory', 'settleAborted', 'noticeAbortedSafe', 'noticeReadDone'),
    failSafe: to('reclaimed', 'dropHashes', 'releaseMemory', 'settleAborted', 'noticeAbortedSafe', 'noticeReadDone'),
    failUnsafe: to('quarantined', 'dropHashes', 'cancelTransfer', 'holdMemory', 'settleAborted', 'noticeAbortedUnsafe'),
  },
  agreed: {
    abort: to('reclaimed', 'leaveAdmission', 'releaseMemory', 'settleAborted', 'noticeAbortedSafe'),
    expire: to('reclaimed', 'leaveAdmission', 'releaseMemory', 'settleError', 'noticeErrorSafe'),
    admit: to('admitted', 'leaveAdmission', 'engineAdmit'),
    completeWithoutForward: to('completed', 'leaveAdmission', 'releaseMemory', 'settleFinished'),
  },
  admitted: {
    abort: to('aborting', 'engineAbort', 'noticeAbortedSafe'),
    finish: to('completed', 'settleFinished'),
    engineFail: to('completed', 'settleError', 'noticeErrorSafe'),
  },
  aborting: {
    abort: to('aborting'),
    finish: to('completed', 'settleAborted'),
    engineFail: to('completed', 'settleAborted'),
  },
  quarantined: {
    abort: to('quarantined'),
    nowSafe: to('reclaimed', 'releaseMemory', 'noticeAbortedSafe', 'noticeReadDone'),
  },
  reclaimed: {},
  completed: {},
};

/** The transition for `event` in `state`. @throws `INVARIANT` when the table has none */
export function importTransition(state: ImportState, event: ImportEvent): ImportTransition {
  const transition = importTable[state][event];
  invariant(transition !== undefined, `an import in state ${state} cannot ${event}`, { state, event });
  return transition;
}

/** Whether an import in this state owns reserved memory that counts against capacity and must be accounted for. */
export function ownsMemory(state: ImportState): boolean {
  return state === 'reserved' || state === 'cancelling' || state === 'agreed' || state === 'quarantined';
}
