/**
 * The prefill side of one rank: pins, claims, releases and pushes.
 *
 * Memory changes hands only in `capture` (the host engine's own step) and where a log record is applied.
 */
import type { EngineContext, RequestId } from '../engine-context.js';
import { HandoffError } from '../errors.js';
import type { LogRecord } from '../control/rank-group.js';
import type { LocalTransfer } from '../decode/local-transfer.js';
import type { Transfers } from '../decode/transfers.js';
import type { Metrics } from '../observe/metrics.js';
import type { CompiledOptions } from '../options.js';
import { PinLedger, type Pin, type PinEndReason } from './pin-ledger.js';

export type PushRecord = Extract<LogRecord, { kind: 'push' }>;

export interface PrefillNotices {
  pinned(pin: Pin): void;
  ready(pin: Pin): void;
  released(pin: Pin, reason: PinEndReason): void;
  overdue(pin: Pin, ageMs: number): void;
  pushFailed(pin: Pin, error: HandoffError, sourceSafe: boolean): void;
  /** The instance must be restarted. */
  instanceFailed(error: HandoffError): void;
  warning(message: string, error: unknown): void;
}

export interface PrefillDependencies {
  readonly context: EngineContext;
  readonly options: CompiledOptions;
  readonly metrics: Metrics;
  readonly notices: PrefillNotices;
  readonly transfers: Transfers;
  /** This rank's sends for a push; failures before anything is posted come back as a failed transfer. */
  readonly startPush: (pushId: number, pin: Pin, record: PushRecord) => LocalTransfer;
  /** Whether a reader that comes too late is noticed by every transport that was granted. */
  readonly lateReadsAreNoticed: () => boolean;
}

export class PrefillRole {
  readonly ledger: PinLedger;
  /** Pushes that are not known to be over on all ranks, by push id. */
  private readonly pushes = new Map<number, { readonly pin: Pin; readonly record: PushRecord }>();
  private nextPushId = 1;
  /** Released while a push of them was in flight, and when. */
  private readonly drains = new Map<Pin, number>();
  private readonly overdueTold = new Set<Pin>();
  /** Ends that were decided but whose record has not come round yet. */
  private readonly endDecided = new Set<number>();

  constructor(private readonly deps: PrefillDependencies) {
    this.ledger = new PinLedger(deps.context.blocks, deps.context.slots, deps.options.limits, {
      released: (pin, reason) => {
        this.overdueTold.delete(pin);
        this.drains.delete(pin);
        this.endDecided.delete(pin.handoffId);
        deps.metrics.pinOutcome(reason, deps.options.clock.now() - pin.pinnedAt);
        deps.notices.released(pin, reason);
      },
      ready: (pin) => deps.notices.ready(pin),
    });
  }

  /** Pushes that are not known to be over on all ranks. */
  get pendingPushes(): Iterable<number> {
    return this.pushes.keys();
  }

  get pendingPushCount(): number {
    return this.pushes.size;
  }

  capture(requestId: RequestId, blocks: Int32Array, slot: number | null, ready: Pin['ready']): Pin {
    const pin = this.ledger.pin(requestId, blocks, slot, this.deps.options.clock.now(), ready, this.deps.options.epoch);
    this.deps.metrics.count('pins_total');
    this.deps.notices.pinned(pin);
    return pin;
  }

  /**
   * Checks a push before its record is written.
   *
   * @throws `ARGUMENT_INVALID`, `HANDOFF_UNKNOWN` (a slot without blocks), `DUPLICATE_REQUEST` while one is in flight
   */
  checkPush(pin: Pin, cachedPrefixBlocks: number): void {
    if (pin.blocks.length === 0 && pin.slot !== null) {
      throw new HandoffError(
        'HANDOFF_UNKNOWN',
        'the request has detached SSM state but no pinned KV blocks; it cannot be pushed',
        {
          details: { handoffId: pin.handoffId },
        },
      );
    }
    if (!Number.isInteger(cachedPrefixBlocks) || cachedPrefixBlocks < 0 || cachedPrefixBlocks > pin.blocks.length) {
      throw new HandoffError(
        'ARGUMENT_INVALID',
        `cachedPrefixBlocks: expected 0 to ${pin.blocks.length}, got ${cachedPrefixBlocks}`,
        {
          phase: 'prefill',
        },
      );
    }
    if (pin.pushing) {
      throw new HandoffError('DUPLICATE_REQUEST', `a push of handoff ${pin.handoffId} is already in flight`, {
        phase: 'prefill',
        details: { handoffId: pin.handoffId },
      });
    }
  }

