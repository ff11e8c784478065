/**
 * Connects a host engine's `StateHandoff` to a coordinator: says what it is and holds, takes requests, and tells what became
 * of them. The engine calls `drain` once a step and writes no protocol. An instance of one rank only. Messages that name a
 * request this engine does not have change nothing.
 */
import type { Finished, RequestId } from '../engine-context.js';
import { argumentError, isHandoffError } from '../errors.js';
import type { HandoffRef, ImportNotice, StateHandoffEvents } from '../events.js';
import type { StateHandoff } from '../state-handoff.js';
import { unreadyFence } from '../ticket-readiness.js';
import { disaggregatedParams, type Ticket } from '../ticket.js';
import type { CoordinatedEngineOptions } from './coordinated-engine-options.js';
import { heldHandoffs, isMintedLabel } from './held-handoffs.js';
import { plainToWire, wireToPlain, wireToRecord } from './plain-wire.js';
import { stripAgentMetadata } from './protocol/agent-metadata.js';
import type { PartialEntry, RegisterRole, SubmitRequest, SubmitRequestWithKv, ToEngine } from './protocol/messages.js';
import { decodeValue, encodeValue, wireMap } from './protocol/wire-bytes.js';
import { Float64, type Wire, type WireMap } from './protocol/wire-value.js';
import { EngineConnection } from './zeromq/engine-connection.js';
import { parseEndpoint } from './zeromq/address.js';

interface Computing {
  readonly abort: AbortController;
}

interface Decoding {
  readonly promptLength: number;
  readonly streams: boolean;
  isSettled: boolean;
  isRead: boolean;
}

/** Made by {@link CoordinatedEngine.connect}. */
export class CoordinatedEngine {
  private readonly computing = new Map<number, Computing>();
  private readonly decoding = new Map<number, Decoding>();
  private readonly refs = new Map<number, HandoffRef>();
  /** Tickets whose state is not in place yet. */
  private unready: Ticket[] = [];
  private partials: PartialEntry[] = [];
  private readonly connection: EngineConnection;
  private readonly handoff: StateHandoff;
  private readonly role: 'prefill' | 'decode';
  private readonly maxRequests: number;

  /**
   * Registers the engine, and resolves when the coordinator has accepted it. After a lost connection it registers again by
   * itself, with the handoffs it holds; what the coordinator asked for before is aborted.
   *
   * @throws (rejects) `NOT_SET_UP`, `OPTION_INVALID`; `ARGUMENT_INVALID` for an instance of several ranks; `PEER_UNREACHABLE`
   *   when nobody accepts it in time; `INCOMPATIBLE` with the coordinator's reason; `ZEROMQ_UNAVAILABLE`
   */
  static async connect(options: CoordinatedEngineOptions): Promise<CoordinatedEngine> {
    const ranks = options.handoff.instanceMeta.length;
    if (ranks !== 1) throw argumentError('options.handoff', 'an instance of one rank', ranks);
    parseEndpoint(options.address, 'options.address');
    const { role } = options.handoff.describeInstance();
    if (role === 'prefill' && typeof options.prefill !== 'function')
      throw argumentError('options.prefill', 'a function on a prefill engine', options.prefill, 'OPTION_INVALID');
    const engine = new CoordinatedEngine(options);
    engine.listen(true);
    try {
      await engine.connection.open(options.connectMs ?? 5_000);
    } catch (error) {
      engine.listen(false);
      throw error;
    }
    return engine;
  }

  private constructor(private readonly options: CoordinatedEngineOptions) {
    this.handoff = options.handoff;
    const card = this.handoff.describeInstance();
    this.role = card.role;
    this.maxRequests = card.maxRequests;
    this.connection = new EngineConnection({
      address: options.address,
      profile: options.profile ?? 'multi-frame',
      curve: options.curve,
      instance: card.instance,
      register: () => this.registration(),
      onMessage: () => this.options.onMessage?.(),
      onRejected: (error) => this.options.onRejected?.(error),
      onLost: () => this.forsake(),
    });
  }

