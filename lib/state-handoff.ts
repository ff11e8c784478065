/**
 * The class a host engine embeds: wires the roles, the log and the transports together and decides little itself.
 *
 * Call `pollPendingKvImports` / `pollPendingKvPushes` each step (or when `wake` fires) and `scheduleWaitingRequests`
 * where the engine schedules. Nothing here blocks; listeners are called when the call that caused a notice is over.
 */
import { EventEmitter } from 'eventemitter3';
import { DecodeCalls, type AddOptions } from './calls/decode-calls.js';
import { EndingCalls } from './calls/ending-calls.js';
import { Life } from './calls/life.js';
import { LogCalls } from './calls/log-calls.js';
import { PrefillCalls } from './calls/prefill-calls.js';
import { SetupCalls, type SetupOptions } from './calls/setup-calls.js';
import type { InstanceCard } from './compatibility.js';
import type { LogRecord, RankGroup } from './control/rank-group.js';
import type { EngineContext, Fence, Finished, PrefillContext, RequestId, SamplingParams } from './engine-context.js';
import type { HandoffRef, StateHandoffEvents } from './events.js';
import { Notices } from './notices.js';
import { inspectionOf, loadOf, type Inspection, type Load } from './observe/inspection.js';
import type { MetricsSnapshot } from './observe/metrics.js';
import { compileOptions, type CompiledOptions, type StateHandoffOptions } from './options.js';
import type { FinishedPrefill } from './prefill/finished-prefill.js';
import type { PreparedHandoffs } from './prefill/prefill-side.js';
import type { Backend } from './setup/build-transports.js';
import { usableBlocks, type Role } from './setup/check-context.js';
import { instanceCard } from './setup/instance-description.js';
import type { Ticket } from './ticket.js';

