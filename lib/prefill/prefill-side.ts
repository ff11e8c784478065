/**
 * Prefill, as the public class sees it: checks, tickets and rank 0's duties around `PrefillRole`.
 */
import { Agreement } from '../control/agreement.js';
import type { LogRecord, RankGroup } from '../control/rank-group.js';
import type { EngineContext, Fence, RequestId } from '../engine-context.js';
import { argumentError, HandoffError } from '../errors.js';
import type { HandoffRef } from '../events.js';
import type { Metrics } from '../observe/metrics.js';
import type { CompiledOptions } from '../options.js';
import type { ScheduleLog } from '../schedule-log.js';
import type { InstanceDescription } from '../setup/instance-description.js';
import { promptDigest } from '../prompt-digest.js';
import { sealKey, ticketSeal } from '../ticket-seal.js';
import { markUnready } from '../ticket-readiness.js';
import type { Ticket } from '../ticket.js';
import { failureError, lossRecord, type InstanceFailedRecord } from '../decode/instance-failure.js';
import type { Transfers } from '../decode/transfers.js';
import { checkFinished, checkShape, giveBack, ownedBy, type FinishedPrefill } from './finished-prefill.js';
import { buildKvMeta, type HandoffFields } from './handoff-metadata.js';
import type { Pin } from './pin-ledger.js';
import { PrefillRole, type PrefillDependencies, type PrefillNotices } from './prefill-role.js';

/** What `prepareHandoffMetadataBatch` checked; only `captureHandoffMeta` reads it. */
export interface PreparedHandoffs {
  readonly byRequest: ReadonlyMap<RequestId, FinishedPrefill>;
}

export interface PrefillSideDependencies {
  readonly context: EngineContext;
  readonly options: CompiledOptions;
  readonly metrics: Metrics;
  readonly log: ScheduleLog;
  readonly group: RankGroup | null;
  readonly transfers: Transfers;
  readonly notices: PrefillNotices;
  readonly description: InstanceDescription;
  readonly startPush: PrefillDependencies['startPush'];
  readonly lateReadsAreNoticed: () => boolean;
  /** Whether some granted transport compares generations. */
  readonly grantsGenerations: () => boolean;
}

/** A warning, where an engine hands over memory that is not its own. */
export const refusedMemory = 'the allocator did not take back what a finished batch held';

export class PrefillSide {
  readonly role: PrefillRole;
  private readonly agreement: Agreement;

  /** Why the instance as a whole has failed: nothing is pinned or pushed any more. */
  private failure: HandoffError | null = null;
  private failureDecided = false;

  constructor(private readonly deps: PrefillSideDependencies) {
    this.agreement = new Agreement(deps.group);
    this.role = new PrefillRole(deps);
  }

  /**
   * Checks a step's finished requests (spec 6.2). When one is wrong, everything taken from all of them is given back,
   * the regular ones' too, and the error leaves.
   */
  prepare(finished: readonly FinishedPrefill[]): PreparedHandoffs {
    try {
      this.requireWhole();
      if (!Array.isArray(finished)) throw argumentError('finished', 'a list of finished requests', finished);
      const byRequest = new Map<RequestId, FinishedPrefill>();
      for (const [index, request] of finished.entries()) {
        checkShape(`finished[${index}]`, request);
        if (!request.doKvHandoff) continue;
        checkFinished(this.deps.context, `finished[${index}]`, request);
        if (byRequest.has(request.requestId)) {
          throw new HandoffError(
            'DUPLICATE_REQUEST',
            `finished[${index}].requestId: expected each request once, got ${String(request.requestId)} twice`,
            {
              phase: 'prefill',
            },
          );
        }
        byRequest.set(request.requestId, request);
      }
      return { byRequest };
    } catch (error) {
      this.releaseAll(finished);
      throw error;
    }
  }

  releaseAll(finished: readonly FinishedPrefill[]): void {
    giveBack(this.deps.context, finished, (error) => this.deps.notices.warning(refusedMemory, error));
    for (const request of ownedBy(finished)) this.role.ledger.dropPermit(request.requestId);
  }

  /** Pins, and makes the ticket. @throws `UNKNOWN_REQUEST`, `DUPLICATE_REQUEST`, `PIN_LIMIT` */
  capture(requestId: RequestId, prepared: PreparedHandoffs, ready: Fence | null): Ticket {
    this.requireWhole();
    const request = prepared.byRequest.get(requestId);
    if (request === undefined) {
      throw new HandoffError(
        'UNKNOWN_REQUEST',
        `request ${String(requestId)} was not prepared for a handoff in this batch`,
        {
          phase: 'prefill',
          details: { requestId },
        },
      );
    }
    const { context, description } = this.deps;
    const blocks = request.blocks.slice(0, Math.ceil(request.promptTokens / context.blockSize));
    const pin = this.role.capture(requestId, blocks, request.slot, ready);
    const handoff = this.ref(pin);
    const blockIds = Array.from(blocks);
    const kvMeta = buildKvMeta({
      tpSize: description.tpSize,
      ppSize: description.ppSize,
      rankDescriptors: description.kv,
      blockIds,
      resumeTokens: request.resumeTokens,
      resumeLogProbs: request.resumeLogProbs,
      ssmRankDescriptors: description.ssm,
      slot: pin.slot,
      handoff: {
        ...handoff,
        model: context.model,
        dtype: context.dtype,
        promptTokens: request.promptTokens,
        promptDigest: request.prompt === undefined ? null : promptDigest(request.prompt),
        ...this.generationsOf(pin),
      },
    });
    const { ticketSecret } = this.deps.options;
    if (ticketSecret !== null) {
      const fields = kvMeta['handoff'] as Record<string, unknown>;
      fields[sealKey] = ticketSeal(ticketSecret, kvMeta, blockIds);
    }
    if (pin.state === 'pinned' && ready !== null) markUnready(kvMeta, ready);
    return { requestId, blockIds, kvMeta, handoff };
  }