  /** Whether the coordinator knows this engine now; false while the connection is lost. */
  get isRegistered(): boolean {
    return this.connection.isRegistered;
  }

  /** Messages of the coordinator that could not be read; each was dropped. */
  get malformed(): number {
    return this.connection.malformed;
  }

  /** Requests of the coordinator that this engine works on or may still read. */
  get openRequests(): number {
    return this.computing.size + this.decoding.size;
  }

  /** Once a step, before scheduling: does what the coordinator asked for, and sends what waits. Returns how many messages came. */
  drain(): number {
    let count = 0;
    for (let message = this.connection.take(); message !== null; message = this.connection.take(), count++)
      this.handle(message);
    const ready = this.unready.filter(({ kvMeta }) => unreadyFence(kvMeta) === null);
    if (ready.length > 0) this.unready = this.unready.filter((ticket) => !ready.includes(ticket));
    for (const ticket of ready) this.publish(ticket);
    this.flushPartials();
    return count;
  }

  /**
   * Decode: tokens that a request has just generated, for a client that asked for a stream; others are told at the end.
   *
   * @param newLogProbs - one a token
   */
  partial(requestId: RequestId, newTokens: readonly number[], newLogProbs: readonly number[] | null = null): void {
    if (!isMintedLabel(requestId) || this.decoding.get(requestId)?.streams !== true) return;
    const body: Record<string, Wire> = { request_id: requestId, new_tokens: newTokens };
    if (newLogProbs !== null) body['new_log_probs'] = newLogProbs.map((value) => new Float64(value));
    this.partials.push({ requestId, body: encodeValue(wireMap(body)) });
  }

  /** Leaves the coordinator; the handoff and what it holds stay as they are. */
  async close(): Promise<void> {
    this.listen(false);
    this.forsake();
    await this.connection.close();
  }

  private registration(): RegisterRole {
    const { instance, incarnation, transports } = this.handoff.describeInstance();
    const held = heldHandoffs(this.handoff.inspect());
    // What was begun before this connection is heard of through it.
    for (const { requestId, state } of held) {
      if (state === 'pinned' || this.decoding.has(requestId)) continue;
      const none = { promptLength: 0, streams: false };
      this.decoding.set(requestId, { ...none, isSettled: true, isRead: false });
    }
    return {
      header: 'REGISTER_ROLE',
      role: this.role,
      transport: transports[0] ?? '',
      instanceMeta: this.handoff.instanceMeta.map((meta) => plainToWire(meta, 'instanceMeta')),
      extension: { instance, incarnation, transports, held },
    };
  }

  private handle(message: ToEngine): void {
    switch (message.header) {
      case 'SUBMIT_REQUEST':
        return this.role === 'prefill'
          ? this.compute(message)
          : this.fail(message.requestId, 'this engine decodes only');
      case 'SUBMIT_REQUEST_WITH_KV':
        return this.role === 'decode'
          ? this.decode(message)
          : this.fail(message.requestId, 'this engine prefills only');
      case 'ABORT_REQUEST':
        this.computing.get(message.requestId)?.abort.abort();
        if (this.decoding.has(message.requestId)) this.handoff.abortKvHandoff(message.requestId);
        return;
      case 'RELEASE_KV':
        if (this.role === 'prefill') this.handoff.releaseHandoffBlocks(message.requestId);
        return;
      case 'CLAIM_KV': {
        const ref = this.refs.get(message.requestId);
        if (ref !== undefined && message.owner !== '') this.handoff.claimHandoff(ref, message.owner);
        return;
      }
      case 'SEND_KV':
        if (this.role === 'prefill') this.push(message);
        return;
      case 'REGISTER_ROLE_ACK':
      case 'REGISTRATION_ERROR':
        return;
      default:
        this.options.onSignal?.(message);
        if (message.header === 'SET_GENERATION_EPOCH') this.handoff.setGenerationEpoch(message.epoch);
    }
  }

