/**
 * Carries out what the request table says: messages to engines and clients, reservations, queues, pins. It knows living
 * requests only; which event a message means, and whether its sender has a say, is decided elsewhere.
 */
import { invariant } from '../../invariant.js';
import type { SubmitRequest, SubmitRequestWithKv } from '../protocol/messages.js';
import type { Opaque, Wire } from '../protocol/wire-value.js';
import type { EngineChooser } from '../routing/engine-chooser.js';
import type { SettledOptions } from './coordinator-options.js';
import { deltaTokens } from './delta-tokens.js';
import type { EngineRecord } from './engine-record.js';
import { IdTable } from './id-table.js';
import type { Outbox } from './outbox.js';
import type { Placement } from './placement.js';
import type { RequestRecord } from './request-record.js';
import { RequestTimings } from './request-timings.js';
import { requestTable, type RequestEffect, type RequestEvent, type RequestState } from './request-table.js';

/** What comes with some events. */
export interface EventContent {
  /** Of a failure. */
  readonly reason?: string;
  /** Of a reply. */
  readonly body?: Opaque;
  readonly cachedPrefixBlocks?: number;
}

/** `submitted` = `completed` + `failed` + `aborted` + those alive; `confirmed`: failures that turned out safe later. */
export type RequestCounter = 'submitted' | 'completed' | 'failed' | 'aborted' | 'confirmed';

export class RequestFlow {
  readonly requests = new IdTable<RequestRecord>();
  /** Those of them that have a deadline. */
  readonly timed = new IdTable<RequestRecord>();
  readonly counters: Record<RequestCounter, number> = {
    submitted: 0,
    completed: 0,
    failed: 0,
    aborted: 0,
    confirmed: 0,
  };
  readonly timings = new RequestTimings();
  nowMs = 0;
  /** Of all requests that are still to be sent on. */
  promptBytes = 0;
  readonly #drains = new Set<EngineRecord>();

  constructor(
    private readonly options: SettledOptions,
    private readonly outbox: Outbox,
    private readonly chooser: EngineChooser,
    private readonly placement: Placement,
  ) {}

  /**
   * What `event` does to a request; afterwards the engines where it made room take what waits.
   *
   * @returns false when the event changes nothing in this state
   */
  raise(request: RequestRecord, event: RequestEvent, content: EventContent = {}): boolean {
    const transition = requestTable[request.state][event];
    if (transition === undefined) return false;
    this.timings.leaves(request, event, this.nowMs);
    this.#enter(request, transition.next);
    for (const effect of transition.effects) this.#carryOut(request, effect, content);
    if (transition.next === 'gone') this.#forget(request);
    return true;
  }

  /** A new request enters; the caller places it. */
  add(request: RequestRecord): void {
    this.requests.set(request.id, request);
    request.client?.requests.set(request.clientRequestId, request);
    this.counters.submitted++;
    this.promptBytes += request.promptBytes;
    request.submittedAt = request.enteredAt = this.nowMs;
    this.#enter(request, request.state);
  }

  /** Chooses the first engine of a new request, or of one whose engine never got it. */
  place(request: RequestRecord): void {
    const choice =
      request.state === 'waitingPrefill'
        ? this.placement.choosePrefill(request, this.nowMs)
        : this.placement.chooseRunner(request, this.nowMs);
    if (typeof choice === 'string') {
      this.raise(request, 'failSafe', { reason: choice });
      return;
    }
    if (request.state === 'waitingPrefill') {
      request.prefill = choice;
      request.isPinned = false;
      request.slots = request.prefillSlots = choice.card!.prefillSlots;
      this.#join(request, choice);
    } else {
      this.#take(request, choice);
      this.#sendRun(request, choice);
    }
  }

  /** Its engine never got it: it is to be sent on once more. */
  keepPrompt(request: RequestRecord, submitted: SubmitRequest | SubmitRequestWithKv): void {
    if (request.submitted !== null) return;
    request.submitted = submitted;
    this.promptBytes += request.promptBytes;
  }

  /** Its client has no say any more: it is told so now, and once more when nothing reads the source. */
  dismiss(request: RequestRecord, reason: string): void {
    if (!request.isAnswered) {
      request.isAnswered = true;
      this.#tellError(request, reason, false);
    }
    this.raise(request, 'abort');
  }

  /** Gives waiting requests the room that was made, first come first served, until nothing moves. */
  drain(): void {
    for (const engine of this.#drains) {
      // What is dispatched may fail and make room elsewhere; the set grows as it is walked.
      this.#drains.delete(engine);
      for (let next = engine.next(); engine.isRegistered && next !== null; next = engine.next()) {
        invariant(this.raise(next, 'dispatch'), 'only requests that wait stand in a queue', { state: next.state });
      }
    }
  }