export class StateHandoff extends EventEmitter<StateHandoffEvents> {
  private readonly engine: EngineContext;
  private readonly options: CompiledOptions;
  private readonly life = new Life();
  private readonly setup: SetupCalls;
  private readonly prefill: PrefillCalls;
  private readonly decode: DecodeCalls;
  private readonly log: LogCalls;
  private readonly ending: EndingCalls;

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
    const { life } = this;
    const notices = new Notices(this, () => (life.running?.log.rank ?? 0) === 0);
    this.setup = new SetupCalls(life, this.engine, this.options, notices);
    this.prefill = new PrefillCalls(life, this.engine, notices);
    this.decode = new DecodeCalls(life, notices);
    this.log = new LogCalls(life, this.options, notices, this.prefill);
    this.ending = new EndingCalls(life, this.options, notices, this.prefill, this.decode, () =>
      this.removeAllListeners(),
    );
  }

  // --- setup ---------------------------------------------------------------------------------------------------------

  /**
   * Builds transports and describes this rank. Collective: every rank of the group calls it once.
   *
   * @param backend - `auto`, a name, a transport, or an order of them, preferred first; each pair of ranks uses the first
   *   that both have and that reaches from one to the other; one handoff is read or pushed as a whole, by what reaches all
   *   its pairs. What this machine lacks is left out, unless it was asked for by itself.
   * @throws (rejects) `ENGINE_CONTEXT_INVALID`, `PREFIX_CACHING_REQUIRED`, `SSM_CACHE_ON_DECODE`, `ARGUMENT_INVALID`,
   *   `ALREADY_SET_UP`, `INCOMPATIBLE`, `NO_TRANSPORT`, `TRANSPORT_UNAVAILABLE`; a later call may try again
   */
  setupKvTransfer(role: Role, backend: Backend = 'auto', options: SetupOptions = {}): Promise<void> {
    return this.setup.setupKvTransfer(role, backend, options);
  }

  /** Gives the ranks a way to report, before setup; the same as `setupKvTransfer`'s `group`. @throws `ALREADY_SET_UP` */
  setupHandoffCompletionTracking(group: RankGroup): void {
    this.setup.setupHandoffCompletionTracking(group);
  }

  // --- prefill -------------------------------------------------------------------------------------------------------

  /**
   * Prefill. Takes a permit for the pin that `requestId` will need, before its prefill is scheduled; false: not now.
   *
   * @throws `CAPACITY_NEVER_FITS` when it exceeds the bound itself, `ARGUMENT_INVALID`
   */
  tryPinPermit(requestId: RequestId, blockCount: number): boolean {
    return this.prefill.tryPinPermit(requestId, blockCount);
  }

  /** Prefill. Gives back a permit whose request will not be handed off. False when there was none. */
  dropPinPermit(requestId: RequestId): boolean {
    return this.prefill.dropPinPermit(requestId);
  }

  /**
   * Prefill. Checks all requests that finished in a step. On any error every one's blocks and slot are given back, the
   * regular ones' too (spec 6.2); the engine must not clean them up again.
   *
   * @throws `NOT_SET_UP`, `RESUME_TOKENS_INVALID`, `BLOCK_COUNT_MISMATCH`, `SSM_METADATA_INVALID`, `ARGUMENT_INVALID`
   */
  prepareHandoffMetadataBatch(finished: readonly FinishedPrefill[]): PreparedHandoffs {
    return this.prefill.prepareHandoffMetadataBatch(finished);
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
    return this.prefill.captureHandoffMeta(request, prepared, options);
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
    this.prefill.pushHandoffKv(target, decodeMetas, cachedPrefixBlocks, decode);
  }

  /**
   * Prefill, with an allocator of the engine's own: these blocks (and slots) get a new owner. Call it before the new
   * owner's first write; a reader that comes later is then noticed. `BlockPool` and `SsmSlotPool` do it by themselves.
   *
   * @throws `ARGUMENT_INVALID` for an allocator without `generations`, and for ours
   */
  blocksReused(blocks: Int32Array, slots: Int32Array = new Int32Array(0)): void {
    this.prefill.blocksReused(blocks, slots);
  }

  /** Prefill, each step: progress of pushes, fences and pins. Returns how many pushes are not over. */
  pollPendingKvPushes(): number {
    return this.prefill.pollPendingKvPushes();
  }

  get pendingKvPushCount(): number {
    return this.life.running?.prefill?.role.pendingPushCount ?? 0;
  }

  /**
   * Prefill, rank 0. Ends a pin; while a push of it is in flight, when that is over. False when there is none (any more):
   * a repeated release is a no-op.
   *
   * @throws `HANDOFF_FENCED` for another instance or incarnation, `NOT_RANK_ZERO`
   */
  releaseHandoffBlocks(target: RequestId | HandoffRef): boolean {
    return this.prefill.releaseHandoffBlocks(target);
  }

  /**
   * Prefill, rank 0. First claim wins, the same owner again is granted, a fenced handoff or a terminated owner is not.
   *
   * @param owner - non-empty; a decode instance is `instance/incarnation`, so that `attestInstanceDead` finds it
   */
  claimHandoff(ref: HandoffRef, owner: string): boolean {
    return this.prefill.claimHandoff(ref, owner);
  }

  /**
   * Prefill, rank 0. Attests that `owner` and all decode ranks it drove have ended and cannot come back; releases what it
   * claimed and fences it from further claims. Returns how many pins that was.
   */
  releaseOwner(owner: string): number {
    return this.prefill.releaseOwner(owner);
  }

  /**
   * Rank 0. Attests that every process of that instance has ended: what only it could touch is quiet.
   *
   * @throws `NOT_RANK_ZERO`, `ARGUMENT_INVALID` for what is no name
   */
  attestInstanceDead(instance: string, incarnation: string): void {
    this.log.attestInstanceDead(instance, incarnation);
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
    return this.decode.addRequestWithKvHandoff(requestId, prompt, samplingParams, kvMeta, sourceBlockIds, options);
  }

  /** Decode, rank 0. Tells the source that this handoff was refused before it became a request here. */
  rejectKvHandoff(requestId: RequestId, kvMeta: Readonly<Record<string, unknown>>): void {
    this.decode.rejectKvHandoff(requestId, kvMeta);
  }

  /**
   * Decode, rank 0. Waiting: ends at once; in transfer: ends when all ranks agree; admitted: the engine ends it. False
   * when no living request has that label.
   *
   * @throws `NOT_RANK_ZERO`
   */
  abortKvHandoff(requestId: RequestId): boolean {
    return this.decode.abortKvHandoff(requestId);
  }

  /**
   * Decode, each step or on `wake`: progress, reports and, on rank 0, decisions. Never changes the running batch; with
   * more than one rank changes no allocator either. Returns how many imports could be admitted now.
   */
  pollPendingKvImports(): number {
    return this.decode.pollPendingKvImports();
  }

  /**
   * The scheduling point of a group: rank 0 publishes the step's frame, a worker applies it. Called by
   * `admitPendingKvImports`; a prefill engine of several ranks calls it itself. False when a worker's frame has not come.
   */
  beginStep(): boolean {
    return this.log.beginStep();
  }

  /** Whether `beginStep` would find its frame. */
  get stepReady(): boolean {
    return this.life.requireRunning().log.stepReady;
  }

  /**
   * Decode, at the scheduling point only: gives agreed imports to the engine, in order, while it has room. Returns how
   * many; -1 when this worker's frame has not come, and then nothing happened.
   *
   * @throws `ENGINE_FATAL` after a two-sided transfer failed with memory in doubt
   */
  admitPendingKvImports(): number {
    return this.decode.admitPendingKvImports();
  }

  /**
   * Decode: `admitPendingKvImports`, and the rule that decode never runs a prompt.
   *
   * @param waitingPromptCount - prompts in the engine's own waiting queue
   * @throws `PROMPT_ON_DECODE`
   */
  scheduleWaitingRequests(waitingPromptCount: number): number {
    return this.decode.scheduleWaitingRequests(waitingPromptCount);
  }

  /** Decode. The engine finished an admitted request. @throws `UNKNOWN_REQUEST` */
  finishRequest(attemptId: number, result: Omit<Finished, 'requestId' | 'attemptId'>): void {
    this.decode.finishRequest(attemptId, result);
  }

  /** Decode. The engine failed an admitted request. @throws `UNKNOWN_REQUEST` */
  failRequest(attemptId: number, error: Error): void {
    this.decode.failRequest(attemptId, error);
  }

  get pendingKvImportCount(): number {
    return this.life.running?.decode?.pendingCount ?? 0;
  }

  get hasAdmittableKvImport(): boolean {
    return (this.life.running?.decode?.role.agreed.size ?? 0) > 0;
  }

  /** Rank 0, `host` carrier: what the host engine's next broadcast must carry. @throws `LOG_CARRIER_MIXED`, `NOT_RANK_ZERO` */
  drainHandoffCompletionNotifications(): readonly LogRecord[] {
    return this.log.drainHandoffCompletionNotifications();
  }

  /** Every rank, `host` carrier: a notification at its place in the broadcast. @throws `LOG_CARRIER_MIXED`, `UNKNOWN_REQUEST` */
  recordHandoffCompletionNotification(record: LogRecord): void {
    this.log.recordHandoffCompletionNotification(record);
  }

  /**
   * Rank 0. Brings a message of the host's own to every rank, this one too, in the order of the log: each is told it by
   * `carried` in the step that carries it (one rank: at once).
   *
   * @param message - plain data: numbers, text, bytes, `Int32Array`, `BigInt64Array`, lists and maps
   * @throws `NOT_RANK_ZERO`, `ARGUMENT_INVALID` naming what cannot travel
   */
  carry(message: Readonly<Record<string, unknown>>): void {
    this.log.carry(message);
  }

  /** What brings the log to the ranks: `local` for one rank. @throws `NOT_SET_UP` */
  get carrier(): 'local' | 'group' | 'host' {
    return this.life.requireRunning().log.carrier;
  }

  /** This process among the ranks of its instance. @throws `NOT_SET_UP` */
  get rank(): number {
    return this.life.requireRunning().log.rank;
  }

  /**
   * The weights changed. Tickets made from now on carry the new epoch; decode refuses those of another, and ends what waits
   * or is on its way with one (`EPOCH_MISMATCH`). Every rank, at the same place of the engine's schedule. Cached blocks are
   * the engine's: it clears its prefix cache first, or salts it by epoch.
   *
   * @throws `ARGUMENT_INVALID`
   */
  setGenerationEpoch(epoch: number): void {
    this.log.setGenerationEpoch(epoch);
  }

  // --- ends ------------------------------------------------------------------------------------------------------------

  /**
   * Cancels what waits, ends what is on its way, and resolves when this engine's memory is its own again, quarantine
   * included. The deadline (default 30,000 ms) is the options' clock's: somebody has to move a simulated one. With several
   * ranks the engine must go on stepping meanwhile.
   *
   * @throws (rejects) `MEMORY_IN_DOUBT`, `HANDOFF_STILL_PINNED`; what is in doubt stays as it is
   */
  resetPendingKvImports(options: { readonly deadlineMs?: number } = {}): Promise<void> {
    return this.ending.resetPendingKvImports(options);
  }

  /** Takes no more, and resolves when nothing is under way or pinned. @throws (rejects) `DRAIN_DEADLINE` */
  drain(options: { readonly deadlineMs?: number } = {}): Promise<void> {
    return this.ending.drain(options);
  }

  /**
   * Lets go of transports and peers. Refuses while memory is in doubt, in transfer or pinned; with `force` open promises
   * are rejected and memory in doubt stays out of use for good.
   *
   * @throws (rejects) `MEMORY_IN_DOUBT`, `HANDOFF_STILL_PINNED`
   */
  close(options: { readonly force?: boolean } = {}): Promise<void> {
    return this.ending.close(options);
  }

  // --- views -----------------------------------------------------------------------------------------------------------

  /** Pins, imports, quarantine: ages, owners, states. @throws `NOT_SET_UP` */
  inspect(): Inspection {
    return inspectionOf(this.life.requireRunning());
  }

  /** What a router scores by. @throws `NOT_SET_UP` */
  load(): Load {
    return loadOf(this.life.requireRunning());
  }

  /** @throws `NOT_SET_UP` */
  metrics(): MetricsSnapshot {
    return this.life.requireRunning().metrics.snapshot();
  }

  /** The registration card. @throws `NOT_SET_UP` */
  describeInstance(): InstanceCard {
    const { role, transports, description } = this.life.requireRunning();
    return instanceCard(this.engine, role, transports, this.options, description);
  }

  /** What a decode instance registers and `pushHandoffKv` takes: one descriptor a rank (spec 1.5.2). @throws `NOT_SET_UP` */
  get instanceMeta(): readonly Readonly<Record<string, unknown>>[] {
    return this.life.requireRunning().description.instanceMeta;
  }

  /** This instance's identity. */
  get identity(): { readonly instance: string; readonly incarnation: string } {
    return { instance: this.options.instance, incarnation: this.options.incarnation };
  }
}