  private compute({ requestId, prompt, sampling }: SubmitRequest): void {
    // The same id once more is the same request once more, and its pin may be read.
    if (this.computing.has(requestId) || this.isPinned(requestId)) return;
    if (this.computing.size >= this.maxRequests) return this.fail(requestId, 'this engine computes as many as it can');
    const abort = new AbortController();
    const computing = { abort };
    this.computing.set(requestId, computing);
    const compute = async (): Promise<void> => {
      try {
        const tokens = this.tokensOf(prompt);
        const samplingParams = wireToRecord(sampling);
        const order = { requestId, prompt: Int32Array.from(tokens), samplingParams, signal: abort.signal };
        const ticket = await this.options.prefill!(order);
        if (ticket.requestId !== requestId)
          throw argumentError('ticket.requestId', String(requestId), ticket.requestId);
        if (unreadyFence(ticket.kvMeta) === null) this.publish(ticket);
        else this.unready.push(ticket);
      } catch (error) {
        // Not published, so nobody reads it.
        unlessClosed(() => this.handoff.releaseHandoffBlocks(requestId));
        if (abort.signal.aborted) this.connection.say({ header: 'REQUEST_ABORTED', requestId, sourceSafe: true });
        else this.fail(requestId, reasonOf(error));
      } finally {
        if (this.computing.get(requestId) === computing) this.computing.delete(requestId);
      }
    };
    void compute();
  }

