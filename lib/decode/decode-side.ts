/**
 * Decode, as the public class sees it: callers' promises, arrivals, deadlines and rank 0's duties around `DecodeRole`.
 */
import { Agreement } from '../control/agreement.js';
import { placementDigest } from '../control/placement.js';
import type { LogRecord, RankGroup } from '../control/rank-group.js';
import type { EngineContext, Finished, RequestId } from '../engine-context.js';
import { HandoffError, isHandoffError } from '../errors.js';
import type { HandoffRef } from '../events.js';
import type { Metrics } from '../observe/metrics.js';
import type { CompiledOptions } from '../options.js';
import { checkBlockHashes } from '../request-input.js';
import type { ScheduleLog } from '../schedule-log.js';
import { unreadyFence } from '../ticket-readiness.js';
import { checkExpectation } from './handoff-expectation.js';
import type { ParsedKvMeta } from './handoff-parser.js';
import { telling, type Arrival, type ImportRequest, type Waiter } from './arrival.js';
import type { AddRecord, DecodeDependencies, DecodeNotices, ImportIdentity } from './decode-dependencies.js';
import { DecodeRole } from './decode-role.js';
import { requireFits } from './import-bounds.js';
import { divergenceRecord, failureError, lossRecord } from './instance-failure.js';
import type { ImportSource, PendingImport } from './pending-import.js';
import type { Transfers } from './transfers.js';

export interface DecodeSideDependencies {
  readonly context: EngineContext;
  readonly options: CompiledOptions;
  readonly metrics: Metrics;
  readonly log: ScheduleLog;
  readonly group: RankGroup | null;
  readonly transfers: Transfers;
  readonly notices: Omit<DecodeNotices, 'settled'>;
  readonly parse: (kvMeta: unknown, sourceBlockIds: unknown) => ParsedKvMeta;
  readonly startTransfer: DecodeDependencies['startTransfer'];
  readonly transportTraits: DecodeDependencies['transportTraits'];
  readonly blockBytes: number;
  readonly slotBytes: number;
  /** Hashes of a prompt's complete blocks; a promise when that is long work done elsewhere. */
  readonly hash: (prompt: Int32Array, salt: string | null) => BigInt64Array | Promise<BigInt64Array>;
}

export class DecodeSide {
  readonly role: DecodeRole;
  private readonly agreement: Agreement;
  private readonly waiters = new Map<number, Waiter>();
  /** In order of arrival; only the head may enter the log. */
  private readonly arrivals: Arrival[] = [];
  /** Labels that have arrived, or are in the log but not applied yet. */
  private readonly claimedLabels = new Set<RequestId>();
  /** Handoffs whose source may still be read from here: taken, and not told to be read yet. */
  private readonly reading = new Set<string>();
  private readonly parsed = new WeakMap<AddRecord, ImportSource>();
  private nextAttemptId = 1;
  private failureDecided = false;

  constructor(private readonly deps: DecodeSideDependencies) {
    this.agreement = new Agreement(deps.group);
    this.role = new DecodeRole({
      ...deps,
      digest: (reservation) =>
        (deps.group?.size ?? 1) > 1 ? placementDigest({ logIndex: deps.log.logIndex, ...reservation }) : null,
      parse: (record) => this.parsed.get(record) ?? this.check(record),
      notices: {
        ...deps.notices,
        readDone: (pending) => this.tellReadDone(pending),
        settled: (pending, outcome) => this.settle(pending, outcome),
      },
    });
  }

  /** Imports that are not the engine's yet, arrivals included. */
  get pendingCount(): number {
    return this.role.pendingCount + this.arrivals.length;
  }

  get queuedCount(): number {
    return this.role.queued.size + this.arrivals.length;
  }

