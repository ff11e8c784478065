/**
 * The decode side of one rank: carries out what the import table says, record by record.
 *
 * Everything that touches an allocator happens in `apply`, `drainQueue` or `admit`, that is, at a place of the ordered
 * log; `poll` only learns and reports.
 */
import type { Finished, RequestId } from '../engine-context.js';
import { HandoffError } from '../errors.js';
import { invariant } from '../invariant.js';
import { HashOwners } from './hash-owners.js';
import { requestFailure } from './instance-failure.js';
import { importTransition, type ImportEffect, type ImportEvent } from './kv-import.js';
import { LocalTransfer } from './local-transfer.js';
import type { AddRecord, DecodeDependencies } from './decode-dependencies.js';
import { growthBlocks, heldBlocks, immediateEnd, immediateResult } from './admission.js';
import { engineCallError } from '../engine-call-error.js';
import { InFlight } from './in-flight.js';
import { LandingFences } from './landing-fences.js';
import { prefilledRequest, type ImportSource, type PendingImport } from './pending-import.js';
import { nameImportedBlocks } from './block-names.js';
import { releaseReservation, tryReserve, type Reservation } from './reservation.js';

export class DecodeRole {
  readonly imports = new Map<number, PendingImport>();
  readonly hashOwners = new HashOwners();
  /** First in, first out; insertion order is the order. */
  private readonly queue = new Map<number, PendingImport>();
  /** Agreed imports in the order of their decisions. */
  private readonly admittable = new Map<number, PendingImport>();
  private readonly quarantine = new Map<number, PendingImport>();
  /** Reserved imports without a decision. */
  readonly inFlight: InFlight;
  /** Requests whose caller still waits, by label. */
  private readonly labels = new Map<RequestId, PendingImport>();
  /** Growth that reserved and agreed imports may still need. */
  private growthPending = 0;
  private fatal: HandoffError | null = null;
  /** Why the instance as a whole has failed: nothing starts any more. */
  private failure: HandoffError | null = null;
  private readonly landing = new LandingFences();

  constructor(private readonly deps: DecodeDependencies) {
    this.inFlight = new InFlight(deps.blockBytes, deps.slotBytes, deps.options.limits.maxInFlightBytes);
  }

  get queued(): ReadonlyMap<number, PendingImport> {
    return this.queue;
  }

  get agreed(): ReadonlyMap<number, PendingImport> {
    return this.admittable;
  }

  get quarantined(): ReadonlyMap<number, PendingImport> {
    return this.quarantine;
  }

  /** The living request of that label. */
  byLabel(requestId: RequestId): PendingImport | undefined {
    return this.labels.get(requestId);
  }

  /** Blocks that imports which are not admitted yet may still need before they end. */
  get growthReserved(): number {
    return this.growthPending;
  }

  /** Not yet admitted: queued, on the way, or waiting for room. */
  get pendingCount(): number {
    return this.queue.size + this.inFlight.size + this.admittable.size;
  }

  applyAdd(record: AddRecord): void {
    const { context, options } = this.deps;
    invariant(!this.imports.has(record.attemptId), 'an attempt id is minted once', { attemptId: record.attemptId });
    const { prompt } = record;
    let source: ImportSource;
    let refusal: HandoffError | null = null;
    let growth = 0;
    try {
      source = this.deps.parse(record);
      growth = growthBlocks(context, prompt.length, record.samplingParams);
    } catch (error) {
      // Rank 0 accepted it, so the log has it; a rank that sees it otherwise reports a failure like any other.
      refusal = engineCallError(error);
      source = { handoff: null, resumeTokens: [], resumeLogProbs: null, parsed: null, ready: null };
    }
    const promptBlocks = Math.ceil(prompt.length / context.blockSize);
    const pending: PendingImport = {
      attemptId: record.attemptId,
      requestId: record.requestId,
      prompt,
      samplingParams: record.samplingParams,
      source,
      hashes: record.blockHashes,
      promptBlocks,
      continuationBlocks: heldBlocks(context, prompt.length) - promptBlocks,
      growthBlocks: growth,
      needsSlot: context.ssm !== null,
      addedAt: options.clock.now(),
      state: 'queued',
      reservation: null,
      local: null,
      digest: null,
      startedAt: 0,
      inFlightBytes: 0,
      error: refusal,
      endDecided: false,
    };
    this.imports.set(pending.attemptId, pending);
    this.labels.set(pending.requestId, pending);
    this.queue.set(pending.attemptId, pending);
    if (this.failure === null) this.drainQueue();
    else this.expireFailed(pending, this.failure);
  }

