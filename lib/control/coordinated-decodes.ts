/**
 * The handoffs that a coordinator gave a decode engine: from the message to the reply, on rank 0. A request is known until
 * it has ended and its source is read no more; what is told about any other changes nothing.
 */
import type { Finished, RequestId } from '../engine-context.js';
import { isHandoffError, type HandoffError } from '../errors.js';
import type { ImportNotice } from '../events.js';
import type { StateHandoff } from '../state-handoff.js';
import { reasonOf, unlessClosed } from './coordinated-prefills.js';
import type { CoordinatedEngineOptions } from './coordinated-engine-options.js';
import { isMintedLabel } from './held-handoffs.js';
import { wireToPlain, wireToRecord } from './plain-wire.js';
import { promptTokens } from './prompt-tokens.js';
import type { PartialEntry, SubmitRequestWithKv, ToCoordinator } from './protocol/messages.js';
import { decodeValue, encodeValue, wireMap } from './protocol/wire-bytes.js';
import { Float64, type Wire, type WireMap } from './protocol/wire-value.js';

/** What it needs of its engine. */
export interface DecodeSurroundings {
  readonly handoff: StateHandoff;
  readonly options: Pick<CoordinatedEngineOptions, 'onHandoff' | 'onFinished' | 'onFailed' | 'tokenize'>;
  readonly say: (message: ToCoordinator) => void;
}

interface Decoding {
  readonly promptLength: number;
  readonly streams: boolean;
  isSettled: boolean;
  isRead: boolean;
}

export class CoordinatedDecodes {
  private readonly decoding = new Map<number, Decoding>();
  private partials: PartialEntry[] = [];

  constructor(private readonly around: DecodeSurroundings) {}

  get size(): number {
    return this.decoding.size;
  }

  has(requestId: number): boolean {
    return this.decoding.has(requestId);
  }

  /** What was begun before this connection is heard of through it. */
  adopt(requestId: number): void {
    if (this.decoding.has(requestId)) return;
    this.decoding.set(requestId, { promptLength: 0, streams: false, isSettled: true, isRead: false });
  }

  accept({ requestId, prompt, sampling, kvMeta, sourceBlockIds }: SubmitRequestWithKv): void {
    if (this.decoding.has(requestId)) return;
    const { handoff, options } = this.around;
    let added: Promise<Finished>;
    let decoding: Decoding | null = null;
    let isTold = false;
    try {
      const tokens = promptTokens(prompt, options.tokenize);
      const streams = sampling.get('streaming') === true;
      decoding = { promptLength: tokens.length, streams, isSettled: false, isRead: false };
      this.decoding.set(requestId, decoding);
      const samplingParams = wireToRecord(sampling);
      options.onHandoff?.({ requestId, prompt: Int32Array.from(tokens), samplingParams });
      isTold = true;
      added = handoff.addRequestWithKvHandoff(
        requestId,
        tokens,
        samplingParams,
        wireToPlain(decodeValue(kvMeta)) as Readonly<Record<string, unknown>>,
        wireToPlain(decodeValue(sourceBlockIds)) as readonly number[],
      );
    } catch (error) {
      // It never became a request here: nothing reads its source.
      this.decoding.delete(requestId);
      this.fail(requestId, reasonOf(error));
      if (isTold && isHandoffError(error)) this.tellFailed(requestId, error);
      return;
    }
    const entry = decoding;
    added.then(
      (finished) => {
        try {
          options.onFinished?.(requestId, finished);
          this.finish(requestId, entry.promptLength, sampling, finished);
        } catch (error) {
          this.fail(requestId, reasonOf(error), entry.isRead);
        }
        this.settle(requestId, entry);
      },
      (error: HandoffError) => {
        // The coordinator was told by the notice.
        this.tellFailed(requestId, error);
        this.settle(requestId, entry);
      },
    );
  }

  partial(requestId: RequestId, newTokens: readonly number[], newLogProbs: readonly number[] | null): void {
    if (!isMintedLabel(requestId) || this.decoding.get(requestId)?.streams !== true) return;
    const body: Record<string, Wire> = { request_id: requestId, new_tokens: newTokens };
    if (newLogProbs !== null) body['new_log_probs'] = newLogProbs.map((value) => new Float64(value));
    this.partials.push({ requestId, body: encodeValue(wireMap(body)) });
  }

  flush(): void {
    if (this.partials.length === 0) return;
    const { partials } = this;
    this.partials = [];
    this.around.say({ header: 'ENGINE_REPLY_PARTIAL', partials });
  }

  abort(requestId: number): void {
    if (this.decoding.has(requestId)) this.around.handoff.abortKvHandoff(requestId);
  }

  /** Nobody waits any more. What is being imported is the next coordinator's to abort: its source may be read. */
  forsake(): void {
    const { handoff } = this.around;
    this.partials = [];
    unlessClosed(() => {
      for (const { requestId, state } of handoff.inspect().imports) {
        if (state === 'admitted' && isMintedLabel(requestId)) this.abort(requestId);
      }
    });
  }

  /** Calls `tell` when the notice is about a request of the coordinator's. */
  about({ requestId }: ImportNotice, tell: (requestId: number) => void): void {
    if (isMintedLabel(requestId) && this.decoding.has(requestId)) tell(requestId);
  }

  /** Its source is read no more. */
  noteRead(requestId: number): void {
    const decoding = this.decoding.get(requestId)!;
    decoding.isRead = true;
    if (decoding.isSettled) this.decoding.delete(requestId);
  }

  private finish(requestId: number, promptLength: number, sampling: WireMap, finished: Finished): void {
    this.flush();
    const { generatedTokens, generatedLogProbs, cachedTokens } = finished;
    const body = wireMap({
      request_id: requestId,
      status: 'COMPLETED',
      sampling_params: sampling,
      prompt: null,
      prompt_length: promptLength,
      generated_tokens: generatedTokens,
      generated_length: generatedTokens.length,
      generated_log_probs: generatedLogProbs?.map((value) => new Float64(value)) ?? null,
      num_cached_tokens: cachedTokens,
      finish_reason: finished.finishReason,
    });
    const replies = [{ requestId, needsDetokenize: true, body: encodeValue(body) }];
    this.around.say({ header: 'ENGINE_REPLY', replies });
  }

  private tellFailed(requestId: number, error: HandoffError): void {
    const { handoff, options } = this.around;
    try {
      options.onFailed?.(requestId, error);
    } catch (thrown) {
      handoff.emit('warning', { message: `onFailed threw for request ${requestId}`, error: thrown });
    }
  }

  private settle(requestId: number, decoding: Decoding): void {
    decoding.isSettled = true;
    if (decoding.isRead && this.decoding.get(requestId) === decoding) this.decoding.delete(requestId);
  }

  private fail(requestId: number, reason: string, sourceSafe = true): void {
    this.around.say({ header: 'REQUEST_ERROR', requestId, reason, sourceSafe });
  }
}
