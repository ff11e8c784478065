/**
 * The decode side of one rank: carries out what the import table says, record by record.
 *
 * Everything that touches an allocator happens in `apply`, `drainQueue` or `admit`, that is, at a place of the ordered
 * log; `poll` only learns and reports.
 */
import type { Finished, RequestId } from '../engine-context.js';
import { HandoffError } from '../errors.js';
import { invariant } from '../invariant.js';
import type { HashOwners } from './hash-owners.js';
import { ImportBook } from './import-book.js';
import { ImportEffects } from './import-effects.js';
import { requestFailure } from './instance-failure.js';
import { importTransition, type ImportEvent } from './kv-import.js';
import type { AddRecord, DecodeDependencies } from './decode-dependencies.js';
import { growthBlocks, heldBlocks, immediateEnd, immediateResult } from './admission.js';
import { engineCallError } from '../engine-call-error.js';
import { InFlight } from './in-flight.js';
import { prefilledRequest, type ImportSource, type PendingImport } from './pending-import.js';
import { tryReserve, type Reservation } from './reservation.js';

export class DecodeRole {
  private readonly book: ImportBook;
  private readonly effects: ImportEffects;
  private fatal: HandoffError | null = null;
  /** Why the instance as a whole has failed: nothing starts any more. */
  private failure: HandoffError | null = null;

  constructor(private readonly deps: DecodeDependencies) {
    this.book = new ImportBook(new InFlight(deps.blockBytes, deps.slotBytes, deps.options.limits.maxInFlightBytes));
    this.effects = new ImportEffects(deps, this.book);
  }

  get imports(): ReadonlyMap<number, PendingImport> {
    return this.book.imports;
  }

  get hashOwners(): HashOwners {
    return this.book.hashOwners;
  }

  /** Reserved imports without a decision. */
  get inFlight(): InFlight {
    return this.book.inFlight;
  }

  get queued(): ReadonlyMap<number, PendingImport> {
    return this.book.queue;
  }

  get agreed(): ReadonlyMap<number, PendingImport> {
    return this.book.admittable;
  }

  get quarantined(): ReadonlyMap<number, PendingImport> {
    return this.book.quarantine;
  }

  /** The living request of that label. */
  byLabel(requestId: RequestId): PendingImport | undefined {
    return this.book.labels.get(requestId);
  }

  /** Blocks that imports which are not admitted yet may still need before they end. */
  get growthReserved(): number {
    return this.book.growthPending;
  }

  /** Not yet admitted: queued, on the way, or waiting for room. */
  get pendingCount(): number {
    return this.book.pendingCount;
  }

  applyAdd(record: AddRecord): void {
    const { context, options } = this.deps;
    invariant(!this.book.imports.has(record.attemptId), 'an attempt id is minted once', {
      attemptId: record.attemptId,
    });
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
    this.book.add(pending);
    if (this.failure === null) this.drainQueue();
    else this.expireFailed(pending, this.failure);
  }

  /** An abort or expiry at its place in the log; unknown or finished attempts are no-ops. */
  applyAbort(attemptId: number, reason: 'caller' | 'queue-deadline'): void {
    const pending = this.book.imports.get(attemptId);
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
    const pending = this.book.imports.get(attemptId);
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
    for (const pending of [...this.book.queue.values(), ...this.book.admittable.values()]) {
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
    for (const pending of [...this.book.queue.values(), ...this.book.admittable.values()])
      this.expireFailed(pending, failure);
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
    for (const pending of this.book.imports.values()) {
      const { handoff } = pending.source;
      if (handoff?.instance === instance && handoff.incarnation === incarnation) {
        this.deps.transfers.attestDead(pending.attemptId, this.deps.options.clock.now());
      }
    }
  }

  /** Starts what can start, in order; the first that cannot blocks those behind it (invariant I5). */
  drainQueue(): void {
    for (const pending of this.book.queue.values()) {
      if (!this.tryStart(pending)) return;
    }
  }

  /** At the scheduling point only. Returns how many the engine took or completed. @throws `ENGINE_FATAL` */
  admit(): number {
    if (this.fatal !== null) throw this.fatal;
    const { context } = this.deps;
    let count = 0;
    for (const pending of this.book.admittable.values()) {
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
    this.effects.finished = { ...result, requestId: pending.requestId, attemptId };
    this.fire(pending, 'finish');
  }

  /** @throws `UNKNOWN_REQUEST` */
  engineFail(attemptId: number, error: HandoffError): void {
    const pending = this.admitted(attemptId);
    pending.error ??= error;
    this.fire(pending, 'engineFail');
  }

  private admitted(attemptId: number): PendingImport {
    const pending = this.book.imports.get(attemptId);
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
      this.book.hashOwners,
      context.growthReserve() + this.book.growthPending,
      (missing) => this.book.inFlight.fits(missing, pending.needsSlot),
    );
    if (reservation === null) return false;
    pending.reservation = reservation;
    pending.digest = this.deps.digest(reservation);
    pending.startedAt = options.clock.now();
    // A queue deadline that was decided but comes after the start has lost.
    pending.endDecided = false;
    this.book.growthPending += pending.growthBlocks;
    this.book.inFlight.enter(pending, pending.promptBlocks - reservation.cachedPrefixBlocks);
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
      this.effects.finished = immediateResult(this.deps.context, request);
    }
    const wasInFlight = pending.state === 'reserved' || pending.state === 'cancelling';
    pending.state = next;
    if (wasInFlight && next !== 'cancelling') this.leaveFlight(pending);
    for (const effect of effects) this.effects.carryOut(effect, pending);
    if (next === 'reclaimed' || next === 'completed') {
      this.book.imports.delete(pending.attemptId);
    }
  }

  private leaveFlight(pending: PendingImport): void {
    this.book.inFlight.leave(pending);
    if (pending.state !== 'agreed') this.book.growthPending -= pending.growthBlocks;
  }
}

function outdated({ source, requestId }: PendingImport, epoch: number): HandoffError {
  return new HandoffError(
    'EPOCH_MISMATCH',
    `the handoff was made with weights of epoch ${source.handoff?.epoch} and this engine has epoch ${epoch} now`,
    { details: { requestId } },
  );
}
