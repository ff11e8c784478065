/** From a reservation, or a pin and a push, to this rank's transfer. What fails before anything is posted is a failed transfer. */
import { LocalTransfer } from '../decode/local-transfer.js';
import type { PendingImport } from '../decode/pending-import.js';
import type { Reservation } from '../decode/reservation.js';
import type { EngineContext, Fence } from '../engine-context.js';
import { engineCallError, messageOf } from '../engine-call-error.js';
import { HandoffError, isHandoffError } from '../errors.js';
import type { HandoffRef } from '../events.js';
import { defaultTicketLimits } from '../limits.js';
import type { Pin } from '../prefill/pin-ledger.js';
import type { PushRecord } from '../prefill/prefill-role.js';
import { parseInstanceMeta } from '../transfer/peer-description.js';
import type { PeerDescriptorCache } from '../transfer/peer-descriptor-cache.js';
import type { PeerPlans } from '../transfer/peer-plans.js';

export interface StartDependencies {
  readonly context: EngineContext;
  readonly plans: PeerPlans;
  readonly peers: PeerDescriptorCache;
  /** When a handshake that starts now must be over. */
  readonly handshakeDeadline: () => number;
  readonly warn: (message: string, error: unknown) => void;
  /** A method of the engine threw. */
  readonly engineFailed: (error: HandoffError) => void;
}

/** Decode: reads the source into the reserved blocks and slot. */
export function startImport(deps: StartDependencies, pending: PendingImport, reservation: Reservation): LocalTransfer {
  const { parsed, ready } = pending.source;
  if (parsed === null) return LocalTransfer.failed(pending.attemptId, pending.error as HandoffError);
  const imported = reservation.blocks.subarray(reservation.cachedPrefixBlocks);
  let quiescent: Fence | null;
  try {
    quiescent = deps.context.targetQuiescent(imported, reservation.slot);
  } catch (thrown) {
    const error = engineCallError(thrown);
    deps.engineFailed(error);
    return LocalTransfer.failed(pending.attemptId, error);
  }
  try {
    const legs = deps.plans.legs({
      ranks: parsed.ranks,
      shares: parsed.shares,
      skipBlocks: reservation.cachedPrefixBlocks,
      localBlocks: reservation.blocks,
      localSlot: reservation.slot,
      blockGenerations: parsed.blockGenerations,
      slotGeneration: parsed.slotGeneration,
      tag: parsed.handoff === null ? `request:${String(pending.requestId)}` : tagOf(parsed.handoff),
    });
    return new LocalTransfer(
      pending.attemptId,
      legs,
      [quiescent, ready].filter((fence): fence is Fence => fence !== null),
      deps.handshakeDeadline(),
      ({ transport, peer, request }) => transport.begin(request, peer),
      (error) => deps.warn('Polling a KV import failed; it is polled again', error),
    );
  } catch (error) {
    return LocalTransfer.failed(pending.attemptId, toHandoffError(error));
  }
}

/** Prefill, two-sided: sends the pinned blocks and slot to every decode rank that shares something with this one. */
export function startPush(
  deps: StartDependencies,
  pushId: number,
  pin: Pin,
  ref: HandoffRef,
  record: PushRecord,
): LocalTransfer {
  try {
    const name = JSON.stringify([record.targetInstance, record.targetIncarnation]);
    const ranks = parseInstanceMeta(record.targets, name, defaultTicketLimits, (...described) =>
      deps.peers.ranks(...described),
    );
    // The receiver knows where its blocks go; a push only says in which order the source's are sent.
    const places = Int32Array.from(pin.blocks, (_, index) => index);
    const legs = deps.plans.legs({
      ranks,
      shares: ranks.map(() => ({ blockIds: places, slot: pin.slot === null ? null : 0 })),
      skipBlocks: record.cachedPrefixBlocks,
      localBlocks: pin.blocks,
      localSlot: pin.slot,
      blockGenerations: null,
      slotGeneration: null,
      tag: tagOf(ref),
    });
    return new LocalTransfer(
      pushId,
      legs,
      pin.ready === null ? [] : [pin.ready],
      deps.handshakeDeadline(),
      ({ transport, peer, request }) => {
        if (transport.beginPush === undefined) {
          throw new HandoffError(
            'NO_TRANSPORT',
            `the ${transport.name} transport is read by its peers and does not push`,
            { phase: 'prefill' },
          );
        }
        return transport.beginPush(request, peer);
      },
      (error) => deps.warn('Polling a KV push failed; it is polled again', error),
    );
  } catch (error) {
    return LocalTransfer.failed(pushId, toHandoffError(error));
  }
}

/** Whether the import's source has to start too, and whether an unsafe failure ends the engine. */
export function transportTraits(
  plans: PeerPlans,
  pending: PendingImport,
): { readonly twoSided: boolean; readonly fatalWhenUnsafe: boolean } {
  const ranks = pending.source.parsed?.ranks ?? [];
  const { transports } = plans;
  return {
    twoSided: transports.isPushed(ranks),
    get fatalWhenUnsafe() {
      return transports.isFatalWhenUnsafe(ranks);
    },
  };
}

function tagOf({ instance, incarnation, handoffId }: HandoffRef): string {
  return `${instance}/${incarnation}/${handoffId}`;
}

function toHandoffError(error: unknown): HandoffError {
  if (isHandoffError(error)) return error;
  return new HandoffError('INVARIANT', `a transfer could not be planned: ${messageOf(error)}`, { cause: error });
}