  // --- the log -----------------------------------------------------------------------------------------------------

  applyPush(record: PushRecord): void {
    const pin = this.ledger.get(record.handoffId);
    const pushId = this.nextPushId;
    this.nextPushId += 1;
    if (pin === undefined || pin.state === 'draining' || pin.pushing) {
      this.deps.notices.warning(`a push of handoff ${record.handoffId} came after its release; nothing was sent`, null);
      return;
    }
    this.ledger.pushStarted(pin);
    this.pushes.set(pushId, { pin, record });
    this.deps.transfers.add(this.deps.startPush(pushId, pin, record), this.deps.options.clock.now());
  }

  /** All ranks' sends of `pushId` are quiet. */
  applyPushSafe(pushId: number): void {
    const push = this.pushes.get(pushId);
    if (push === undefined) return;
    this.pushes.delete(pushId);
    this.deps.transfers.forget(pushId);
    this.ledger.pushSafe(push.pin);
  }

  /** Idempotent: a pin that is gone is a no-op. */
  applyRelease(handoffId: number, reason: PinEndReason): void {
    const pin = this.ledger.get(handoffId);
    if (pin === undefined) return;
    this.ledger.end(pin, reason);
    if (pin.pushing) this.drains.set(pin, this.drains.get(pin) ?? this.deps.options.clock.now());
  }

  /** Attested: all processes of that decode instance are dead. Local: what it makes quiet is reported like anything else. */
  applyAttestation(instance: string, incarnation: string): void {
    const now = this.deps.options.clock.now();
    for (const [pushId, { record }] of this.pushes) {
      if (record.targetInstance === instance && record.targetIncarnation === incarnation) {
        this.deps.transfers.attestDead(pushId, now);
      }
    }
  }

  // --- rank 0 and local ------------------------------------------------------------------------------------------------

  /** Rank 0: what a push's agreed outcome means. Returns the push to declare safe, if it is. */
  noteDecision(pushId: number, failed: boolean, safe: boolean, reason: string | null): boolean {
    const pin = this.pushes.get(pushId)?.pin;
    if (pin === undefined) return false;
    // A push that ends because its pin was released is nobody's error.
    if (failed && pin.state !== 'draining') {
      const error =
        this.deps.transfers.get(pushId)?.error ??
        new HandoffError('PEER_RANK_FAILED', reason ?? 'the push failed on a model-parallel peer', {
          phase: 'prefill',
        });
      this.deps.notices.pushFailed(pin, error, safe);
    }
    return safe;
  }

  /**
   * Pushes of released pins that take longer than a transfer may: whoever should receive one may never begin. What can be
   * stopped is stopped; the memory still comes back on proof only. Local: the outcome is reported like any other.
   */
  pollDrains(now: number): void {
    if (this.drains.size === 0) return;
    for (const [pushId, { pin }] of this.pushes) {
      const since = this.drains.get(pin);
      if (since !== undefined && now - since >= this.deps.options.deadlines.transferMs)
        this.deps.transfers.cancel(pushId, now);
    }
  }

  /** Rank 0: pins past their limit. `end` writes the record. Visits oldest first and stops at the first young one. */
  pollExpiry(now: number, end: (pin: Pin) => void): void {
    const limit = this.deps.options.deadlines.pinMs;
    if (limit === Infinity || this.ledger.size === 0) return;
    for (const pin of this.ledger.all()) {
      const age = now - pin.pinnedAt;
      if (age < limit) return;
      if (pin.state === 'draining' || this.endDecided.has(pin.handoffId)) continue;
      if (this.deps.lateReadsAreNoticed()) {
        this.endDecided.add(pin.handoffId);
        end(pin);
      } else if (!this.overdueTold.has(pin)) {
        this.overdueTold.add(pin);
        this.deps.metrics.count('pins_overdue_total');
        this.deps.notices.overdue(pin, age);
      }
    }
  }
}
