/** What `inspect()` and `load()` show: plain data, made anew at each call. */
import type { RequestId } from '../engine-context.js';
import type { HandoffRef } from '../events.js';
import type { DecodeSide } from '../decode/decode-side.js';
import type { PendingImport } from '../decode/pending-import.js';
import type { PrefillSide } from '../prefill/prefill-side.js';
import type { PinState } from '../prefill/pin-ledger.js';
import type { EngineContext } from '../engine-context.js';
import type { CompiledOptions } from '../options.js';
import type { ScheduleLog } from '../schedule-log.js';

/** One pin, as `inspect()` shows it. */
export interface PinView {
  readonly handoffId: number;
  readonly requestId: RequestId;
  readonly state: PinState;
  readonly owner: string | null;
  readonly ageMs: number;
  readonly blocks: readonly number[];
  readonly slot: number | null;
  readonly pushing: boolean;
  /** Older than its limit, and not endable without a release or an attestation. */
  readonly overdue: boolean;
}

/** An import's place in the log, refined by what this rank's own transfer does. */
export type ImportViewState =
  'queued' | 'reserved' | 'transferring' | 'landed' | 'failing' | 'agreed' | 'admitted' | 'quarantined';

/** One import, as `inspect()` shows it. */
export interface ImportView {
  readonly attemptId: number;
  readonly requestId: RequestId;
  readonly source: HandoffRef | null;
  readonly state: ImportViewState;
  /** The caller gave up, and the end is not agreed yet. */
  readonly cancelling: boolean;
  readonly ageMs: number;
  readonly blocks: readonly number[];
  readonly continuationBlocks: readonly number[];
  readonly slot: number | null;
  readonly cachedPrefixBlocks: number;
  readonly bytesDone: number;
  readonly transports: readonly string[];
  readonly error: string | null;
  readonly transportPollErrors: number;
}

/** All that an instance holds, as `inspect()` shows it. */
export interface Inspection {
  readonly role: 'prefill' | 'decode';
  readonly instance: string;
  readonly incarnation: string;
  readonly rank: number;
  readonly logIndex: number;
  readonly step: number;
  readonly pins: readonly PinView[];
  /** In order of the queue, then of start. Quarantined ones are under `quarantine`. */
  readonly imports: readonly ImportView[];
  readonly quarantine: readonly ImportView[];
  /** Block hashes being imported, by attempt. */
  readonly hashOwners: readonly (readonly [bigint, number])[];
}

/** What a router scores by (spec 13.6). */
export interface Load {
  readonly role: 'prefill' | 'decode';
  readonly maxRequests: number;
  /** Decode: imports that wait. Prefill: permits not used yet. */
  readonly queued: number;
  /** Decode: imports between reservation and admission. Prefill: pins. */
  readonly active: number;
  readonly blocksUsable: number;
  readonly blocksFree: number;
  readonly blocksEvictable: number;
  readonly blocksPinned: number;
  readonly blocksQuarantined: number;
  /** Decode: blocks that imports may still grow into once they run; an engine that takes blocks for other work leaves them. */
  readonly blocksReserved: number;
  readonly slotsFree: number | null;
  readonly slotsTotal: number | null;
  /** The scarcer of free requests, blocks and slots, 0 to 1. */
  readonly freeFraction: number;
}

export interface Observed {
  readonly context: EngineContext;
  readonly options: CompiledOptions;
  readonly log: ScheduleLog;
  readonly decode: DecodeSide | null;
  readonly prefill: PrefillSide | null;
}

export function inspectionOf({ options, log, decode, prefill }: Observed): Inspection {
  const now = options.clock.now();
  const imports = [...(decode?.role.imports.values() ?? [])];
  return {
    role: decode === null ? 'prefill' : 'decode',
    instance: options.instance,
    incarnation: options.incarnation,
    rank: log.rank,
    logIndex: log.logIndex,
    step: log.stepIndex,
    pins: [...(prefill?.role.ledger.all() ?? [])].map((pin) => ({
      handoffId: pin.handoffId,
      requestId: pin.requestId,
      state: pin.state,
      owner: pin.owner,
      ageMs: now - pin.pinnedAt,
      blocks: Array.from(pin.blocks),
      slot: pin.slot,
      pushing: pin.pushing,
      overdue: now - pin.pinnedAt >= options.deadlines.pinMs,
    })),
    imports: imports.filter(({ state }) => state !== 'quarantined').map((pending) => importView(pending, now)),
    quarantine: imports.filter(({ state }) => state === 'quarantined').map((pending) => importView(pending, now)),
    hashOwners: [...(decode?.role.hashOwners.entries() ?? [])],
  };
}

export function loadOf({ context, decode, prefill }: Observed): Load {
  const { blocks, slots, maxRequests } = context;
  const usable = blocks.poolSize - 1;
  const free = blocks.freeCount + blocks.evictableCount;
  const quarantined = [...(decode?.role.quarantined.values() ?? [])].reduce(
    (sum, { reservation }) => sum + blocksOf(reservation),
    0,
  );
  const queued = decode?.queuedCount ?? prefill?.role.ledger.permitCount ?? 0;
  const active =
    decode === null ? (prefill?.role.ledger.size ?? 0) : decode.role.inFlight.size + decode.role.agreed.size;
  const fractions = [free / usable, Math.max(0, maxRequests - queued - active) / maxRequests];
  if (slots !== null) fractions.push(slots.freeCount / slots.size);
  return {
    role: decode === null ? 'prefill' : 'decode',
    maxRequests,
    queued,
    active,
    blocksUsable: usable,
    blocksFree: blocks.freeCount,
    blocksEvictable: blocks.evictableCount,
    blocksPinned: prefill?.role.ledger.pinnedBlocks ?? 0,
    blocksQuarantined: quarantined,
    blocksReserved: decode?.role.growthReserved ?? 0,
    slotsFree: slots?.freeCount ?? null,
    slotsTotal: slots?.size ?? null,
    freeFraction: Math.min(...fractions),
  };
}

function blocksOf(reservation: PendingImport['reservation']): number {
  return reservation === null ? 0 : reservation.blocks.length + reservation.continuation.length;
}

function importView(pending: PendingImport, now: number): ImportView {
  const { reservation, local } = pending;
  return {
    attemptId: pending.attemptId,
    requestId: pending.requestId,
    source: pending.source.handoff,
    state: viewState(pending),
    cancelling: pending.state === 'cancelling' || pending.state === 'aborting',
    ageMs: now - pending.addedAt,
    blocks: Array.from(reservation?.blocks ?? []),
    continuationBlocks: Array.from(reservation?.continuation ?? []),
    slot: reservation?.slot ?? null,
    cachedPrefixBlocks: reservation?.cachedPrefixBlocks ?? 0,
    bytesDone: local?.bytesDone ?? 0,
    transports: local?.transportNames ?? [],
    error: pending.error?.message ?? local?.error?.message ?? null,
    transportPollErrors: local?.pollErrors ?? 0,
  };
}

function viewState({ state, local }: PendingImport): ImportViewState {
  switch (state) {
    case 'reserved':
    case 'cancelling':
      if (local === null || local.state === 'gated') return 'reserved';
      if (local.state === 'active') return 'transferring';
      return local.state === 'landed' ? 'landed' : 'failing';
    case 'aborting':
    case 'completed':
    case 'reclaimed':
      return 'admitted';
    default:
      return state;
  }
}
