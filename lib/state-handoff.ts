/**
 * The class a host engine embeds: wires the roles, the log and the transports together and decides little itself.
 *
 * Call `pollPendingKvImports` / `pollPendingKvPushes` each step (or when `wake` fires) and `scheduleWaitingRequests`
 * where the engine schedules. Nothing here blocks; listeners are called when the call that caused a notice is over.
 */
import { EventEmitter } from 'eventemitter3';
import { requireObject } from './argument-shape.js';
import type { InstanceCard } from './compatibility.js';
import type { LogRecord, RankGroup } from './control/rank-group.js';
import type { DecodeSide } from './decode/decode-side.js';
import type { EngineContext, Fence, Finished, PrefillContext, RequestId, SamplingParams } from './engine-context.js';
import { engineCallError, messageOf } from './engine-call-error.js';
import { argumentError, HandoffError, isHandoffError } from './errors.js';
import type { HandoffRef, StateHandoffEvents } from './events.js';
import { isRecord } from './json.js';
import { BlockPool } from './memory/block-pool.js';
import { Notices } from './notices.js';
import { inspectionOf, loadOf, type Inspection, type Load } from './observe/inspection.js';
import type { MetricsSnapshot } from './observe/metrics.js';
import { compileOptions, type CompiledOptions, type StateHandoffOptions } from './options.js';
import { giveBack, type FinishedPrefill } from './prefill/finished-prefill.js';
import { refusedMemory, type PrefillSide, type PreparedHandoffs } from './prefill/prefill-side.js';
import {
  checkBlockCount,
  checkDeadline,
  checkFence,
  checkLabel,
  checkName,
  checkPrepared,
  checkPrompt,
  checkResult,
  checkSalt,
  checkSamplingParams,
  checkSignal,
  travelling,
  withTravelling,
  requireReady,
  refOf,
  requireOwner,
} from './request-input.js';
import type { LogCarrier } from './schedule-log.js';
import { buildTransports, generationsOf, type Backend } from './setup/build-transports.js';
import { checkContext, type Role } from './setup/check-context.js';
import { describeRanks, instanceCard } from './setup/instance-description.js';
import { startRunning, type Running } from './setup/running.js';
import type { Ticket } from './ticket.js';
import { parseInstanceMeta } from './transfer/peer-description.js';
import type { Transport } from './transfer/transport.js';

export interface SetupOptions {
  /** The ranks of this instance; absent or null for one rank. */
  readonly group?: RankGroup | null;
  /**
   * What carries the ordered log over the ranks: `group` (default with a group; rank 0 publishes one frame a step) or
   * `host` (the engine's own broadcast carries what `drainHandoffCompletionNotifications` gives).
   */
  readonly carrier?: 'group' | 'host';
  /**
   * Decode, where several source ranks hold the same heads: `first` reads from the one with the smallest global rank
   * (default, the reference's rule), `spread` a share of the blocks from each. A push always follows the first.
   */
  readonly balance?: 'first' | 'spread';
}

export interface AddOptions {
  /** Rank 0 only: aborts the request. */
  readonly signal?: AbortSignal | null;
  /** Separates prefix-cache entries of equal tokens (media key, adapter, …); spec 3.3. */
  readonly cacheSalt?: string | null;
  /** Hashes of the prompt's complete blocks, when the caller has them. */
  readonly blockHashes?: BigInt64Array | null;
}

export class StateHandoff extends EventEmitter<StateHandoffEvents> {
  private readonly options: CompiledOptions;
  private running: Running | null = null;
  private trackingGroup: RankGroup | null = null;
  private state: 'new' | 'settingUp' | 'running' | 'draining' | 'closed' = 'new';
  private readonly notices = new Notices(this, () => (this.running?.log.rank ?? 0) === 0);

  private readonly engine: EngineContext;

  /**
   * Cheap: builds no transport.
   *
   * @param engine - an `EngineContext` for decode; for prefill a `PrefillContext` is enough
   * @throws `OPTION_INVALID`, `ENGINE_CONTEXT_INVALID`
   */
  constructor(engine: EngineContext | PrefillContext, options: StateHandoffOptions = {}) {
    super();
    // Decode's methods are called on decode only, and its setup refuses an engine that lacks one.
    this.engine = engine as EngineContext;
    this.options = compileOptions(options, usableBlocks(this.engine));
  }