  /**
   * Takes a request, or says at once why not. The promise settles exactly once.
   *
   * @param settled - called at the very moment it settles, before anybody who waits for the promise hears of it
   * @throws what a refused request is refused with: `TICKET_*`, `INCOMPATIBLE`, `CAPACITY_NEVER_FITS`, …
   */
  add(
    request: ImportRequest,
    salt: string | null,
    hashes: BigInt64Array | null,
    settled: () => void = () => undefined,
  ): Promise<Finished> {
    const completeBlocks = Math.floor(request.prompt.length / this.deps.context.blockSize);
    const checkedHashes = checkBlockHashes(hashes, completeBlocks);
    const source = this.admissible(request);
    // Whatever can be wrong is wrong before anything is kept: an arrival without hashes would hold up all behind it.
    const hashing = checkedHashes ?? this.deps.hash(request.prompt, salt);
    this.claimedLabels.add(request.requestId);
    if (source.handoff !== null) this.reading.add(keyOf(source.handoff));
    return new Promise<Finished>((resolve, reject) => {
      const arrival: Arrival = {
        request,
        source,
        waiter: telling(settled, { resolve, reject }),
        hashes: hashing instanceof Promise ? null : hashing,
        cancelled: false,
      };
      this.arrivals.push(arrival);
      if (hashing instanceof Promise) this.awaitHashes(arrival, hashing);
      this.flushArrivals();
    });
  }

  /** Whether a request that was taken here still reads that source; whoever refuses a repeat of it must not release it. */
  isReading(handoff: HandoffRef | null): boolean {
    return handoff !== null && this.reading.has(keyOf(handoff));
  }

  /** Rank 0. False when no living request has that label. */
  abort(requestId: RequestId): boolean {
    const arrival = this.arrivals.find((each) => each.request.requestId === requestId && !each.cancelled);
    if (arrival !== undefined) {
      arrival.cancelled = true;
      this.flushArrivals();
      return true;
    }
    const pending = this.role.byLabel(requestId);
    if (pending !== undefined) {
      this.deps.log.decide({ kind: 'abort', attemptId: pending.attemptId, reason: 'caller' });
      return true;
    }
    const unapplied = this.unappliedAdd(requestId);
    if (unapplied === undefined) return false;
    this.deps.log.decide({ kind: 'abort', attemptId: unapplied.attemptId, reason: 'caller' });
    return true;
  }

  /** Rank 0. Aborts all that is not the engine's yet: arrivals, adds that no frame has carried so far, and imports. */
  abortAll(): void {
    const labels = new Set(this.claimedLabels);
    for (const { state, requestId } of this.role.imports.values()) {
      if (state !== 'quarantined' && state !== 'admitted') labels.add(requestId);
    }
    for (const label of labels) this.abort(label);
  }

  apply(record: LogRecord): void {
    switch (record.kind) {
      case 'add':
        this.claimedLabels.delete(record.requestId);
        this.nextAttemptId = Math.max(this.nextAttemptId, record.attemptId + 1);
        return this.role.applyAdd(record);
      case 'abort':
        this.role.applyAbort(record.attemptId, record.reason);
        return;
      case 'decision':
        return this.role.applyDecision(
          record.attemptId,
          record.failed,
          record.sourceSafe,
          record.reason === null
            ? null
            : new HandoffError('TRANSFER_DEADLINE', record.reason, { sourceSafe: record.sourceSafe }),
        );
      case 'attest-dead':
        return this.role.applyAttestation(record.instance, record.incarnation);
      case 'instance-failed':
        this.role.applyInstanceFailure(failureError(record, this.labelOf(record.attemptId)));
        // Rank 0 hears no more of what the lost rank had to say; it still hears when the others are quiet.
        for (const { attemptId } of this.role.inFlight.values()) this.agreement.fail(attemptId, record.reason);
        return;
      default:
        throw new HandoffError('WRONG_ROLE', `a ${record.kind} record belongs to a prefill engine's log`);
    }
  }

