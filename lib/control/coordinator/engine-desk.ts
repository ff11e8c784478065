/**
 * What engines say: whether the sender has a say, and which event of a request it means. A report about a request that is
 * not at its sender, comes late, twice or out of turn changes nothing.
 */
import type { ReplyEntry, ToCoordinator } from '../protocol/messages.js';
import { Float64, type WireMap } from '../protocol/wire-value.js';
import type { SettledOptions } from './coordinator-options.js';
import type { EngineRecord } from './engine-record.js';
import type { EngineRegistry, RegistryParts } from './engine-registry.js';
import { readHandoff } from './handoff-body.js';
import type { PeerId } from './interface.js';
import type { OwnershipDesk } from './ownership-desk.js';
import type { RequestFlow } from './request-flow.js';
import type { RequestRecord } from './request-record.js';
import { streams, waits, type RequestEvent } from './request-table.js';

type Of<H extends ToCoordinator['header']> = Extract<ToCoordinator, { readonly header: H }>;
type RequestMessage = Of<'KV_READ_DONE' | 'KV_TRANSFER_READY' | 'REQUEST_ERROR' | 'REQUEST_ABORTED'>;
/** What only engines say, once they are registered. */
export type EngineMessage =
  RequestMessage | Of<'ENGINE_REPLY' | 'ENGINE_REPLY_PARTIAL' | 'ENGINE_STATUS' | 'REGISTER_KV'>;

export class EngineDesk {
  readonly #options: SettledOptions;
  readonly #flow: RequestFlow;
  readonly #isMinted: (id: number) => boolean;

  constructor(
    parts: RegistryParts,
    private readonly registry: EngineRegistry,
    private readonly ownership: OwnershipDesk,
  ) {
    this.#options = parts.options;
    this.#flow = parts.flow;
    this.#isMinted = parts.isMinted;
  }