  /** An abort or expiry at its place in the log; unknown or finished attempts are no-ops. */
  applyAbort(attemptId: number, reason: 'caller' | 'queue-deadline'): void {
    const pending = this.imports.get(attemptId);
    if (pending === undefined) return;
    if (reason === 'queue-deadline') {
      if (pending.state !== 'queued') return;
      pending.error = new HandoffError(
        'QUEUE_DEADLINE',
        `the handoff waited for capacity longer than ${this.deps.options.deadlines.queueMs} ms; retry when decode has room`,
        { details: { requestId: pending.requestId } },
      );
      this.fire(pending, 'expire');
    } else {
      this.fire(pending, 'abort');
    }
    this.drainQueue();
  }

  /** What all ranks agreed. */
  applyDecision(attemptId: number, failed: boolean, safe: boolean, reason: HandoffError | null): void {
    const pending = this.imports.get(attemptId);
    if (pending === undefined) {
      throw new HandoffError(
        'UNKNOWN_REQUEST',
        `a decision names attempt ${attemptId}, which this rank does not know`,
        {
          details: { attemptId },
        },
      );
    }
    if (pending.state === 'quarantined') {
      if (safe) this.fire(pending, 'nowSafe');
    } else if (failed) {
      pending.error ??=
        (this.failure === null ? pending.local?.error : requestFailure(this.failure, safe)) ??
        reason ??
        new HandoffError('PEER_RANK_FAILED', 'the transfer failed on a model-parallel peer');
      if (!safe && this.deps.transportTraits(pending).fatalWhenUnsafe) this.noteFatal(pending);
      this.fire(pending, safe ? 'failSafe' : 'failUnsafe');
    } else {
      invariant(safe, 'a success is agreed only when every rank is safe', { attemptId });
      if (this.failure !== null) pending.error = requestFailure(this.failure, true);
      else if (this.isOutdated(pending)) pending.error = outdated(pending, this.deps.options.epoch);
      this.fire(pending, pending.error === null ? 'succeed' : 'failSafe');
    }
    this.drainQueue();
  }

  /** The weights changed: what other weights computed is not taken over. What is in transfer ends at its decision. */
  applyEpoch(): void {
    for (const pending of [...this.queue.values(), ...this.admittable.values()]) {
      if (!this.isOutdated(pending)) continue;
      pending.error = outdated(pending, this.deps.options.epoch);
      this.fire(pending, 'expire');
    }
    this.drainQueue();
  }

  /**
   * The instance has failed. What waits ends here; what is on its way ends at its decision, and its memory on proof.
   * Nothing is admitted any more.
   */
  applyInstanceFailure(failure: HandoffError): void {
    if (this.failure !== null) return;
    this.failure = failure;
    this.stop(failure);
    for (const pending of [...this.queue.values(), ...this.admittable.values()]) this.expireFailed(pending, failure);
  }

  /** Nothing is admitted any more. Changes no allocator. */
  stop(failure: HandoffError): void {
    if (this.fatal === failure) return;
    this.fatal ??= failure;
    this.deps.notices.instanceFailed(failure);
  }

  /** @throws what the instance has failed of, for a request that comes too late */
  requireWhole(): void {
    if (this.failure !== null) throw requestFailure(this.failure, true);
  }

  private expireFailed(pending: PendingImport, failure: HandoffError): void {
    pending.error = requestFailure(failure, true);
    this.fire(pending, 'expire');
  }

  private isOutdated({ source }: PendingImport): boolean {
    return source.handoff !== null && source.handoff.epoch !== this.deps.options.epoch;
  }

  /** Attested: all processes of that source are dead. Local: what it makes quiet is reported like anything else. */
  applyAttestation(instance: string, incarnation: string): void {
    for (const pending of this.imports.values()) {
      const { handoff } = pending.source;
      if (handoff?.instance === instance && handoff.incarnation === incarnation) {
        this.deps.transfers.attestDead(pending.attemptId, this.deps.options.clock.now());
      }
    }
  }

  /** Starts what can start, in order; the first that cannot blocks those behind it (invariant I5). */
  drainQueue(): void {
    for (const pending of this.queue.values()) {
      if (!this.tryStart(pending)) return;
    }
  }