  /** A delta of what it generates goes to its client. */
  stream(request: RequestRecord, body: Opaque): void {
    this.timings.streams(request, this.nowMs, deltaTokens(body));
    this.outbox.send(request.client!.peer, {
      header: 'ENGINE_REPLY_PARTIAL',
      requestId: request.clientRequestId,
      body,
    });
  }

  #enter(request: RequestRecord, state: RequestState): void {
    if (request.state !== state) request.enteredAt = this.nowMs;
    request.state = state;
    const limit = limitOf[state];
    const ms = limit === null ? null : this.options.limits[limit];
    if (ms !== null) {
      request.deadlineAt = this.nowMs + ms;
      this.timed.set(request.id, request);
    } else if (request.deadlineAt !== Infinity) {
      request.deadlineAt = Infinity;
      this.timed.delete(request.id);
    }
  }

  #carryOut(request: RequestRecord, effect: RequestEffect, content: EventContent): void {
    switch (effect) {
      case 'leaveQueue':
        request.prefill?.queue.delete(request.id);
        request.decode?.queue.delete(request.id);
        break;
      case 'submitPrefill':
        this.#submitPrefill(request);
        break;
      case 'placeDecode':
        this.#placeDecode(request);
        break;
      case 'submitDecode':
        this.#submitDecode(request);
        break;
      case 'placeAgain':
        this.place(request);
        break;
      case 'sendKv':
        request.isPushed = true;
        this.outbox.send(request.prefill!.peer, {
          header: 'SEND_KV',
          requestId: request.id,
          decodeInstanceMeta: request.decode!.card!.instanceMeta,
          cachedPrefixBlocks: content.cachedPrefixBlocks ?? 0,
        });
        break;
      case 'abortPrefill':
        this.#sendAbort(request, request.prefill);
        break;
      case 'abortDecode':
        this.#sendAbort(request, request.decode);
        break;
      case 'releaseSource':
        this.#releaseSource(request);
        break;
      case 'loseSource':
        this.#freePrefill(request);
        break;
      case 'releaseDecode':
        this.#freeDecode(request);
        break;
      default:
        this.#tell(request, effect, content);
    }
  }

  #submitPrefill(request: RequestRecord): void {
    const engine = request.prefill!;
    const submitted = request.submitted!;
    engine.reserve(request.prefillSlots);
    request.holdsPrefill = request.isPinned = true;
    request.pinnedAt = this.nowMs;
    const sampling = new Map<string, Wire>(submitted.sampling);
    // Keys that are there keep their place.
    if (sampling.has('num_tokens_total')) sampling.set('num_tokens_total', null);
    sampling.set('do_kv_handoff', true).set('num_tokens_to_generate', 0).set('skip_prompt_log_probs', true);
    this.outbox.send(engine.peer, { ...plainSubmit(request), sampling });
    this.#record(request, engine);
  }

  #placeDecode(request: RequestRecord): void {
    const choice = this.placement.chooseDecode(request, this.nowMs);
    if (typeof choice === 'string') {
      this.raise(request, 'failSafe', { reason: choice });
      return;
    }
    request.decode = choice;
    request.slots = request.handoff!.hasSsm ? 1 : 0;
    this.#join(request, choice);
  }

  #submitDecode(request: RequestRecord): void {
    const [engine, prefill] = [request.decode!, request.prefill!];
    this.#take(request, engine);
    const { kvMeta, sourceBlockIds } = request.handoff!;
    const submitted = request.submitted!;
    if (prefill.extension !== null && engine.extension !== null) {
      const { instance } = this.options;
      this.outbox.send(prefill.peer, { header: 'CLAIM_KV', requestId: request.id, instance, owner: engine.owner });
    }
    this.outbox.send(engine.peer, {
      header: 'SUBMIT_REQUEST_WITH_KV',
      requestId: request.id,
      prompt: submitted.prompt,
      sampling: submitted.sampling,
      kvMeta,
      sourceBlockIds,
      offloadParams: submitted.offloadParams,
    });
    this.#record(request, engine);
    // Prompts are large, and nothing needs it any more.
    this.#dropPrompt(request);
    request.handoff = null;
    request.hashes = noHashes;
  }

  /** A request for an engine without a role, or one that brings its handoff. */
  #sendRun(request: RequestRecord, engine: EngineRecord): void {
    const submitted = request.submitted!;
    this.outbox.send(
      engine.peer,
      submitted.header === 'SUBMIT_REQUEST' ? plainSubmit(request) : { ...submitted, requestId: request.id },
    );
    // Prompts are large. One that its engine never got comes back with the word of that.
    this.#dropPrompt(request);
    this.#record(request, engine);
  }

  #dropPrompt(request: RequestRecord): void {
    if (request.submitted === null) return;
    request.submitted = null;
    this.promptBytes -= request.promptBytes;
  }

  #record(request: RequestRecord, engine: EngineRecord): void {
    if (request.hashes.length === 0) return;
    this.chooser.assigned(engine.column, request.hashes, this.nowMs);
    this.outbox.push({ kind: 'affinity', peer: engine.peer, hashes: request.hashes });
  }

  #take(request: RequestRecord, engine: EngineRecord): void {
    request.decode = engine;
    engine.requests.set(request.id, request);
    engine.reserve(request.slots);
    request.holdsDecode = true;
  }

  /** Enters the queue of an engine, and leaves it at once where there is room and nobody waits. */
  #join(request: RequestRecord, engine: EngineRecord): void {
    engine.requests.set(request.id, request);
    engine.queue.set(request.id, request);
    if (engine.next() === request) this.raise(request, 'dispatch');
  }

  #sendAbort(request: RequestRecord, engine: EngineRecord | null): void {
    const current = engine === null ? null : this.placement.current(engine);
    if (current !== null) this.outbox.send(current.peer, { header: 'ABORT_REQUEST', requestId: request.id });
  }

  #releaseSource(request: RequestRecord): void {
    const { prefill } = request;
    if (request.isPinned && prefill !== null) {
      const current = this.placement.current(prefill);
      if (current !== null)
        this.outbox.send(current.peer, { header: 'RELEASE_KV', requestId: request.id, instance: null });
    }
    request.isPinned = false;
    this.#freePrefill(request);
  }

  #freePrefill(request: RequestRecord): void {
    const { prefill } = request;
    if (!request.holdsPrefill) return;
    prefill!.release(request.prefillSlots);
    request.holdsPrefill = false;
    this.#drains.add(prefill!);
  }

  #freeDecode(request: RequestRecord): void {
    const { decode } = request;
    if (!request.holdsDecode) return;
    decode!.release(request.slots);
    request.holdsDecode = false;
    this.#drains.add(decode!);
  }

  #tell(request: RequestRecord, effect: RequestEffect, content: EventContent): void {
    const { client, clientRequestId: requestId } = request;
    const isSafe =
      effect !== 'tellErrorUnsafe' && !(effect === 'tellErrorOfLoss' && this.options.behaviour === 'gen-b');
    const isFirst = !request.isAnswered;
    request.isAnswered = true;
    if (effect === 'tellReply') {
      this.counters.completed++;
      this.timings.replies(request, this.nowMs);
      if (client !== null) this.outbox.send(client.peer, { header: 'ENGINE_REPLY', requestId, body: content.body! });
    } else if (effect === 'tellAborted') {
      this.counters[isFirst ? 'aborted' : 'confirmed']++;
      if (client !== null) this.outbox.send(client.peer, { header: 'REQUEST_ABORTED', requestId, sourceSafe: true });
    } else if (isFirst) {
      this.#tellError(request, content.reason ?? 'the request failed', isSafe);
    }
  }

  #tellError(request: RequestRecord, reason: string, sourceSafe: boolean): void {
    const { id, xRequestId, client, clientRequestId: requestId } = request;
    this.counters.failed++;
    this.outbox.log('warn', 'request failed', { request: id, xRequestId, reason, sourceSafe });
    if (client !== null) this.outbox.send(client.peer, { header: 'REQUEST_ERROR', requestId, reason, sourceSafe });
  }

  #forget(request: RequestRecord): void {
    this.requests.delete(request.id);
    request.prefill?.requests.delete(request.id);
    request.decode?.requests.delete(request.id);
    if (request.client?.requests.get(request.clientRequestId) === request) request.client.end(request.clientRequestId);
    this.#dropPrompt(request);
    request.client = request.handoff = null;
  }
}