  // --- setup ---------------------------------------------------------------------------------------------------------

  /**
   * Builds transports and describes this rank. Collective: every rank of the group calls it once.
   *
   * @param backend - `auto`, a name, a transport, or an order of them, preferred first; each pair of ranks uses the first
   *   that both have and that reaches from one to the other. What this machine lacks is left out, unless it was asked for
   *   by itself.
   * @throws (rejects) `ENGINE_CONTEXT_INVALID`, `PREFIX_CACHING_REQUIRED`, `SSM_CACHE_ON_DECODE`, `ARGUMENT_INVALID`,
   *   `ALREADY_SET_UP`, `INCOMPATIBLE`, `NO_TRANSPORT`, `TRANSPORT_UNAVAILABLE`; a later call may try again
   */
  async setupKvTransfer(role: Role, backend: Backend = 'auto', options: SetupOptions = {}): Promise<void> {
    if (this.state !== 'new') {
      throw new HandoffError(
        this.state === 'closed' ? 'CLOSED' : 'ALREADY_SET_UP',
        `setupKvTransfer: expected a new StateHandoff, this one is ${this.state}`,
      );
    }
    if (role !== 'prefill' && role !== 'decode') throw argumentError('role', "'prefill' or 'decode'", role);
    checkSetupOptions(options);
    const group = options.group ?? this.trackingGroup;
    const carrier = chooseCarrier(options.carrier, group);
    checkContext(this.engine, role);
    this.state = 'settingUp';
    const transports: Transport[] = [];
    try {
      const built = await buildTransports(backend, this.engine, role);
      transports.push(...built.open.map(({ transport }) => transport));
      const description = await describeRanks(this.engine, role, carrier, transports, this.options, group);
      if (this.isClosed()) throw new HandoffError('CLOSED', 'this StateHandoff was closed while it was being set up');
      this.running = startRunning({
        role,
        context: this.engine,
        options: this.options,
        built,
        description,
        group,
        carrier,
        notices: this.notices,
        balance: options.balance ?? 'first',
      });
      this.state = 'running';
    } catch (error) {
      for (const transport of transports) await transport.close().catch(() => undefined);
      if (!this.isClosed()) this.state = 'new';
      throw error;
    }
    for (const transport of transports) transport.onWake = () => this.notices.tell('wake');
    if (group !== null) group.onWake = () => this.notices.tell('wake');
  }

  /** Gives the ranks a way to report, before setup; the same as `setupKvTransfer`'s `group`. @throws `ALREADY_SET_UP` */
  setupHandoffCompletionTracking(group: RankGroup): void {
    if (this.state !== 'new')
      throw new HandoffError('ALREADY_SET_UP', 'setupHandoffCompletionTracking: expected before setupKvTransfer');
    this.trackingGroup = group;
  }

  // --- prefill -------------------------------------------------------------------------------------------------------

  /**
   * Prefill. Takes a permit for the pin that `requestId` will need, before its prefill is scheduled; false: not now.
   *
   * @throws `CAPACITY_NEVER_FITS` when it exceeds the bound itself, `ARGUMENT_INVALID`
   */
  tryPinPermit(requestId: RequestId, blockCount: number): boolean {
    const { prefill } = this.requireRole('prefill');
    checkBlockCount(blockCount);
    if (this.state === 'draining') return false;
    return prefill.role.ledger.tryPermit(requestId, blockCount);
  }

  /** Prefill. Gives back a permit whose request will not be handed off. False when there was none. */
  dropPinPermit(requestId: RequestId): boolean {
    return this.requireRole('prefill').prefill.role.ledger.dropPermit(requestId);
  }

