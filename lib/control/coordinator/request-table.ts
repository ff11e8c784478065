/**
 * One request in the coordinator: its states, its events and what each event causes. The table is the code (spec 1.6).
 *
 * Two promises hold in every row: a client gets one terminal reply, and a source's pin ends only with proof that nobody
 * reads it: it was never offered to a reader, its reader said so, or its reader is attested dead.
 */

/**
 * - `waitingPrefill`: in the queue of a prefill engine. `prefill`: a prefill engine computes it.
 * - `waitingDecode`: its state is pinned; in the queue of a decode engine.
 * - `importing`: a decode engine reads the pinned source. `generating`: it no longer does; the pin is released.
 * - `running`: on an engine without a role. `reading`: a client brought the handoff, so the source is not ours.
 * - `cancelling…`: the client gave up; the engine was told and has not answered.
 * - `doubtful`: the client was told that it failed, but the source may still be read. `doubtfulReading`: the same where
 *   the source is not ours.
 * - `abandoned`: the client has its answer, the source's engine is away, and its reader has not said that it is done.
 * - `straying`: the engine without a role is gone; its reply may still come.
 * - `gone`: final.
 */
export type RequestState =
  | 'waitingPrefill'
  | 'prefill'
  | 'waitingDecode'
  | 'importing'
  | 'generating'
  | 'running'
  | 'reading'
  | 'cancellingPrefill'
  | 'cancellingImport'
  | 'cancellingGeneration'
  | 'cancellingRun'
  | 'cancellingReading'
  | 'doubtful'
  | 'doubtfulReading'
  | 'abandoned'
  | 'straying'
  | 'gone';

export type RequestEvent =
  /** The engine in whose queue it stands has room for it. */
  | 'dispatch'
  /** Prefill is done, and its handoff is one. */
  | 'handoff'
  /** The decode engine has posted its receives (two-sided transports). */
  | 'ready'
  /** The decode engine reads the source no more. */
  | 'readDone'
  /** The engine that generates has finished it. */
  | 'reply'
  /** It cannot go on, and nobody reads its source. */
  | 'failSafe'
  /** It cannot go on, and its source may still be read. */
  | 'failUnsafe'
  /** The source's engine failed it while another reads; what that one does is not known. */
  | 'sourceFailed'
  /** The client gave up, or is gone. */
  | 'abort'
  /** The engine that was told to stop has, and nobody reads the source. */
  | 'stopped'
  /** The message that gave it to its engine never arrived. */
  | 'undelivered'
  | 'prefillLost'
  | 'decodeLost'
  /** The reader is attested dead, or came back without it. */
  | 'proven'
  /** The source's memory is no more: its engine came back as another incarnation, or is attested dead. */
  | 'sourceGone'
  /** Its time is over. */
  | 'expire';

/** What a transition causes, in this order. What is not held is not released twice. */
export type RequestEffect =
  | 'leaveQueue'
  | 'submitPrefill'
  | 'submitDecode'
  | 'placeDecode'
  | 'placeAgain'
  | 'sendKv'
  | 'abortPrefill'
  | 'abortDecode'
  | 'releaseSource'
  | 'releaseDecode'
  | 'loseSource'
  | 'tellReply'
  | 'tellErrorSafe'
  | 'tellErrorUnsafe'
  | 'tellErrorOfLoss'
  | 'tellAborted';

export interface RequestTransition {
  readonly next: RequestState;
  readonly effects: readonly RequestEffect[];
}

type Row = Readonly<Partial<Record<RequestEvent, RequestTransition>>>;

const to = (next: RequestState, ...effects: RequestEffect[]): RequestTransition => ({ next, effects });

const stay = (state: RequestState): RequestTransition => to(state);

const queuedEnd = to('gone', 'leaveQueue', 'tellErrorSafe', 'releaseSource');
const cancelled = to('gone', 'releaseSource', 'releaseDecode', 'tellAborted');
const runCancelled = to('gone', 'releaseDecode', 'tellAborted');
const intoDoubt = to('doubtful', 'tellErrorUnsafe', 'releaseDecode');
const intoDoubtReading = to('doubtfulReading', 'tellErrorUnsafe', 'releaseDecode');
const settled = to('gone', 'releaseSource', 'releaseDecode');

