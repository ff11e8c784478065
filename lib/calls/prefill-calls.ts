/**
 * The public calls of a prefill engine: permits, preparing and capturing, pushes, releases, claims. Checks what the caller
 * gives and turns it into work of the prefill side or into records of the log.
 */
import { requireObject } from '../argument-shape.js';
import type { EngineContext, Fence, RequestId } from '../engine-context.js';
import { argumentError, isHandoffError } from '../errors.js';
import type { HandoffRef } from '../events.js';
import { BlockPool } from '../memory/block-pool.js';
import type { Notices } from '../notices.js';
import { giveBack, type FinishedPrefill } from '../prefill/finished-prefill.js';
import { refusedMemory, type PreparedHandoffs } from '../prefill/prefill-side.js';
import { checkBlockCount, checkFence, checkName, checkPrepared, travelling, requireOwner } from '../request-input.js';
import { generationsOf } from '../setup/build-transports.js';
import type { Ticket } from '../ticket.js';
import { parseInstanceMeta } from '../transfer/peer-description.js';
import type { Life } from './life.js';

export class PrefillCalls {
  constructor(
    private readonly life: Life,
    private readonly engine: EngineContext,
    private readonly notices: Notices,
  ) {}

  tryPinPermit(requestId: RequestId, blockCount: number): boolean {
    const { prefill } = this.life.requireRole('prefill');
    checkBlockCount(blockCount);
    if (this.life.state === 'draining') return false;
    return prefill.role.ledger.tryPermit(requestId, blockCount);
  }

  dropPinPermit(requestId: RequestId): boolean {
    return this.life.requireRole('prefill').prefill.role.ledger.dropPermit(requestId);
  }

  prepareHandoffMetadataBatch(finished: readonly FinishedPrefill[]): PreparedHandoffs {
    if (this.life.isClosed() || this.life.running?.role !== 'prefill') {
      // Nothing can be handed off, and nothing may leak: the batch's memory goes back as after any other error.
      giveBack(this.engine, finished, (error) => this.notices.tell('warning', { message: refusedMemory, error }));
    }
    return this.life.requireRole('prefill').prefill.prepare(finished);
  }

  captureHandoffMeta(
    request: RequestId | { readonly requestId: RequestId },
    prepared: PreparedHandoffs,
    options: { readonly ready?: Fence | null },
  ): Ticket {
    const { prefill } = this.life.requireRole('prefill');
    if (request === null) throw argumentError('request', 'a label, or an object with `requestId`', request);
    const requestId = typeof request === 'object' ? request.requestId : request;
    checkPrepared(prepared);
    requireObject('options', options);
    const ready = checkFence(options.ready, 'options.ready');
    return this.notices.call(() => prefill.capture(requestId, prepared, ready));
  }

  pushHandoffKv(
    target: RequestId | HandoffRef,
    decodeMetas: readonly unknown[],
    cachedPrefixBlocks: number,
    decode: { readonly instance: string; readonly incarnation: string } | null,
  ): void {
    const { prefill, log } = this.life.requireRole('prefill');
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

  blocksReused(blocks: Int32Array, slots: Int32Array): void {
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

  pollPendingKvPushes(): number {
    const { prefill } = this.life.requireRole('prefill');
    return this.notices.call(() => {
      prefill.poll();
      return prefill.role.pendingPushCount;
    });
  }

  releaseHandoffBlocks(target: RequestId | HandoffRef): boolean {
    const { prefill, log } = this.life.requireRole('prefill');
    if (log.carrier === 'group') log.requireRankZero('releaseHandoffBlocks');
    return this.notices.call(() => {
      const pin = prefill.find(target);
      if (pin === undefined) return false;
      log.submit({ kind: 'release', handoffId: pin.handoffId, reason: 'released' });
      return true;
    });
  }

  claimHandoff(ref: HandoffRef, owner: string): boolean {
    const { prefill, log } = this.life.requireRole('prefill');
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

  releaseOwner(owner: string): number {
    const { prefill, log } = this.life.requireRole('prefill');
    requireOwner(owner);
    log.requireRankZero('releaseOwner');
    return this.notices.call(() => {
      const owned = prefill.role.ledger.terminateOwner(owner).filter((pin) => pin.state !== 'draining');
      // Called on rank 0 alone, whatever the carrier: the others must hear of it.
      for (const pin of owned) log.decide({ kind: 'release', handoffId: pin.handoffId, reason: 'attested' });
      return owned.length;
    });
  }
}