  /** At the scheduling point only. Returns how many the engine took or completed. @throws `ENGINE_FATAL` */
  admit(): number {
    if (this.fatal !== null) throw this.fatal;
    const { context } = this.deps;
    let count = 0;
    for (const pending of this.admittable.values()) {
      const reservation = pending.reservation;
      invariant(reservation !== null, 'an agreed import owns its reservation', { attemptId: pending.attemptId });
      const request = prefilledRequest(pending, reservation);
      if (immediateEnd(context, request) !== null) this.fire(pending, 'completeWithoutForward');
      else if (context.canAdmitPrefilledDecode(request)) this.fire(pending, 'admit');
      else break;
      count += 1;
    }
    if (count > 0) this.drainQueue();
    return count;
  }

  /** @throws `UNKNOWN_REQUEST` */
  finish(attemptId: number, result: Omit<Finished, 'requestId' | 'attemptId'>): void {
    const pending = this.admitted(attemptId);
    this.finished = { ...result, requestId: pending.requestId, attemptId };
    this.fire(pending, 'finish');
  }

  /** @throws `UNKNOWN_REQUEST` */
  engineFail(attemptId: number, error: HandoffError): void {
    const pending = this.admitted(attemptId);
    pending.error ??= error;
    this.fire(pending, 'engineFail');
  }

  private finished: Finished | null = null;

  private admitted(attemptId: number): PendingImport {
    const pending = this.imports.get(attemptId);
    if (pending === undefined || (pending.state !== 'admitted' && pending.state !== 'aborting')) {
      throw new HandoffError(
        'UNKNOWN_REQUEST',
        `attempt ${attemptId}: expected a request that the engine was given and has not finished`,
        {
          details: { attemptId },
        },
      );
    }
    return pending;
  }

  private tryStart(pending: PendingImport): boolean {
    const { context, options, metrics } = this.deps;
    const reservation = tryReserve(
      pending,
      context.blocks,
      context.slots,
      this.hashOwners,
      context.growthReserve() + this.growthPending,
      (missing) => this.inFlight.fits(missing, pending.needsSlot),
    );
    if (reservation === null) return false;
    pending.reservation = reservation;
    pending.digest = this.deps.digest(reservation);
    pending.startedAt = options.clock.now();
    // A queue deadline that was decided but comes after the start has lost.
    pending.endDecided = false;
    this.growthPending += pending.growthBlocks;
    this.inFlight.enter(pending, pending.promptBlocks - reservation.cachedPrefixBlocks);
    metrics.queueSeconds.observe((pending.startedAt - pending.addedAt) / 1000);
    this.fire(pending, 'start');
    return true;
  }

  private noteFatal(pending: PendingImport): void {
    this.fatal ??= new HandoffError(
      'ENGINE_FATAL',
      'a two-sided handoff failed while transfer storage may still be in use; this engine must be restarted',
      { sourceSafe: false, targetSafe: false, cause: pending.error, details: { requestId: pending.requestId } },
    );
  }

  private fire(pending: PendingImport, event: ImportEvent): void {
    const { next, effects } = importTransition(pending.state, event);
    if (event === 'completeWithoutForward') {
      const request = prefilledRequest(pending, pending.reservation as Reservation);
      this.finished = immediateResult(this.deps.context, request);
    }
    const wasInFlight = pending.state === 'reserved' || pending.state === 'cancelling';
    pending.state = next;
    if (wasInFlight && next !== 'cancelling') this.leaveFlight(pending);
    for (const effect of effects) this.carryOut(effect, pending);
    if (next === 'reclaimed' || next === 'completed') {
      this.imports.delete(pending.attemptId);
    }
  }

  private leaveFlight(pending: PendingImport): void {
    this.inFlight.leave(pending);
    if (pending.state !== 'agreed') this.growthPending -= pending.growthBlocks;
  }