/** What is absent changes nothing: such a message is late, comes twice or from a peer that has no say. */
export const requestTable: Readonly<Record<RequestState, Row>> = {
  waitingPrefill: {
    dispatch: to('prefill', 'leaveQueue', 'submitPrefill'),
    failSafe: queuedEnd,
    abort: to('gone', 'leaveQueue', 'tellAborted'),
    prefillLost: queuedEnd,
    expire: queuedEnd,
  },
  prefill: {
    handoff: to('waitingDecode', 'placeDecode'),
    failSafe: to('gone', 'tellErrorSafe', 'releaseSource'),
    failUnsafe: to('doubtful', 'tellErrorUnsafe'),
    abort: to('cancellingPrefill', 'abortPrefill'),
    undelivered: to('waitingPrefill', 'loseSource', 'placeAgain'),
    prefillLost: to('gone', 'tellErrorSafe', 'loseSource'),
    expire: to('gone', 'tellErrorSafe', 'abortPrefill', 'releaseSource'),
  },
  waitingDecode: {
    dispatch: to('importing', 'leaveQueue', 'submitDecode'),
    failSafe: queuedEnd,
    abort: to('gone', 'leaveQueue', 'releaseSource', 'tellAborted'),
    prefillLost: to('gone', 'leaveQueue', 'tellErrorSafe', 'loseSource'),
    decodeLost: queuedEnd,
    expire: queuedEnd,
  },
  importing: {
    ready: to('importing', 'sendKv'),
    readDone: to('generating', 'releaseSource'),
    reply: to('gone', 'releaseDecode', 'releaseSource', 'tellReply'),
    failSafe: to('gone', 'tellErrorSafe', 'releaseDecode', 'releaseSource'),
    failUnsafe: intoDoubt,
    sourceFailed: to('doubtful', 'tellErrorUnsafe', 'abortDecode', 'releaseDecode'),
    abort: to('cancellingImport', 'abortDecode'),
    stopped: cancelled,
    undelivered: to('gone', 'tellErrorSafe', 'releaseDecode', 'releaseSource'),
    prefillLost: to('abandoned', 'tellErrorSafe', 'abortDecode', 'loseSource'),
    decodeLost: intoDoubt,
    expire: to('doubtful', 'tellErrorUnsafe', 'abortDecode', 'releaseDecode'),
  },
  generating: {
    readDone: stay('generating'),
    reply: to('gone', 'releaseDecode', 'tellReply'),
    failSafe: to('gone', 'tellErrorSafe', 'releaseDecode'),
    failUnsafe: to('gone', 'tellErrorSafe', 'releaseDecode'),
    abort: to('cancellingGeneration', 'abortDecode'),
    stopped: runCancelled,
    decodeLost: to('gone', 'tellErrorOfLoss', 'releaseDecode'),
    expire: to('gone', 'tellErrorSafe', 'abortDecode', 'releaseDecode'),
  },
  running: {
    reply: to('gone', 'releaseDecode', 'tellReply'),
    failSafe: to('gone', 'tellErrorSafe', 'releaseDecode'),
    failUnsafe: intoDoubtReading,
    abort: to('cancellingRun', 'abortDecode'),
    stopped: runCancelled,
    undelivered: to('running', 'releaseDecode', 'placeAgain'),
    decodeLost: to('straying', 'releaseDecode'),
    expire: to('gone', 'tellErrorSafe', 'abortDecode', 'releaseDecode'),
  },
  reading: {
    reply: to('gone', 'releaseDecode', 'tellReply'),
    readDone: stay('reading'),
    failSafe: to('gone', 'tellErrorSafe', 'releaseDecode'),
    failUnsafe: intoDoubtReading,
    abort: to('cancellingReading', 'abortDecode'),
    stopped: runCancelled,
    undelivered: to('reading', 'releaseDecode', 'placeAgain'),
    decodeLost: intoDoubtReading,
    expire: to('doubtfulReading', 'tellErrorUnsafe', 'abortDecode', 'releaseDecode'),
  },
  cancellingPrefill: {
    handoff: cancelled,
    failSafe: cancelled,
    failUnsafe: to('doubtful', 'tellErrorUnsafe'),
    abort: stay('cancellingPrefill'),
    stopped: cancelled,
    undelivered: to('gone', 'loseSource', 'tellAborted'),
    prefillLost: to('gone', 'loseSource', 'tellAborted'),
    expire: cancelled,
  },
  cancellingImport: {
    ready: to('cancellingImport', 'sendKv'),
    readDone: to('cancellingGeneration', 'releaseSource'),
    reply: cancelled,
    failSafe: cancelled,
    failUnsafe: intoDoubt,
    sourceFailed: stay('cancellingImport'),
    abort: stay('cancellingImport'),
    stopped: cancelled,
    undelivered: cancelled,
    prefillLost: to('abandoned', 'loseSource', 'tellAborted'),
    decodeLost: intoDoubt,
    expire: intoDoubt,
  },
  cancellingGeneration: {
    readDone: stay('cancellingGeneration'),
    reply: runCancelled,
    failSafe: runCancelled,
    failUnsafe: runCancelled,
    abort: stay('cancellingGeneration'),
    stopped: runCancelled,
    decodeLost: runCancelled,
    expire: runCancelled,
  },
  cancellingRun: {
    reply: runCancelled,
    failSafe: runCancelled,
    failUnsafe: intoDoubtReading,
    abort: stay('cancellingRun'),
    stopped: runCancelled,
    undelivered: runCancelled,
    decodeLost: runCancelled,
    expire: runCancelled,
  },
  cancellingReading: {
    readDone: stay('cancellingReading'),
    reply: runCancelled,
    failSafe: runCancelled,
    failUnsafe: intoDoubtReading,
    abort: stay('cancellingReading'),
    stopped: runCancelled,
    undelivered: runCancelled,
    decodeLost: intoDoubtReading,
    expire: intoDoubtReading,
  },
  doubtful: {
    // Receives that were posted are quiet only once they are matched.
    ready: to('doubtful', 'sendKv'),
    readDone: to('cancellingGeneration', 'releaseSource'),
    reply: cancelled,
    failSafe: cancelled,
    abort: stay('doubtful'),
    stopped: cancelled,
    undelivered: cancelled,
    prefillLost: to('abandoned', 'loseSource', 'tellAborted'),
    proven: cancelled,
  },
  doubtfulReading: {
    readDone: runCancelled,
    reply: runCancelled,
    failSafe: runCancelled,
    abort: stay('doubtfulReading'),
    stopped: runCancelled,
    undelivered: runCancelled,
    proven: runCancelled,
  },
  abandoned: {
    readDone: settled,
    reply: settled,
    failSafe: settled,
    abort: stay('abandoned'),
    stopped: settled,
    undelivered: settled,
    proven: settled,
    // It still takes room on its reader, until that one has stopped.
    decodeLost: to('abandoned', 'releaseDecode'),
    sourceGone: to('gone', 'releaseDecode'),
  },
  straying: {
    reply: to('gone', 'tellReply'),
    failSafe: to('gone', 'tellErrorSafe'),
    failUnsafe: to('doubtfulReading', 'tellErrorUnsafe'),
    abort: to('gone', 'tellAborted'),
    stopped: to('gone', 'tellAborted'),
    expire: to('gone', 'tellErrorSafe'),
  },
  gone: {},
};

/** Whether a request in this state stands in a queue. */
export function waits(state: RequestState): boolean {
  return state === 'waitingPrefill' || state === 'waitingDecode';
}

/** Whether its client was told how it ended, or is being told by an engine that was asked to stop it. */
export function isTerminating(state: RequestState): boolean {
  return state.startsWith('cancelling') || state.startsWith('doubtful') || state === 'abandoned';
}

/** Whether a delta of the generating engine still goes to the client. */
export function streams(state: RequestState): boolean {
  return state === 'importing' || state === 'generating' || state === 'running' || state === 'reading';
}
