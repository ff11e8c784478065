/**
 * Connects a host engine's `StateHandoff` to a coordinator: says what it is and holds, takes requests, and tells what became
 * of them. The engine calls `drain` once a step and writes no protocol. Of several ranks, rank 0 has the socket; what others
 * must do too reaches them in the step's frame of the log (law 4). Messages that name a request this engine does not have
 * change nothing.
 */
import type { RequestId } from '../engine-context.js';
import { argumentError, HandoffError } from '../errors.js';
import type { StateHandoffEvents } from '../events.js';
import type { StateHandoff } from '../state-handoff.js';
import { CoordinatedDecodes } from './coordinated-decodes.js';
import { CoordinatedPrefills, reasonOf, unlessClosed, type PrefillWork } from './coordinated-prefills.js';
import type { CoordinatedEngineOptions } from './coordinated-engine-options.js';
import { loadNumbers, statusInterval } from './engine-status.js';
import { heldHandoffs, isMintedLabel } from './held-handoffs.js';
import { plainToWire, wireToPlain, wireToRecord } from './plain-wire.js';
import { promptTokens } from './prompt-tokens.js';
import type { ControlSignal, RegisterRole, SubmitRequest, ToCoordinator, ToEngine } from './protocol/messages.js';
import { EngineConnection } from './zeromq/engine-connection.js';
import { checkConnectMs, checkFunctions, checkOptions, checkProfile, requireFunction } from './option-checks.js';
import { parsePeerEndpoint } from './zeromq/address.js';

/** What every rank does in the same step. */
type Order =
  | ({ readonly order: 'prefill' } & PrefillWork)
  | { readonly order: 'abort'; readonly requestId: number }
  | { readonly order: 'signal'; readonly signal: ControlSignal };

/** Made by {@link CoordinatedEngine.connect}. */
export class CoordinatedEngine {
  private readonly prefills: CoordinatedPrefills;
  private readonly decodes: CoordinatedDecodes;
  /** Null on other ranks than 0. */
  private readonly connection: EngineConnection | null;
  private readonly isAlone: boolean;
  private failure: HandoffError | null = null;
  private readonly handoff: StateHandoff;
  private readonly role: 'prefill' | 'decode';