  /** Learns what transfers did and, on rank 0, decides what is due. Changes no allocator. */
  poll(): void {
    const { options, log, transfers } = this.deps;
    const now = options.clock.now();
    transfers.poll(now, (attemptId, report) =>
      this.agreement.report(attemptId, report, this.role.imports.get(attemptId)?.digest ?? null),
    );
    if (log.rank !== 0) return this.pollLeader();
    this.agreement.collect();
    this.pollFailure();
    this.pollDeadlines(now);
    const failures: unknown[] = [];
    for (const { requestId, failed, sourceSafe, reason } of this.agreement.decisions()) {
      try {
        log.decide({ kind: 'decision', attemptId: requestId, failed, sourceSafe, reason });
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  }

  /** Ends every promise that is still open: the engine is going away. */
  abandon(error: HandoffError): void {
    for (const arrival of this.arrivals.splice(0)) {
      this.deps.metrics.importOutcome('failed');
      arrival.waiter.reject(error);
    }
    for (const waiter of this.waiters.values()) {
      this.deps.metrics.importOutcome('failed');
      waiter.reject(error);
    }
    this.waiters.clear();
  }

  /** Rank 0: an instance fails once, and before anything else is decided. */
  private pollFailure(): void {
    if (this.failureDecided) return;
    const [conflict] = this.agreement.conflicts();
    const loss = this.deps.group?.failure ?? null;
    if (conflict === undefined && loss === null) return;
    this.failureDecided = true;
    this.deps.log.decide(
      conflict === undefined
        ? lossRecord(loss as HandoffError)
        : divergenceRecord(conflict, this.labelOf(conflict.requestId)),
    );
  }

  /** Worker: without rank 0 there is no log any more. */
  private pollLeader(): void {
    const failure = this.deps.group?.failure ?? null;
    if (failure !== null && failure.details['rank'] === 0) this.role.stop(failure);
  }

  private labelOf(attemptId: number | null): RequestId | undefined {
    return attemptId === null ? undefined : this.role.imports.get(attemptId)?.requestId;
  }

  private pollDeadlines(now: number): void {
    const { queueMs, transferMs } = this.deps.options.deadlines;
    for (const pending of this.role.queued.values()) {
      if (now - pending.addedAt < queueMs) break;
      if (pending.endDecided) continue;
      pending.endDecided = true;
      this.deps.log.decide({ kind: 'abort', attemptId: pending.attemptId, reason: 'queue-deadline' });
    }
    for (const pending of this.role.inFlight.values()) {
      if (now - pending.startedAt < transferMs) break;
      if (pending.endDecided) continue;
      pending.endDecided = true;
      this.agreement.fail(pending.attemptId, `the transfer was not agreed by all ranks within ${transferMs} ms`);
    }
  }

  // --- arrivals -----------------------------------------------------------------------------------------------------

  /** Everything that can be said against a request without touching anything. */
  private admissible(request: ImportRequest): ImportSource {
    const { context, options } = this.deps;
    const { requestId, prompt } = request;
    this.role.requireWhole();
    if (this.claimedLabels.has(requestId) || this.role.byLabel(requestId) !== undefined) {
      throw new HandoffError(
        'DUPLICATE_REQUEST',
        `request ${String(requestId)} is still living here; labels are unique among the living`,
        {
          details: { requestId },
        },
      );
    }
    const source = this.check(request);
    if (this.isReading(source.handoff)) {
      throw new HandoffError(
        'DUPLICATE_REQUEST',
        `the handoff of request ${String(requestId)} is being taken over here already; its source is released once`,
        { details: { requestId } },
      );
    }
    requireFits(context, requestId, prompt.length, request.samplingParams);
    // Only what would have to wait is bounded: with an empty queue a request is at least tried.
    const waiting = this.queuedCount;
    if (waiting > 0 && waiting >= options.limits.maxDeferred) {
      throw new HandoffError(
        'DEFERRED_LIMIT',
        `${waiting} handoffs already wait for capacity, the most that maxDeferred allows`,
        {
          details: { requestId },
        },
      );
    }
    return source;
  }

  private check(request: ImportRequest): ImportSource {
    const { context, options } = this.deps;
    const { samplingParams, prompt } = request;
    if ((samplingParams.top_n_logprobs ?? 0) > 0) {
      throw new HandoffError('LOG_PROBS_UNSUPPORTED', 'top_n_logprobs does not travel with a handoff; expected 0');
    }
    const wantsLogProbs = samplingParams.return_log_probs === true;
    if (wantsLogProbs && samplingParams.skip_prompt_log_probs !== true) {
      throw new HandoffError(
        'LOG_PROBS_UNSUPPORTED',
        'prompt log-probabilities do not travel with a handoff; set skip_prompt_log_probs',
      );
    }
    const parsed = this.deps.parse(request.kvMeta, request.sourceBlockIds);
    checkExpectation(parsed, {
      model: context.model,
      dtype: context.dtype,
      prompt,
      resumeTokens: 1 + context.numSpeculativeTokens,
      isHybrid: context.ssm !== null,
      wantsLogProbs,
      epoch: options.epoch,
    });
    return {
      handoff: parsed.handoff,
      resumeTokens: parsed.resumeTokens,
      resumeLogProbs: parsed.resumeLogProbs,
      parsed,
      ready: unreadyFence(request.kvMeta),
    };
  }

  private awaitHashes(arrival: Arrival, hashing: Promise<BigInt64Array>): void {
    hashing.then(
      (done) => {
        arrival.hashes = done;
        this.flushArrivals();
      },
      (error: unknown) => {
        arrival.cancelled = true;
        arrival.hashes = new BigInt64Array(0);
        arrival.waiter.reject(
          isHandoffError(error) ? error : new HandoffError('INVARIANT', 'hashing failed', { cause: error }),
        );
        this.flushArrivals();
      },
    );
  }

  /** A request behind one that is still being hashed waits for it: first in, first out. */
  private flushArrivals(): void {
    for (let head = this.arrivals[0]; head !== undefined; head = this.arrivals[0]) {
      if (head.cancelled) {
        this.arrivals.shift();
        this.claimedLabels.delete(head.request.requestId);
        this.deps.metrics.importOutcome('aborted');
        const error = new HandoffError('ABORTED', 'the request was aborted', {
          details: { requestId: head.request.requestId },
        });
        const unborn = { attemptId: 0, requestId: head.request.requestId, source: head.source };
        this.deps.notices.aborted(unborn, true);
        this.tellReadDone(unborn);
        head.waiter.reject(error);
        continue;
      }
      if (head.hashes === null) return;
      this.arrivals.shift();
      const attemptId = this.nextAttemptId;
      this.nextAttemptId += 1;
      const record: AddRecord = { kind: 'add', attemptId, ...head.request, blockHashes: head.hashes };
      this.parsed.set(record, head.source);
      this.waiters.set(attemptId, head.waiter);
      try {
        this.deps.log.submit(record);
      } catch (error) {
        // The request is in the log and lives; what failed is a call into the engine, which is tried again.
        this.deps.notices.engineCallFailed(error);
      }
    }
  }

  private unappliedAdd(requestId: RequestId): AddRecord | undefined {
    for (const record of this.deps.log.pendingRecords) {
      if (record.kind === 'add' && record.requestId === requestId) return record;
    }
    return undefined;
  }

  private tellReadDone(pending: ImportIdentity): void {
    const { handoff } = pending.source;
    if (handoff !== null) this.reading.delete(keyOf(handoff));
    this.deps.notices.readDone(pending);
  }

  private settle(pending: PendingImport, outcome: Finished | HandoffError): void {
    if (pending.local === null) this.agreement.retire(pending.attemptId);
    const waiter = this.waiters.get(pending.attemptId);
    if (waiter === undefined) return;
    this.waiters.delete(pending.attemptId);
    if (isHandoffError(outcome)) waiter.reject(outcome);
    else waiter.resolve(outcome);
  }
}

function keyOf({ instance, incarnation, handoffId }: HandoffRef): string {
  return JSON.stringify([instance, incarnation, handoffId]);
}