  /** @returns why the message changes nothing; null when it did what it is for */
  hear(engine: EngineRecord, message: EngineMessage): string | null {
    switch (message.header) {
      case 'ENGINE_REPLY':
        return each(message.replies, (reply) => this.#reply(engine, reply));
      case 'ENGINE_REPLY_PARTIAL':
        return each(message.partials, ({ requestId, body }) => {
          const request = this.#flow.requests.get(requestId);
          if (request?.decode !== engine || request.client === null || !streams(request.state))
            return 'nobody waits for the delta';
          this.#flow.stream(request, body);
          return null;
        });
      case 'ENGINE_STATUS':
        engine.load = numbersOf(message.status);
        return null;
      case 'REGISTER_KV':
        return this.ownership.offer(engine, message.requestId);
      default:
        return this.#aboutRequest(engine, message);
    }
  }

  #aboutRequest(engine: EngineRecord, message: RequestMessage): string | null {
    const { requestId, header } = message;
    const request = this.#flow.requests.get(requestId);
    const isReader = request?.decode === engine && !waits(request.state);
    const isSource = request?.prefill === engine;
    const isDone = header === 'KV_READ_DONE' || (header !== 'KV_TRANSFER_READY' && message.sourceSafe);
    if (request === undefined || !(isReader || isSource)) {
      return isDone && this.registry.settleHeld(engine, requestId) ? null : 'the request is not at the sender';
    }
    switch (header) {
      case 'KV_READ_DONE':
        return isReader ? this.#raise(request, 'readDone') : 'the sender does not read it';
      case 'KV_TRANSFER_READY':
        return isReader ? this.#ready(request, message.cachedPrefixBlocks) : 'the sender does not read it';
      case 'REQUEST_ABORTED':
        if (!message.sourceSafe) return 'the source is not safe yet';
        return isReader || request.decode === null ? this.#raise(request, 'stopped') : 'the sender does not read it';
      case 'REQUEST_ERROR':
        return this.#raise(
          request,
          failureOf(request, isReader, message.sourceSafe),
          this.#toldOf(request, message.reason),
        );
    }
  }

  #reply(engine: EngineRecord, { requestId, body }: ReplyEntry): string | null {
    const request = this.#flow.requests.get(requestId);
    if (request?.prefill === engine && (request.state === 'prefill' || request.state === 'cancellingPrefill')) {
      const handoff = readHandoff(body, engine);
      if (typeof handoff === 'string') return this.#raise(request, 'failSafe', handoff);
      request.handoff = handoff;
      this.#flow.raise(request, 'handoff');
      return null;
    }
    if (request?.decode === engine && !waits(request.state)) {
      return this.#flow.raise(request, 'reply', { body }) ? null : `the request is ${request.state}`;
    }
    if (request === undefined && engine.role === 'prefill') this.ownership.disown(engine, requestId);
    return 'nobody waits for the reply';
  }

  /** The replies of an engine without a role that is gone are as good as ever. */
  hearFormer(peer: PeerId, message: EngineMessage): string | null {
    if (message.header !== 'ENGINE_REPLY') return 'the sender is no longer registered';
    return each(message.replies, ({ requestId, body }) => {
      const request = this.#flow.requests.get(requestId);
      const isItsOwn = request?.state === 'straying' && request.decode?.peer === peer;
      return isItsOwn && this.#flow.raise(request, 'reply', { body }) ? null : 'nobody waits for the reply';
    });
  }

  #ready(request: RequestRecord, cachedPrefixBlocks: number): string | null {
    const names = this.#options.pushTransports;
    const has = (engine: EngineRecord | null, name: string) => engine?.card?.transports.includes(name) === true;
    if (!names.some((name) => has(request.prefill, name) && has(request.decode, name)))
      return this.#raise(request, 'failUnsafe', `no transport of both is one that pushes: ${names.join(', ')}`);
    return this.#flow.raise(request, 'ready', { cachedPrefixBlocks }) ? null : `the request is ${request.state}`;
  }

  /** An engine's words may name requests as it knows them; a client knows its own, by its own number. */
  #toldOf({ id, clientRequestId }: RequestRecord, reason: string): string {
    return reason.replace(mintedDigits, (digits) => {
      if (Number(digits) === id) return String(clientRequestId);
      return this.#isMinted(Number(digits)) ? '…' : digits;
    });
  }

  #raise(request: RequestRecord, event: RequestEvent, reason?: string): string | null {
    const { state } = request;
    return this.#flow.raise(request, event, reason === undefined ? {} : { reason }) ? null : `the request is ${state}`;
  }
}

/** Ids of a run that began at 0 are too short to be told from other numbers. */
const mintedDigits = /(?<!\d)\d{10,16}(?!\d)/g;

/** What an engine's failure means: the reader's word counts for the source, the source's own does not. */
function failureOf(request: RequestRecord, isReader: boolean, isSafe: boolean): RequestEvent {
  if (!isReader && request.decode !== null && !waits(request.state)) return 'sourceFailed';
  return isSafe || waits(request.state) ? 'failSafe' : 'failUnsafe';
}

/** Handles all; of what changed nothing, the first reason. */
function each<T>(entries: readonly T[], handle: (entry: T) => string | null): string | null {
  let ignored: string | null = null;
  for (const entry of entries) {
    const reason = handle(entry);
    ignored ??= reason;
  }
  return ignored;
}

function numbersOf(status: WireMap): Readonly<Record<string, number>> {
  const numbers = [...status].map(([key, value]) => [key, value instanceof Float64 ? value.value : value] as const);
  const known = numbers.filter(
    (entry): entry is readonly [string, number] => typeof entry[1] === 'number' && entry[0].length <= loadKeyMax,
  );
  return Object.fromEntries(known.slice(0, loadKeysMax));
}

const loadKeysMax = 64;
/** Characters: the status repeats them to whoever asks. */
const loadKeyMax = 64;