  /** Claimed only where the granted transports let a reader compare them; of blocks and slot, or of neither. */
  private generationsOf({ blocks, slot }: Pin): Pick<HandoffFields, 'blockGenerations' | 'slotGeneration'> {
    const { context } = this.deps;
    const none = { blockGenerations: null, slotGeneration: null };
    if (!this.deps.grantsGenerations()) return none;
    const blockGenerations = context.blocks.generationsOf(blocks);
    if (slot === null || blockGenerations === null) return { blockGenerations, slotGeneration: null };
    const [slotGeneration] = context.slots?.generationsOf(Int32Array.of(slot)) ?? [];
    return slotGeneration === undefined ? none : { blockGenerations, slotGeneration };
  }

  ref(pin: Pin): HandoffRef {
    const { instance, incarnation } = this.deps.options;
    return { instance, incarnation, handoffId: pin.handoffId, epoch: pin.epoch };
  }

  /**
   * The pin of a reference or a label; undefined when it is gone.
   *
   * @throws `HANDOFF_FENCED` for another incarnation, `ARGUMENT_INVALID` for what is neither
   */
  find(target: RequestId | HandoffRef): Pin | undefined {
    if (typeof target === 'number' || typeof target === 'string') return this.role.ledger.getByRequest(target);
    if (typeof target !== 'object' || target === null)
      throw argumentError('target', 'a request label or a handoff reference', target);
    const { instance, incarnation } = this.deps.options;
    if (target.instance !== instance || target.incarnation !== incarnation) {
      throw new HandoffError(
        'HANDOFF_FENCED',
        `the handoff belongs to ${target.instance}/${target.incarnation}; this is ${instance}/${incarnation}, which never had it`,
        { details: { ...target } },
      );
    }
    const pin = this.role.ledger.get(target.handoffId);
    if (pin !== undefined && pin.epoch !== target.epoch) {
      throw new HandoffError(
        'HANDOFF_FENCED',
        `handoff ${pin.handoffId} is of epoch ${pin.epoch}, not ${target.epoch}`,
        {
          details: { ...target },
        },
      );
    }
    return pin;
  }

  apply(record: LogRecord): void {
    switch (record.kind) {
      case 'release':
        return this.role.applyRelease(record.handoffId, record.reason);
      case 'push':
        if (this.failure === null) return this.role.applyPush(record);
        return this.deps.notices.warning('a push came after its instance had failed; nothing was sent', this.failure);
      case 'push-safe':
        return this.role.applyPushSafe(record.pushId);
      case 'attest-dead':
        return this.role.applyAttestation(record.instance, record.incarnation);
      case 'instance-failed':
        return this.applyInstanceFailure(record);
      default:
        throw new HandoffError('WRONG_ROLE', `a ${record.kind} record belongs to a decode engine's log`);
    }
  }

  /** @throws what the instance has failed of */
  requireWhole(): void {
    if (this.failure !== null) throw this.failure;
  }

  private applyInstanceFailure(record: InstanceFailedRecord): void {
    this.stop(failureError(record, undefined));
    for (const pushId of this.role.pendingPushes) this.agreement.fail(pushId, record.reason);
  }

  private stop(failure: HandoffError): void {
    if (this.failure !== null) return;
    this.failure = failure;
    this.deps.notices.instanceFailed(failure);
  }

  poll(): void {
    const { options, log, transfers, group } = this.deps;
    const now = options.clock.now();
    this.role.ledger.pollReady();
    this.role.pollDrains(now);
    transfers.poll(now, (pushId, report) => this.agreement.report(pushId, report, null));
    const loss = group?.failure ?? null;
    if (log.rank !== 0) {
      // Without rank 0 there is no log any more.
      if (loss !== null && loss.details['rank'] === 0) this.stop(loss);
      return;
    }
    this.agreement.collect();
    if (loss !== null && !this.failureDecided) {
      this.failureDecided = true;
      log.decide(lossRecord(loss));
    }
    for (const { requestId: pushId, failed, sourceSafe, reason } of this.agreement.decisions()) {
      if (this.role.noteDecision(pushId, failed, sourceSafe, reason)) log.decide({ kind: 'push-safe', pushId });
    }
    this.role.pollExpiry(now, (pin) => log.decide({ kind: 'release', handoffId: pin.handoffId, reason: 'expired' }));
  }
}