  /**
   * Prefill. Checks all requests that finished in a step. On any error every one's blocks and slot are given back, the
   * regular ones' too (spec 6.2); the engine must not clean them up again.
   *
   * @throws `NOT_SET_UP`, `RESUME_TOKENS_INVALID`, `BLOCK_COUNT_MISMATCH`, `SSM_METADATA_INVALID`, `ARGUMENT_INVALID`
   */
  prepareHandoffMetadataBatch(finished: readonly FinishedPrefill[]): PreparedHandoffs {
    if (this.isClosed() || this.running?.role !== 'prefill') {
      // Nothing can be handed off, and nothing may leak: the batch's memory goes back as after any other error.
      giveBack(this.engine, finished, (error) => this.notices.tell('warning', { message: refusedMemory, error }));
    }
    return this.requireRole('prefill').prefill.prepare(finished);
  }

  /**
   * Prefill. Pins a prepared request's blocks (+1 reference) and takes its slot over, before the engine's own cleanup.
   *
   * @param options.ready - completes when the state is really in place. Until then `encodeTicket` refuses the ticket
   *   (`ticketReady` tells when), pushes of it wait, and so does an import of it inside this process
   * @throws `UNKNOWN_REQUEST`, `DUPLICATE_REQUEST`, `PIN_LIMIT`, `ARGUMENT_INVALID`; nothing is pinned then, and blocks and
   *   slot are the engine's to clean up
   */
  captureHandoffMeta(
    request: RequestId | { readonly requestId: RequestId },
    prepared: PreparedHandoffs,
    options: { readonly ready?: Fence | null } = {},
  ): Ticket {
    const { prefill } = this.requireRole('prefill');
    if (request === null) throw argumentError('request', 'a label, or an object with `requestId`', request);
    const requestId = typeof request === 'object' ? request.requestId : request;
    checkPrepared(prepared);
    requireObject('options', options);
    const ready = checkFence(options.ready, 'options.ready');
    return this.notices.call(() => prefill.capture(requestId, prepared, ready));
  }

  /**
   * Prefill, two-sided transports (SEND_KV): sends a pinned request's state, without its first `cachedPrefixBlocks`
   * blocks, to the decode instance that registered `decodeMetas`. Nothing pinned under that name: a warning.
   *
   * @throws `ARGUMENT_INVALID`, `HANDOFF_FENCED`, `HANDOFF_UNKNOWN`, `DUPLICATE_REQUEST`, `TICKET_INVALID`, `NOT_RANK_ZERO`
   */
  pushHandoffKv(
    target: RequestId | HandoffRef,
    decodeMetas: readonly unknown[],
    cachedPrefixBlocks = 0,
    decode: { readonly instance: string; readonly incarnation: string } | null = null,
  ): void {
    const { prefill, log } = this.requireRole('prefill');
    this.notices.call(() => {
      const pin = prefill.find(target);
      if (pin === undefined || pin.state === 'draining') {
        this.notices.tell('warning', {
          message: 'pushHandoffKv: nothing is pinned under that name; nothing was sent',
          error: null,
        });
        return;
      }
      prefill.requireWhole();
      prefill.role.checkPush(pin, cachedPrefixBlocks);
      const targets = log.carrier === 'group' ? travelling(decodeMetas, 'decodeMetas') : decodeMetas;
      if (decode !== null) {
        checkName(decode.instance, 'decode.instance');
        checkName(decode.incarnation, 'decode.incarnation');
      }
      parseInstanceMeta(targets, decode === null ? 'decode' : `${decode.instance}/${decode.incarnation}`);
      log.submit({
        kind: 'push',
        handoffId: pin.handoffId,
        targets,
        cachedPrefixBlocks,
        targetInstance: decode?.instance ?? null,
        targetIncarnation: decode?.incarnation ?? null,
      });
    });
  }

  /**
   * Prefill, with an allocator of the engine's own: these blocks (and slots) get a new owner. Call it before the new
   * owner's first write; a reader that comes later is then noticed. `BlockPool` and `SsmSlotPool` do it by themselves.
   *
   * @throws `ARGUMENT_INVALID` for an allocator without `generations`, and for ours
   */
  blocksReused(blocks: Int32Array, slots: Int32Array = new Int32Array(0)): void {
    const { blocks: pool, slots: slotPool } = this.engine;
    if (pool instanceof BlockPool) throw argumentError('engine.blocks', "an allocator of the engine's own", pool);
    const blockGenerations = generationsOf(pool);
    const slotGenerations = generationsOf(slotPool);
    if (blockGenerations === null) throw argumentError('engine.blocks.generations', 'a Generations', blockGenerations);
    if (slots.length > 0 && slotGenerations === null)
      throw argumentError('engine.slots.generations', 'a Generations', null);
    blockGenerations.advance(blocks);
    if (slots.length > 0) slotGenerations?.advance(slots);
  }