  /**
   * Registers the engine, and resolves when the coordinator has accepted it. After a lost connection it registers again by
   * itself, with the handoffs it holds; what the coordinator asked for before is aborted.
   *
   * Of several ranks each calls it; ranks other than 0 are connected at once and say nothing.
   *
   * @throws (rejects) `NOT_SET_UP`, `OPTION_INVALID`; `LOG_CARRIER_MIXED` for several ranks whose log the host carries;
   *   `PEER_UNREACHABLE` when nobody accepts it in time; `INCOMPATIBLE` with the coordinator's reason; `ZEROMQ_UNAVAILABLE`
   */
  static async connect(options: CoordinatedEngineOptions): Promise<CoordinatedEngine> {
    checkOptions(options);
    checkOptions(options.handoff, 'options.handoff');
    requireFunction(options.handoff.describeInstance, 'options.handoff.describeInstance');
    checkFunctions(options, ['tokenize', 'onMessage', 'onRejected', 'onSignal', 'onHandoff', 'onFinished', 'onFailed']);
    checkProfile(options.profile);
    checkConnectMs(options.connectMs);
    if (options.curve !== undefined) checkOptions(options.curve, 'options.curve');
    const { handoff } = options;
    const { role } = handoff.describeInstance();
    if (handoff.rank === 0) parsePeerEndpoint(options.address, 'options.address');
    if (handoff.instanceMeta.length > 1 && handoff.carrier === 'host') {
      const message =
        'CoordinatedEngine needs the group carrier: with the host carrier the engine broadcasts its own messages';
      throw new HandoffError('LOG_CARRIER_MIXED', message);
    }
    if (role === 'prefill' && typeof options.prefill !== 'function')
      throw argumentError('options.prefill', 'a function on a prefill engine', options.prefill, 'OPTION_INVALID');
    const engine = new CoordinatedEngine(options);
    engine.listen(true);
    try {
      await engine.connection?.open(options.connectMs ?? 5_000);
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
    this.isAlone = this.handoff.instanceMeta.length === 1;
    this.prefills = new CoordinatedPrefills({
      handoff: this.handoff,
      // Never called on decode; on prefill it is there.
      prefill: options.prefill ?? (() => null),
      maxRequests: card.maxRequests,
      speaks: this.handoff.rank === 0,
      say: (message) => this.say(message),
      spread: (work) => this.order({ order: 'prefill', ...work }),
    });
    this.decodes = new CoordinatedDecodes({ handoff: this.handoff, options, say: (message) => this.say(message) });
    if (this.handoff.rank > 0) {
      this.connection = null;
      return;
    }
    this.connection = new EngineConnection({
      address: options.address,
      profile: options.profile ?? 'multi-frame',
      curve: options.curve,
      identity: options.identity,
      statusMs: statusInterval(options),
      status: () => loadNumbers(this.handoff),
      instance: card.instance,
      register: () => this.registration(),
      onMessage: () => this.options.onMessage?.(),
      onRejected: (error) => this.options.onRejected?.(error),
      onLost: () => this.forsake(),
    });
  }

  /** Rank 0: whether the coordinator knows this engine now; false while the connection is lost. */
  get isRegistered(): boolean {
    return this.connection?.isRegistered ?? false;
  }

  /** Messages of the coordinator that could not be read; each was dropped. */
  get malformed(): number {
    return this.connection?.malformed ?? 0;
  }

  /** Requests of the coordinator that this engine works on or may still read. */
  get openRequests(): number {
    return this.prefills.size + this.decodes.size;
  }

  /** Once a step, before scheduling; nothing to do on other ranks than 0: does what the coordinator asked for, and sends what waits. Returns how many messages came. */
  drain(): number {
    const { connection } = this;
    if (connection === null) return 0;
    let count = 0;
    for (let message = connection.take(); message !== null; message = connection.take(), count++) this.handle(message);
    this.prefills.publishReady();
    this.decodes.flush();
    return count;
  }

  /**
   * Decode: tokens that a request has just generated, for a client that asked for a stream; others are told at the end.
   *
   * @param newLogProbs - one a token
   */
  partial(requestId: RequestId, newTokens: readonly number[], newLogProbs: readonly number[] | null = null): void {
    this.decodes.partial(requestId, newTokens, newLogProbs);
  }

  /** Leaves the coordinator; the handoff and what it holds stay as they are. */
  async close(): Promise<void> {
    this.listen(false);
    this.forsake();
    await this.connection?.close();
  }

  private registration(): RegisterRole {
    const { instance, incarnation, transports } = this.handoff.describeInstance();
    const held = heldHandoffs(this.handoff.inspect());
    for (const { requestId, state } of held) if (state !== 'pinned') this.decodes.adopt(requestId);
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
          ? this.prefills.accept(message.requestId, () => this.workOf(message), this.failure)
          : this.fail(message.requestId, 'this engine decodes only');
      case 'SUBMIT_REQUEST_WITH_KV':
        return this.role === 'decode'
          ? this.decodes.accept(message)
          : this.fail(message.requestId, 'this engine prefills only');
      case 'ABORT_REQUEST':
        if (this.prefills.has(message.requestId)) this.order({ order: 'abort', requestId: message.requestId });
        return this.decodes.abort(message.requestId);
      case 'RELEASE_KV':
        if (this.role === 'prefill') this.handoff.releaseHandoffBlocks(message.requestId);
        return;
      case 'CLAIM_KV': {
        const ref = this.prefills.refOf(message.requestId);
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
        this.order({ order: 'signal', signal: message });
    }
  }

  /** Every rank does it: at once where there is only one, else in the step that carries it. */
  private order(order: Order): void {
    if (this.isAlone) this.obey(order);
    else unlessClosed(() => this.handoff.carry({ coordinator: order }));
  }

  private obey(order: Order): void {
    switch (order.order) {
      case 'prefill':
        return this.prefills.compute(order);
      case 'abort':
        return this.prefills.abort(order.requestId);
      case 'signal':
        this.options.onSignal?.(order.signal);
        if (order.signal.header === 'SET_GENERATION_EPOCH') this.handoff.setGenerationEpoch(order.signal.epoch);
    }
  }

  private workOf({ requestId, prompt, sampling }: SubmitRequest): PrefillWork {
    const samplingParams = wireToRecord(sampling);
    return { requestId, prompt: Int32Array.from(promptTokens(prompt, this.options.tokenize)), samplingParams };
  }

  private push({ requestId, decodeInstanceMeta, cachedPrefixBlocks }: Extract<ToEngine, { header: 'SEND_KV' }>): void {
    try {
      this.handoff.pushHandoffKv(requestId, decodeInstanceMeta.map(wireToPlain), cachedPrefixBlocks);
    } catch (error) {
      this.fail(requestId, reasonOf(error), false);
    }
  }

  private say(message: ToCoordinator): void {
    this.connection?.say(message);
  }

  private fail(requestId: number, reason: string, sourceSafe = true): void {
    this.say({ header: 'REQUEST_ERROR', requestId, reason, sourceSafe });
  }

  /** The coordinator has told, or will never hear of, everybody who waited. What is being imported is its to abort. */
  private forsake(): void {
    for (const requestId of this.prefills.requestIds) {
      if (this.connection === null) this.prefills.abort(requestId);
      else this.order({ order: 'abort', requestId });
    }
    if (this.role === 'decode') this.decodes.forsake();
  }

  private listen(on: boolean): void {
    const change = on ? 'on' : 'off';
    const { carried, ...spoken } = this.listeners;
    const listeners = { ...(this.isAlone ? {} : { carried }), ...(this.connection === null ? {} : spoken) };
    for (const [name, listener] of Object.entries(listeners))
      this.handoff[change](name as keyof StateHandoffEvents, listener as never);
  }

  private readonly listeners: Partial<StateHandoffEvents> = {
    kvReadDone: (notice) =>
      this.decodes.about(notice, (requestId) => {
        this.say({ header: 'KV_READ_DONE', requestId });
        this.decodes.noteRead(requestId);
      }),
    kvTransferReady: (notice) =>
      this.decodes.about(notice, (requestId) => {
        const { cachedPrefixBlocks } = notice;
        this.say({ header: 'KV_TRANSFER_READY', requestId, cachedPrefixBlocks });
      }),
    requestError: (notice) => {
      const tell = (requestId: number): void => this.fail(requestId, notice.error.message, notice.sourceSafe);
      if (this.role === 'decode') this.decodes.about(notice, tell);
      // A push that failed: only its source may know.
      else if (isMintedLabel(notice.requestId) && this.prefills.refOf(notice.requestId) !== undefined)
        tell(notice.requestId);
    },
    requestAborted: (notice) =>
      this.decodes.about(notice, (requestId) =>
        this.say({ header: 'REQUEST_ABORTED', requestId, sourceSafe: notice.sourceSafe }),
      ),
    carried: ({ coordinator }) => {
      if (coordinator !== undefined) this.obey(coordinator as Order);
    },
    engineFailed: (error) => {
      if (this.failure !== null) return;
      this.failure = error;
      for (const requestId of this.prefills.requestIds) this.prefills.fail(requestId, error);
      // Nothing more is to be routed here. What failed with it is told first, in this same call.
      setImmediate(() => void this.connection?.close());
    },
    released: ({ requestId }) => {
      if (isMintedLabel(requestId)) this.prefills.forget(requestId);
    },
  };
}