const noHashes = new BigInt64Array(0);

function plainSubmit(request: RequestRecord) {
  const { prompt, sampling, offloadParams } = request.submitted!;
  const { mediaMeta, media } = request.submitted as {
    readonly mediaMeta?: Opaque | null;
    readonly media?: Opaque | null;
  };
  return {
    header: 'SUBMIT_REQUEST' as const,
    requestId: request.id,
    prompt,
    sampling,
    blockHashes: null,
    mediaMeta: mediaMeta ?? null,
    media: media ?? null,
    offloadParams,
  };
}

/** Which limit ends a stay in a state; null: none does. */
const limitOf: Readonly<Record<RequestState, 'queueMs' | 'prefillMs' | 'decodeMs' | 'lateReplyMs' | null>> = {
  waitingPrefill: 'queueMs',
  prefill: 'prefillMs',
  waitingDecode: 'queueMs',
  importing: 'decodeMs',
  generating: 'decodeMs',
  running: 'decodeMs',
  reading: 'decodeMs',
  cancellingPrefill: 'prefillMs',
  cancellingImport: 'decodeMs',
  cancellingGeneration: 'decodeMs',
  cancellingRun: 'decodeMs',
  cancellingReading: 'decodeMs',
  doubtful: null,
  doubtfulReading: null,
  abandoned: null,
  straying: 'lateReplyMs',
  gone: null,
};