  /** Prefill, each step: progress of pushes, fences and pins. Returns how many pushes are not over. */
  pollPendingKvPushes(): number {
    const { prefill } = this.requireRole('prefill');
    return this.notices.call(() => {
      prefill.poll();
      return prefill.role.pendingPushCount;
    });
  }

  get pendingKvPushCount(): number {
    return this.running?.prefill?.role.pendingPushCount ?? 0;
  }

  /**
   * Prefill, rank 0. Ends a pin; while a push of it is in flight, when that is over. False when there is none (any more):
   * a repeated release is a no-op.
   *
   * @throws `HANDOFF_FENCED` for another instance or incarnation, `NOT_RANK_ZERO`
   */
  releaseHandoffBlocks(target: RequestId | HandoffRef): boolean {
    const { prefill, log } = this.requireRole('prefill');
    if (log.carrier === 'group') log.requireRankZero('releaseHandoffBlocks');
    return this.notices.call(() => {
      const pin = prefill.find(target);
      if (pin === undefined) return false;
      log.submit({ kind: 'release', handoffId: pin.handoffId, reason: 'released' });
      return true;
    });
  }

  /**
   * Prefill, rank 0. First claim wins, the same owner again is granted, a fenced handoff or a terminated owner is not.
   *
   * @param owner - non-empty; a decode instance is `instance/incarnation`, so that `attestInstanceDead` finds it
   */
  claimHandoff(ref: HandoffRef, owner: string): boolean {
    const { prefill, log } = this.requireRole('prefill');
    requireOwner(owner);
    log.requireRankZero('claimHandoff');
    return this.notices.call(() => {
      try {
        const pin = prefill.find(ref);
        return pin !== undefined && prefill.role.ledger.claim(pin, owner);
      } catch (error) {
        if (isHandoffError(error) && error.code === 'HANDOFF_FENCED') return false;
        throw error;
      }
    });
  }

  /**
   * Prefill, rank 0. Attests that `owner` and all decode ranks it drove have ended and cannot come back; releases what it
   * claimed and fences it from further claims. Returns how many pins that was.
   */
  releaseOwner(owner: string): number {
    const { prefill, log } = this.requireRole('prefill');
    requireOwner(owner);
    log.requireRankZero('releaseOwner');
    return this.notices.call(() => {
      const owned = prefill.role.ledger.terminateOwner(owner).filter((pin) => pin.state !== 'draining');
      // Called on rank 0 alone, whatever the carrier: the others must hear of it.
      for (const pin of owned) log.decide({ kind: 'release', handoffId: pin.handoffId, reason: 'attested' });
      return owned.length;
    });
  }

  /**
   * Rank 0. Attests that every process of that instance has ended: what only it could touch is quiet.
   *
   * @throws `NOT_RANK_ZERO`, `ARGUMENT_INVALID` for what is no name
   */
  attestInstanceDead(instance: string, incarnation: string): void {
    const { log, prefill } = this.requireRunning();
    log.requireRankZero('attestInstanceDead');
    checkName(instance, 'instance');
    checkName(incarnation, 'incarnation');
    this.notices.call(() => {
      log.decide({ kind: 'attest-dead', instance, incarnation });
      if (prefill !== null) this.releaseOwner(`${instance}/${incarnation}`);
    });
  }

  // --- decode --------------------------------------------------------------------------------------------------------