  private publish(ticket: Ticket): void {
    const requestId = ticket.requestId as number;
    if (ticket.handoff !== null) this.refs.set(requestId, ticket.handoff);
    const params = stripAgentMetadata(plainToWire(disaggregatedParams(ticket), 'ticket'));
    const body = encodeValue(wireMap({ request_id: requestId, disaggregated_params: params }));
    this.connection.say({ header: 'REGISTER_KV', requestId });
    this.connection.say({ header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body }] });
  }

  private push({ requestId, decodeInstanceMeta, cachedPrefixBlocks }: Extract<ToEngine, { header: 'SEND_KV' }>): void {
    try {
      this.handoff.pushHandoffKv(requestId, decodeInstanceMeta.map(wireToPlain), cachedPrefixBlocks);
    } catch (error) {
      this.fail(requestId, reasonOf(error), false);
    }
  }

  private decode({ requestId, prompt, sampling, kvMeta, sourceBlockIds }: SubmitRequestWithKv): void {
    if (this.decoding.has(requestId)) return;
    let added: Promise<Finished>;
    let decoding: Decoding | null = null;
    try {
      const tokens = this.tokensOf(prompt);
      const streams = sampling.get('streaming') === true;
      decoding = { promptLength: tokens.length, streams, isSettled: false, isRead: false };
      this.decoding.set(requestId, decoding);
      const samplingParams = wireToRecord(sampling);
      this.options.onHandoff?.({ requestId, prompt: Int32Array.from(tokens), samplingParams });
      added = this.handoff.addRequestWithKvHandoff(
        requestId,
        tokens,
        samplingParams,
        wireToPlain(decodeValue(kvMeta)) as Readonly<Record<string, unknown>>,
        wireToPlain(decodeValue(sourceBlockIds)) as readonly number[],
      );
    } catch (error) {
      // It never became a request here: nothing reads its source.
      this.decoding.delete(requestId);
      return this.fail(requestId, reasonOf(error));
    }
    const entry = decoding;
    added.then(
      (finished) => {
        try {
          this.finish(requestId, entry.promptLength, sampling, finished);
        } catch (error) {
          this.fail(requestId, reasonOf(error), entry.isRead);
        }
        this.settle(requestId, entry);
      },
      // Why it failed was told by the notice.
      () => this.settle(requestId, entry),
    );
  }

  private finish(requestId: number, promptLength: number, sampling: WireMap, finished: Finished): void {
    this.flushPartials();
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
    this.connection.say({ header: 'ENGINE_REPLY', replies });
  }

  private settle(requestId: number, decoding: Decoding): void {
    decoding.isSettled = true;
    if (decoding.isRead && this.decoding.get(requestId) === decoding) this.decoding.delete(requestId);
  }

  private tokensOf(prompt: Uint8Array): readonly number[] {
    const value = decodeValue(prompt, 'prompt');
    if (typeof value === 'string') {
      if (this.options.tokenize === undefined) throw argumentError('prompt', 'token ids', value);
      return this.options.tokenize(value);
    }
    const isToken = (token: Wire): boolean => typeof token === 'number' && token >= 0 && token < 2 ** 31;
    if (!Array.isArray(value) || !(value as readonly Wire[]).every(isToken))
      throw argumentError('prompt', 'token ids', value);
    return value as readonly number[];
  }

  private fail(requestId: number, reason: string, sourceSafe = true): void {
    this.connection.say({ header: 'REQUEST_ERROR', requestId, reason, sourceSafe });
  }

  private flushPartials(): void {
    if (this.partials.length === 0) return;
    const { partials } = this;
    this.partials = [];
    this.connection.say({ header: 'ENGINE_REPLY_PARTIAL', partials });
  }

  /** The coordinator has told, or will never hear of, everybody who waited. What is being imported is its to abort. */
  private forsake(): void {
    this.partials = [];
    for (const { abort } of this.computing.values()) abort.abort();
    if (this.role !== 'decode') return;
    unlessClosed(() => {
      for (const { requestId, state } of this.handoff.inspect().imports) {
        if (state === 'admitted' && isMintedLabel(requestId) && this.decoding.has(requestId))
          this.handoff.abortKvHandoff(requestId);
      }
    });
  }

  private isPinned(requestId: number): boolean {
    return this.refs.has(requestId) || this.handoff.inspect().pins.some((pin) => pin.requestId === requestId);
  }

  private listen(on: boolean): void {
    const change = on ? 'on' : 'off';
    for (const [name, listener] of Object.entries(this.listeners))
      this.handoff[change](name as keyof StateHandoffEvents, listener as never);
  }

  private readonly listeners: Partial<StateHandoffEvents> = {
    kvReadDone: (notice) =>
      this.about(notice, (requestId, decoding) => {
        this.connection.say({ header: 'KV_READ_DONE', requestId });
        decoding.isRead = true;
        if (decoding.isSettled) this.decoding.delete(requestId);
      }),
    kvTransferReady: (notice) =>
      this.about(notice, (requestId) => {
        const { cachedPrefixBlocks } = notice;
        this.connection.say({ header: 'KV_TRANSFER_READY', requestId, cachedPrefixBlocks });
      }),
    requestError: (notice) =>
      this.about(notice, (requestId) => this.fail(requestId, notice.error.message, notice.sourceSafe)),
    requestAborted: (notice) =>
      this.about(notice, (requestId) =>
        this.connection.say({ header: 'REQUEST_ABORTED', requestId, sourceSafe: notice.sourceSafe }),
      ),
    released: ({ requestId }) => {
      if (isMintedLabel(requestId)) this.refs.delete(requestId);
    },
  };

  private about({ requestId }: ImportNotice, tell: (requestId: number, decoding: Decoding) => void): void {
    const decoding = isMintedLabel(requestId) ? this.decoding.get(requestId) : undefined;
    if (decoding !== undefined) tell(requestId as number, decoding);
  }
}

function reasonOf(error: unknown): string {
  return isHandoffError(error) || error instanceof Error ? error.message : String(error);
}

/** After the handoff was closed there is nothing left to end. */
function unlessClosed(call: () => void): void {
  try {
    call();
  } catch (error) {
    if (!isHandoffError(error) || error.code !== 'CLOSED') throw error;
  }
}
