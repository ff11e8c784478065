/** What an operator may ask, as an object and as the map that travels (keys in snake_case). */
import { Float64, type Wire, type WireMap } from '../protocol/wire-value.js';
import type { CoordinatorState } from './control-signals.js';
import type { EngineRecord } from './engine-record.js';
import type { ExpectedEngine } from './expected-engines.js';
import type { HeldPin } from './held-pins.js';
import type { CoordinatorSnapshot, EngineSnapshot, PinSnapshot } from './interface.js';
import type { OwnershipRecord } from './ownership-ledger.js';
import type { RequestRecord } from './request-record.js';
import { isTerminating, type RequestState } from './request-table.js';

export interface SnapshotParts {
  readonly nowMs: number;
  readonly instance: string;
  readonly state: CoordinatorState;
  readonly epoch: number | null;
  readonly clients: number;
  readonly engines: Iterable<EngineRecord>;
  readonly expected: readonly ExpectedEngine[] | null;
  readonly requests: Iterable<RequestRecord>;
  readonly ownership: Iterable<OwnershipRecord>;
  readonly heldPins: Iterable<HeldPin>;
  readonly affinityEntries: number;
  readonly promptBytes: number;
  readonly counters: Readonly<Record<string, number>>;
}

/** Pins that a status reply lists, the oldest first. */
const pinsListedMax = 1000;

export function snapshotOf(parts: SnapshotParts): CoordinatorSnapshot {
  const { nowMs, instance, state, epoch, clients, affinityEntries, promptBytes, counters } = parts;
  const requests = { queuedPrefill: 0, prefill: 0, queuedDecode: 0, decode: 0, terminating: 0 };
  const pins: PinSnapshot[] = [];
  for (const request of parts.requests) {
    requests[phaseOf(request.state)]++;
    if (request.isPinned) pins.push(pinOf(request, nowMs));
  }
  for (const { requestId, engine, owner, since, state: ownership } of parts.ownership)
    pins.push({ requestId, prefill: engine.peer, decode: null, owner, ageMs: nowMs - since, state: ownership });
  for (const { requestId, engine, owner, since } of parts.heldPins)
    pins.push({ requestId, prefill: engine.peer, decode: null, owner, ageMs: nowMs - since, state: 'in-doubt' });
  const engines = Array.from(parts.engines, engineSnapshot);
  const present = new Set(engines.map(({ peer }) => peer));
  const missing = (parts.expected ?? []).map(({ identity }) => identity).filter((name) => !present.has(name));
  const tables = { affinityEntries, promptBytes, counters };
  return { instance, state, epoch, clients, engines, missing, requests, pins, ...tables };
}

/** @param snapshot - its lists may be long; pins are cut, and their number is told */
export function statusMap(snapshot: CoordinatorSnapshot): WireMap {
  const pins = [...snapshot.pins].sort((a, b) => b.ageMs - a.ageMs).slice(0, pinsListedMax);
  return new Map([...(wireOf({ ...snapshot, pins }) as WireMap), ['pins_total', snapshot.pins.length]]);
}

function phaseOf(state: RequestState): keyof CoordinatorSnapshot['requests'] {
  if (isTerminating(state)) return 'terminating';
  if (state === 'waitingPrefill') return 'queuedPrefill';
  if (state === 'waitingDecode') return 'queuedDecode';
  return state === 'prefill' ? 'prefill' : 'decode';
}

const pinStates: Readonly<Partial<Record<RequestState, string>>> = {
  prefill: 'prefilling',
  cancellingPrefill: 'prefilling',
  waitingDecode: 'queued',
  importing: 'transferring',
  cancellingImport: 'transferring',
};

function pinOf({ id, prefill, decode, pinnedAt, state }: RequestRecord, nowMs: number): PinSnapshot {
  return {
    requestId: id,
    prefill: prefill!.peer,
    decode: decode?.peer ?? null,
    owner: decode?.owner ?? null,
    ageMs: nowMs - pinnedAt,
    state: pinStates[state] ?? 'in-doubt',
  };
}

function engineSnapshot(engine: EngineRecord): EngineSnapshot {
  const { peer, role, card, active, queued, requestCapacity, slotsUsed, slotCapacity, load, extension } = engine;
  return {
    peer,
    role,
    transports: card?.transports ?? [],
    instance: extension?.instance ?? null,
    incarnation: extension?.incarnation ?? null,
    active,
    queued,
    requestCapacity,
    slotsUsed,
    slotCapacity,
    load,
  };
}

function wireOf(value: unknown): Wire {
  if (Array.isArray(value)) return value.map(wireOf);
  if (typeof value === 'object' && value !== null)
    return new Map(Object.entries(value).map(([key, inner]) => [snakeCase(key), wireOf(inner)]));
  return typeof value === 'number' && !Number.isSafeInteger(value) ? new Float64(value) : (value as Wire);
}

function snakeCase(key: string): string {
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