  /**
   * Decode, rank 0 (with the `host` carrier: every rank, in the broadcast's order). Takes over a request that another
   * engine prefilled. Settles exactly once: with what the engine finished, or with the error that `requestError` or
   * `requestAborted` also tells.
   *
   * @throws synchronously only for programming errors: `NOT_SET_UP`, `WRONG_ROLE`, `CLOSED`, `NOT_RANK_ZERO`; with the
   *   `group` carrier `HANDOFF_NOT_READY` for a ticket of this very process before its `ticketReady`
   */
  addRequestWithKvHandoff(
    requestId: RequestId,
    prompt: readonly number[] | Int32Array,
    samplingParams: SamplingParams,
    kvMeta: Readonly<Record<string, unknown>>,
    sourceBlockIds: readonly number[],
    options: AddOptions | null = {},
  ): Promise<Finished> {
    const { decode, log, metrics } = this.requireRole('decode');
    if (log.carrier === 'group') {
      log.requireRankZero('addRequestWithKvHandoff');
      requireReady(kvMeta);
    }
    const { signal: givenSignal, cacheSalt, blockHashes } = options ?? {};
    if ((givenSignal ?? null) !== null) log.requireRankZero('a signal');
    return this.notices.call(() => {
      try {
        if (this.state === 'draining')
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
        const identity = { attemptId: 0, requestId, source: refOf(kvMeta) };
        this.notices.tellControlPlane('requestError', { ...identity, error, sourceSafe: true });
        // A source without an identity is known by its label alone, and that label's first request still reads it.
        const isLabelOfLiving = identity.source === null && error.code === 'DUPLICATE_REQUEST';
        if (!isLabelOfLiving && !decode.isReading(identity.source))
          this.notices.tellControlPlane('kvReadDone', identity);
        return Promise.reject(error);
      }
    });
  }

  /** Decode, rank 0. Tells the source that this handoff was refused before it became a request here. */
  rejectKvHandoff(requestId: RequestId, kvMeta: Readonly<Record<string, unknown>>): void {
    const { decode, log, metrics } = this.requireRole('decode');
    log.requireRankZero('rejectKvHandoff');
    this.notices.call(() => {
      metrics.importOutcome('refused');
      const source = refOf(kvMeta);
      if (!decode.isReading(source)) this.notices.tellControlPlane('kvReadDone', { attemptId: 0, requestId, source });
    });
  }

  /**
   * Decode, rank 0. Waiting: ends at once; in transfer: ends when all ranks agree; admitted: the engine ends it. False
   * when no living request has that label.
   *
   * @throws `NOT_RANK_ZERO`
   */
  abortKvHandoff(requestId: RequestId): boolean {
    const { decode, log } = this.requireRole('decode');
    log.requireRankZero('abortKvHandoff');
    return this.notices.call(() => decode.abort(requestId));
  }

  /**
   * Decode, each step or on `wake`: progress, reports and, on rank 0, decisions. Never changes the running batch; with
   * more than one rank changes no allocator either. Returns how many imports could be admitted now.
   */
  pollPendingKvImports(): number {
    const { decode, log } = this.requireRole('decode');
    return this.notices.call(() => {
      decode.poll();
      if (log.carrier === 'local') decode.role.drainQueue();
      return decode.role.agreed.size;
    });
  }

  /**
   * The scheduling point of a group: rank 0 publishes the step's frame, a worker applies it. Called by
   * `admitPendingKvImports`; a prefill engine of several ranks calls it itself. False when a worker's frame has not come.
   */
  beginStep(): boolean {
    const { log } = this.requireRunning();
    return this.notices.call(() => log.beginStep());
  }

  /** Whether `beginStep` would find its frame. */
  get stepReady(): boolean {
    return this.requireRunning().log.stepReady;
  }

  /**
   * Decode, at the scheduling point only: gives agreed imports to the engine, in order, while it has room. Returns how
   * many; -1 when this worker's frame has not come, and then nothing happened.
   *
   * @throws `ENGINE_FATAL` after a two-sided transfer failed with memory in doubt
   */
  admitPendingKvImports(): number {
    const { decode, log } = this.requireRole('decode');
    return this.notices.call(() => {
      if (!log.beginStep()) return -1;
      decode.role.drainQueue();
      return decode.role.admit();
    });
  }

