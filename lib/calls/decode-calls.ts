/**
 * The public calls of a decode engine: taking requests over, polling, admitting, and what the engine tells of its own.
 * Checks what the caller gives; a request that is refused is told to the control plane too.
 */
import type { Finished, RequestId, SamplingParams } from '../engine-context.js';
import { engineCallError, messageOf } from '../engine-call-error.js';
import { argumentError, HandoffError, isHandoffError } from '../errors.js';
import type { Notices } from '../notices.js';
import {
  checkLabel,
  checkPrompt,
  checkResult,
  checkSalt,
  checkSamplingParams,
  checkSignal,
  refOf,
  requireReady,
  withTravelling,
} from '../request-input.js';
import { isTrustedTicket } from '../ticket-seal.js';
import type { Life } from './life.js';

/** How a request is taken over. */
export interface AddOptions {
  /** Rank 0 only: aborts the request. */
  readonly signal?: AbortSignal | null;
  /** Separates prefix-cache entries of equal tokens (media key, adapter, …); spec 3.3. */
  readonly cacheSalt?: string | null;
  /** Hashes of the prompt's complete blocks, when the caller has them. */
  readonly blockHashes?: BigInt64Array | null;
}

export class DecodeCalls {
  constructor(
    private readonly life: Life,
    private readonly notices: Notices,
  ) {}

  addRequestWithKvHandoff(
    requestId: RequestId,
    prompt: readonly number[] | Int32Array,
    samplingParams: SamplingParams,
    kvMeta: Readonly<Record<string, unknown>>,
    sourceBlockIds: readonly number[],
    options: AddOptions | null,
  ): Promise<Finished> {
    const { decode, log, metrics, options: engineOptions } = this.life.requireRole('decode');
    if (log.carrier === 'group') {
      log.requireRankZero('addRequestWithKvHandoff');
      requireReady(kvMeta);
    }
    const { signal: givenSignal, cacheSalt, blockHashes } = options ?? {};
    if ((givenSignal ?? null) !== null) log.requireRankZero('a signal');
    return this.notices.call(() => {
      try {
        if (this.life.state === 'draining')
          throw new HandoffError('CLOSED', 'this engine is draining and takes no more handoffs', { phase: 'decode' });
        const signal = checkSignal(givenSignal);
        if (signal?.aborted === true) throw new HandoffError('ABORTED', 'the request was aborted before it arrived');
        const given = {
          requestId: checkLabel(requestId),
          prompt: checkPrompt(prompt),
          samplingParams: checkSamplingParams(samplingParams),
          kvMeta,
          sourceBlockIds,
        };
        const request = log.carrier === 'group' ? withTravelling(given) : given;
        const salt = checkSalt(cacheSalt);
        const settled = signal === null ? undefined : this.abortOn(signal, requestId);
        try {
          return decode.add(request, salt, blockHashes ?? null, settled);
        } catch (error) {
          settled?.();
          throw error;
        }
      } catch (thrown) {
        const error = engineCallError(thrown);
        metrics.importOutcome(error.code === 'ABORTED' ? 'aborted' : 'refused');
        // Whom a forged ticket names has nothing to do with it, and keeps its state.
        const isTrusted = isTrustedTicket(engineOptions.ticketSecret, kvMeta, sourceBlockIds);
        const identity = { attemptId: 0, requestId, source: isTrusted ? refOf(kvMeta) : null };
        this.notices.tellControlPlane('requestError', { ...identity, error, sourceSafe: true });
        if (!isTrusted) return Promise.reject(error);
        // A source without an identity is known by its label alone, and that label's first request still reads it.
        const isLabelOfLiving = identity.source === null && error.code === 'DUPLICATE_REQUEST';
        if (!isLabelOfLiving && !decode.isReading(identity.source))
          this.notices.tellControlPlane('kvReadDone', identity);
        return Promise.reject(error);
      }
    });
  }

  rejectKvHandoff(requestId: RequestId, kvMeta: Readonly<Record<string, unknown>>): void {
    const { decode, log, metrics } = this.life.requireRole('decode');
    log.requireRankZero('rejectKvHandoff');
    this.notices.call(() => {
      metrics.importOutcome('refused');
      const source = refOf(kvMeta);
      if (!decode.isReading(source)) this.notices.tellControlPlane('kvReadDone', { attemptId: 0, requestId, source });
    });
  }

  abortKvHandoff(requestId: RequestId): boolean {
    const { decode, log } = this.life.requireRole('decode');
    log.requireRankZero('abortKvHandoff');
    return this.notices.call(() => decode.abort(requestId));
  }

  pollPendingKvImports(): number {
    const { decode, log } = this.life.requireRole('decode');
    return this.notices.call(() => {
      decode.poll();
      if (log.carrier === 'local') decode.role.drainQueue();
      return decode.role.agreed.size;
    });
  }

  admitPendingKvImports(): number {
    const { decode, log } = this.life.requireRole('decode');
    return this.notices.call(() => {
      if (!log.beginStep()) return -1;
      decode.role.drainQueue();
      return decode.role.admit();
    });
  }

  scheduleWaitingRequests(waitingPromptCount: number): number {
    this.life.requireRole('decode');
    if (!Number.isSafeInteger(waitingPromptCount) || waitingPromptCount < 0)
      throw argumentError('waitingPromptCount', 'an integer of at least 0', waitingPromptCount);
    if (waitingPromptCount > 0) {
      throw new HandoffError(
        'PROMPT_ON_DECODE',
        `a decode-only engine cannot schedule prompt prefill, and ${waitingPromptCount} prompts wait; send them to a prefill engine`,
      );
    }
    return this.admitPendingKvImports();
  }

  finishRequest(attemptId: number, result: Omit<Finished, 'requestId' | 'attemptId'>): void {
    const { decode } = this.life.requireRole('decode');
    this.notices.call(() => decode.role.finish(attemptId, checkResult(result)));
  }

  failRequest(attemptId: number, error: Error): void {
    const { decode } = this.life.requireRole('decode');
    const failure = isHandoffError(error)
      ? error
      : new HandoffError('ENGINE_FAILED', messageOf(error), { cause: error });
    this.notices.call(() => decode.role.engineFail(attemptId, failure));
  }

  /** Gives what ends it, at the moment the request is over: from then on its label may be another request's. */
  private abortOn(signal: AbortSignal, requestId: RequestId): () => void {
    const abort = (): void => {
      try {
        // After `close` there is nothing left to abort, and nobody to tell.
        if (!this.life.isClosed()) this.abortKvHandoff(requestId);
      } catch {
        // A signal has nobody to throw at; `engineFailed` tells what the engine's method threw.
      }
    };
    signal.addEventListener('abort', abort, { once: true });
    return () => signal.removeEventListener('abort', abort);
  }
}