  private carryOut(effect: ImportEffect, pending: PendingImport): void {
    const { context, notices, options } = this.deps;
    switch (effect) {
      case 'leaveQueue':
        this.queue.delete(pending.attemptId);
        return;
      case 'beginTransfer':
        return this.beginTransfer(pending);
      case 'cancelTransfer':
        return this.deps.transfers.cancel(pending.attemptId, options.clock.now());
      case 'registerHashes':
        return this.nameBlocks(pending);
      case 'dropHashes':
        return this.dropHashes(pending);
      case 'queueAdmission':
        this.admittable.set(pending.attemptId, pending);
        return;
      case 'leaveAdmission':
        this.admittable.delete(pending.attemptId);
        this.growthPending -= pending.growthBlocks;
        return;
      case 'engineAdmit':
        return this.engineAdmit(pending);
      case 'engineAbort':
        return context.abortRequest(pending.attemptId);
      case 'releaseMemory':
        return this.releaseMemory(pending);
      case 'holdMemory':
        this.quarantine.set(pending.attemptId, pending);
        this.deps.metrics.count('imports_quarantined_total');
        return notices.quarantined(pending);
      case 'settleFinished':
        this.deps.metrics.importOutcome('completed');
        return this.settle(pending, this.takeFinished());
      case 'settleAborted':
        this.deps.metrics.importOutcome('aborted');
        return this.settle(
          pending,
          new HandoffError('ABORTED', 'the request was aborted', { details: { requestId: pending.requestId } }),
        );
      case 'settleError':
        this.deps.metrics.importOutcome('failed');
        return this.settle(pending, this.errorOf(pending));
      case 'noticeErrorSafe':
        return notices.failed(pending, this.errorOf(pending), true);
      case 'noticeErrorUnsafe':
        return notices.failed(pending, this.errorOf(pending), false);
      case 'noticeAbortedSafe':
        return notices.aborted(pending, true);
      case 'noticeAbortedUnsafe':
        return notices.aborted(pending, false);
      case 'noticeReadDone':
        return notices.readDone(pending);
    }
  }

  private beginTransfer(pending: PendingImport): void {
    const reservation = pending.reservation as Reservation;
    const local =
      pending.error === null
        ? this.deps.startTransfer(pending, reservation)
        : LocalTransfer.failed(pending.attemptId, pending.error);
    pending.local = local;
    if (local.state === 'gated' && this.deps.transportTraits(pending).twoSided) {
      this.deps.notices.transferReady(pending, reservation.cachedPrefixBlocks);
    }
    this.deps.transfers.add(local, this.deps.options.clock.now());
  }

  /** A name is for later requests only: an allocator that refuses one costs a cache hit and no request. */
  private nameBlocks(pending: PendingImport): void {
    this.dropHashes(pending);
    this.noteTransfer(pending);
    const reservation = pending.reservation as Reservation;
    this.landing.note(reservation.blocks.subarray(reservation.cachedPrefixBlocks), pending.local?.landed ?? null);
    try {
      nameImportedBlocks(this.deps.context.blocks, pending.hashes, reservation);
    } catch (error) {
      this.deps.notices.engineCallFailed(error);
    }
  }

  private noteTransfer(pending: PendingImport): void {
    const { local } = pending;
    if (local === null) return;
    const seconds = (this.deps.options.clock.now() - pending.startedAt) / 1000;
    for (const name of local.transportNames) this.deps.metrics.transfer(name, seconds, local.bytesDone);
  }

  private dropHashes(pending: PendingImport): void {
    this.hashOwners.drop(pending.hashes, (pending.reservation as Reservation).cachedPrefixBlocks, pending.attemptId);
  }

  private engineAdmit(pending: PendingImport): void {
    const reservation = pending.reservation as Reservation;
    const request = prefilledRequest(pending, reservation);
    pending.reservation = null;
    this.deps.transfers.forget(pending.attemptId);
    this.deps.context.admitPrefilledDecode(this.landing.applyTo(request));
    this.deps.notices.admitted(pending);
  }

  private releaseMemory(pending: PendingImport): void {
    const reservation = pending.reservation;
    invariant(reservation !== null, 'memory is given back once', { attemptId: pending.attemptId });
    const wasQuarantined = this.quarantine.delete(pending.attemptId);
    this.deps.transfers.forget(pending.attemptId);
    releaseReservation(reservation, this.deps.context.blocks, this.deps.context.slots);
    if (wasQuarantined) this.deps.notices.reclaimed(pending);
    pending.reservation = null;
  }

  private settle(pending: PendingImport, outcome: Finished | HandoffError): void {
    this.labels.delete(pending.requestId);
    this.deps.notices.settled(pending, outcome);
  }

  private takeFinished(): Finished {
    const finished = this.finished;
    invariant(finished !== null, 'a finished request has a result');
    this.finished = null;
    return finished;
  }

  private errorOf(pending: PendingImport): HandoffError {
    return pending.error ?? new HandoffError('TRANSFER_FAILED', 'the handoff failed without a reason');
  }
}

function outdated({ source, requestId }: PendingImport, epoch: number): HandoffError {
  return new HandoffError(
    'EPOCH_MISMATCH',
    `the handoff was made with weights of epoch ${source.handoff?.epoch} and this engine has epoch ${epoch} now`,
    { details: { requestId } },
  );
}