  /**
   * Decode: `admitPendingKvImports`, and the rule that decode never runs a prompt.
   *
   * @param waitingPromptCount - prompts in the engine's own waiting queue
   * @throws `PROMPT_ON_DECODE`
   */
  scheduleWaitingRequests(waitingPromptCount: number): number {
    this.requireRole('decode');
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

  /** Decode. The engine finished an admitted request. @throws `UNKNOWN_REQUEST` */
  finishRequest(attemptId: number, result: Omit<Finished, 'requestId' | 'attemptId'>): void {
    const { decode } = this.requireRole('decode');
    this.notices.call(() => decode.role.finish(attemptId, checkResult(result)));
  }

  /** Decode. The engine failed an admitted request. @throws `UNKNOWN_REQUEST` */
  failRequest(attemptId: number, error: Error): void {
    const { decode } = this.requireRole('decode');
    const failure = isHandoffError(error)
      ? error
      : new HandoffError('ENGINE_FAILED', messageOf(error), { cause: error });
    this.notices.call(() => decode.role.engineFail(attemptId, failure));
  }

  get pendingKvImportCount(): number {
    return this.running?.decode?.pendingCount ?? 0;
  }

  get hasAdmittableKvImport(): boolean {
    return (this.running?.decode?.role.agreed.size ?? 0) > 0;
  }

  /** Rank 0, `host` carrier: what the host engine's next broadcast must carry. @throws `LOG_CARRIER_MIXED`, `NOT_RANK_ZERO` */
  drainHandoffCompletionNotifications(): readonly LogRecord[] {
    const { log } = this.requireRunning();
    log.requireRankZero('drainHandoffCompletionNotifications');
    return log.drainNotifications();
  }

  /** Every rank, `host` carrier: a notification at its place in the broadcast. @throws `LOG_CARRIER_MIXED`, `UNKNOWN_REQUEST` */
  recordHandoffCompletionNotification(record: LogRecord): void {
    const { log } = this.requireRunning();
    this.notices.call(() => log.record(record));
  }

  /**
   * Rank 0. Brings a message of the host's own to every rank, this one too, in the order of the log: each is told it by
   * `carried` in the step that carries it (one rank: at once).
   *
   * @param message - plain data: numbers, text, bytes, `Int32Array`, `BigInt64Array`, lists and maps
   * @throws `NOT_RANK_ZERO`, `ARGUMENT_INVALID` naming what cannot travel
   */
  carry(message: Readonly<Record<string, unknown>>): void {
    const { log } = this.requireRunning();
    log.requireRankZero('carry');
    if (!isRecord(message)) throw argumentError('message', 'a map of plain data', message);
    const carried = log.carrier === 'local' ? message : travelling(message, 'message');
    this.notices.call(() => log.decide({ kind: 'carried', message: carried }));
  }

  /** What brings the log to the ranks: `local` for one rank. @throws `NOT_SET_UP` */
  get carrier(): 'local' | 'group' | 'host' {
    return this.requireRunning().log.carrier;
  }

  /** This process among the ranks of its instance. @throws `NOT_SET_UP` */
  get rank(): number {
    return this.requireRunning().log.rank;
  }

  /**
   * The weights changed. Tickets made from now on carry the new epoch; decode refuses those of another, and ends what waits
   * or is on its way with one (`EPOCH_MISMATCH`). Every rank, at the same place of the engine's schedule. Cached blocks are
   * the engine's: it clears its prefix cache first, or salts it by epoch.
   *
   * @throws `ARGUMENT_INVALID`
   */
  setGenerationEpoch(epoch: number): void {
    if (!Number.isSafeInteger(epoch) || epoch < 0) throw argumentError('epoch', 'an integer of at least 0', epoch);
    this.options.epoch = epoch;
    const { running } = this;
    if (running?.decode) this.notices.call(() => running.decode?.role.applyEpoch());
  }

  // --- ends ------------------------------------------------------------------------------------------------------------

  /**
   * Cancels what waits, ends what is on its way, and resolves when this engine's memory is its own again, quarantine
   * included. The deadline (default 30,000 ms) is the options' clock's: somebody has to move a simulated one. With several
   * ranks the engine must go on stepping meanwhile.
   *
   * @throws (rejects) `MEMORY_IN_DOUBT`, `HANDOFF_STILL_PINNED`; what is in doubt stays as it is
   */
  async resetPendingKvImports(options: { readonly deadlineMs?: number } = {}): Promise<void> {
    requireObject('options', options);
    const running = this.requireRunning();
    const { decode, prefill, log } = running;
    const deadline = this.options.clock.now() + checkDeadline(options.deadlineMs, 30_000);
    if (decode !== null && log.rank === 0) {
      this.notices.call(() => decode.abortAll());
    }
    const inDoubt = (): number =>
      (decode?.pendingCount ?? 0) + (decode?.role.quarantined.size ?? 0) + (prefill?.role.pendingPushCount ?? 0);
    for (this.pollOnce(running); inDoubt() > 0; this.pollOnce(running)) {
      if (this.options.clock.now() >= deadline) break;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    const doubtful = inDoubt();
    if (doubtful > 0) {
      throw new HandoffError(
        'MEMORY_IN_DOUBT',
        `${doubtful} transfers may still access cache storage; wait until they are quiet, or attest that their peers are dead`,
        {
          sourceSafe: false,
          targetSafe: false,
        },
      );
    }
    const pins = prefill?.role.ledger.size ?? 0;
    if (pins > 0) {
      throw new HandoffError(
        'HANDOFF_STILL_PINNED',
        `handoff state of ${pins} requests remains pinned; wait for their release`,
      );
    }
  }

  /** Takes no more, and resolves when nothing is under way or pinned. @throws (rejects) `DRAIN_DEADLINE` */
  async drain(options: { readonly deadlineMs?: number } = {}): Promise<void> {
    requireObject('options', options);
    const running = this.requireRunning();
    const deadline = this.options.clock.now() + checkDeadline(options.deadlineMs, 60_000);
    this.state = 'draining';
    for (this.pollOnce(running); this.openWork(running) > 0; this.pollOnce(running)) {
      if (this.options.clock.now() >= deadline) {
        throw new HandoffError(
          'DRAIN_DEADLINE',
          `${this.openWork(running)} handoffs are still under way or pinned; see inspect()`,
        );
      }
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  /**
   * Lets go of transports and peers. Refuses while memory is in doubt, in transfer or pinned; with `force` open promises
   * are rejected and memory in doubt stays out of use for good.
   *
   * @throws (rejects) `MEMORY_IN_DOUBT`, `HANDOFF_STILL_PINNED`
   */
  async close(options: { readonly force?: boolean } = {}): Promise<void> {
    requireObject('options', options);
    if (this.state === 'closed') return;
    const { running } = this;
    if (running !== null && options.force !== true) this.requireQuiet(running);
    this.state = 'closed';
    if (running === null) return;
    running.decode?.abandon(new HandoffError('CLOSED', 'the engine was closed', { phase: 'decode' }));
    const failures: unknown[] = [];
    running.plans.close();
    for (const transport of running.transports) await transport.close().catch((error: unknown) => failures.push(error));
    running.group?.close();
    this.removeAllListeners();
    if (failures.length > 0 && options.force !== true) throw failures[0];
  }

  // --- views -----------------------------------------------------------------------------------------------------------

  /** Pins, imports, quarantine: ages, owners, states. @throws `NOT_SET_UP` */
  inspect(): Inspection {
    return inspectionOf(this.requireRunning());
  }

  /** What a router scores by. @throws `NOT_SET_UP` */
  load(): Load {
    return loadOf(this.requireRunning());
  }

  /** @throws `NOT_SET_UP` */
  metrics(): MetricsSnapshot {
    return this.requireRunning().metrics.snapshot();
  }

  /** The registration card. @throws `NOT_SET_UP` */
  describeInstance(): InstanceCard {
    const { role, transports, description } = this.requireRunning();
    return instanceCard(this.engine, role, transports, this.options, description);
  }

  /** What a decode instance registers and `pushHandoffKv` takes: one descriptor a rank (spec 1.5.2). @throws `NOT_SET_UP` */
  get instanceMeta(): readonly Readonly<Record<string, unknown>>[] {
    return this.requireRunning().description.instanceMeta;
  }

  /** This instance's identity. */
  get identity(): { readonly instance: string; readonly incarnation: string } {
    return { instance: this.options.instance, incarnation: this.options.incarnation };
  }

  // --- inside ------------------------------------------------------------------------------------------------------------

  /** Gives what ends it, at the moment the request is over: from then on its label may be another request's. */
  private abortOn(signal: AbortSignal, requestId: RequestId): () => void {
    const abort = (): void => {
      try {
        // After `close` there is nothing left to abort, and nobody to tell.
        if (!this.isClosed()) this.abortKvHandoff(requestId);
      } catch {
        // A signal has nobody to throw at; `engineFailed` tells what the engine's method threw.
      }
    };
    signal.addEventListener('abort', abort, { once: true });
    return () => signal.removeEventListener('abort', abort);
  }

  /** Asked again after an await, where the state may have changed. */
  private isClosed(): boolean {
    return this.state === 'closed';
  }

  private pollOnce({ decode }: Running): void {
    if (decode !== null) this.pollPendingKvImports();
    else this.pollPendingKvPushes();
  }

  private openWork({ decode, prefill }: Running): number {
    return (decode?.role.imports.size ?? 0) + (decode?.pendingCount ?? 0) + (prefill?.role.ledger.size ?? 0);
  }

  private requireQuiet({ decode, prefill }: Running): void {
    const moving =
      (decode?.pendingCount ?? 0) + (decode?.role.quarantined.size ?? 0) + (prefill?.role.pendingPushCount ?? 0);
    if (moving > 0) {
      throw new HandoffError(
        'MEMORY_IN_DOUBT',
        `${moving} transfers may still access cache storage; drain first, or close({force: true})`,
        {
          sourceSafe: false,
          targetSafe: false,
        },
      );
    }
    const open = decode?.role.imports.size ?? 0;
    if (open > 0) {
      throw new HandoffError(
        'REQUESTS_OPEN',
        `${open} requests are running and their callers wait; drain first, or close({force: true})`,
      );
    }
    const pins = prefill?.role.ledger.size ?? 0;
    if (pins > 0)
      throw new HandoffError(
        'HANDOFF_STILL_PINNED',
        `handoff state of ${pins} requests remains pinned; drain first, or close({force: true})`,
      );
  }

  private requireRunning(): Running {
    if (this.state === 'closed') throw new HandoffError('CLOSED', 'this StateHandoff was closed');
    if (this.running === null)
      throw new HandoffError('NOT_SET_UP', 'setupKvTransfer has not been called, or has not finished');
    return this.running;
  }

  private requireRole(role: 'prefill'): Running & { readonly prefill: PrefillSide };
  private requireRole(role: 'decode'): Running & { readonly decode: DecodeSide };
  private requireRole(role: Role): Running {
    const running = this.requireRunning();
    if (running.role !== role)
      throw new HandoffError('WRONG_ROLE', `this is a ${running.role} engine; the call belongs to ${role}`);
    return running;
  }
}

function usableBlocks(engine: EngineContext): number {
  const poolSize = (engine as Partial<EngineContext> | null)?.blocks?.poolSize;
  if (!Number.isSafeInteger(poolSize) || (poolSize as number) < 2)
    throw argumentError(
      'engine.blocks.poolSize',
      'at least 2 blocks, the dummy block included',
      poolSize,
      'ENGINE_CONTEXT_INVALID',
    );
  return (poolSize as number) - 1;
}

function checkSetupOptions(options: SetupOptions): void {
  requireObject('options', options);
  for (const key of Object.keys(options)) {
    if (key !== 'group' && key !== 'carrier' && key !== 'balance')
      throw argumentError(`options.${key}`, 'group, carrier or balance', key, 'OPTION_INVALID');
  }
  const { group, balance } = options;
  if (balance !== undefined && balance !== 'first' && balance !== 'spread')
    throw argumentError('options.balance', 'first or spread', balance, 'OPTION_INVALID');
  if (
    group !== undefined &&
    group !== null &&
    (typeof group.allGather !== 'function' || !Number.isSafeInteger(group.size))
  )
    throw argumentError('options.group', 'a RankGroup', group, 'OPTION_INVALID');
}

function chooseCarrier(asked: 'group' | 'host' | undefined, group: RankGroup | null): LogCarrier {
  if (asked === undefined) return group === null || group.size === 1 ? 'local' : 'group';
  if (asked !== undefined && asked !== 'group' && asked !== 'host')
    throw argumentError('options.carrier', 'group or host', asked);
  if (asked === 'group' && group === null)
    throw argumentError('options.group', 'a RankGroup for the group carrier', group);
  return asked;
}
