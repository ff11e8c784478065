/**
 * What an engine says of itself when it registers a role (spec 1.5.2, 1.6), checked: role, transports, capacities, and the
 * geometry that all engines of one coordinator must share. Descriptors come from a peer: complete, bounded, or refused.
 */
import { argumentError, HandoffError } from '../../errors.js';
import type { EngineExtension, RegisterRole } from '../protocol/messages.js';
import type { Wire, WireMap } from '../protocol/wire-value.js';

export type EngineRole = 'prefill' | 'decode';

/** A registration that can be used. */
export interface EngineCard {
  readonly role: EngineRole;
  /** Best first; of a Megatron engine the one it named. */
  readonly transports: readonly string[];
  readonly requestCapacity: number;
  /** SSM slots; 0 for engines without SSM layers. */
  readonly slotCapacity: number;
  /** Slots that a prefill takes. */
  readonly prefillSlots: number;
  /** Equal text: states fit each other. */
  readonly signature: string;
  readonly instanceMeta: readonly Wire[];
  readonly extension: EngineExtension | null;
}

/** Ranks of one instance that are looked at. */
const ranksMax = 4096;
const geometryKeys = ['tokens_per_block', 'element_size', 'head_dim', 'num_layers_global', 'num_kv_heads_global'];
const stateKinds = ['conv', 'recurrent'];

/** @throws `ARGUMENT_INVALID` or `INCOMPATIBLE` with the reason that the engine is told */
export function readRegistration(message: RegisterRole): EngineCard {
  const { role, transport, instanceMeta, extension } = message;
  if (role !== 'prefill' && role !== 'decode') throw argumentError('role', 'prefill or decode', role);
  if (instanceMeta.length === 0 || instanceMeta.length > ranksMax)
    throw argumentError('transfer metadata', `a list of 1 to ${ranksMax} maps`, instanceMeta);
  const entries = instanceMeta.map((entry, index) => {
    if (!(entry instanceof Map)) throw argumentError(`transfer metadata[${index}]`, 'a map', entry);
    return entry as WireMap;
  });
  checkRanks(entries);
  const transports = extension?.transports ?? [transport];
  if (!transports.includes(transport)) throw argumentError('transports', `a list with ${transport}`, transports);
  const requestCapacity = least(entries, 'request_capacity');
  if (requestCapacity === null) throw argumentError('request_capacity', 'one in every entry', undefined);
  const slotCapacity = least(entries, 'ssm_slot_capacity') ?? 0;
  return {
    role,
    transports,
    requestCapacity,
    slotCapacity,
    prefillSlots: role === 'prefill' ? prefillSlotsOf(entries) : 0,
    signature: signatureOf(entries),
    instanceMeta,
    extension,
  };
}

/** The least value of a capacity; null where no entry has it. @throws where only some have it, or one is below 1 */
function least(entries: readonly WireMap[], key: string): number | null {
  const values = entries.map((entry) => entry.get(key) ?? null).filter((value) => value !== null);
  if (values.length === 0) return null;
  if (values.length < entries.length)
    throw argumentError(key, 'one in every entry: it is missing from part of them', values.length);
  return Math.min(...values.map((value) => positive(value, key)));
}

function positive(value: Wire | undefined, key: string): number {
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 1)
    throw argumentError(key, 'an integer that must be positive', value);
  return value;
}

/** Slots of one prefill: the most that any rank with SSM layers needs. */
function prefillSlotsOf(entries: readonly WireMap[]): number {
  const hybrid = entries.filter((entry) => isTrue(entry.get('ssm')));
  return Math.max(0, ...hybrid.map((entry) => positive(entry.get('ssm_handoff_max_slots'), 'ssm_handoff_max_slots')));
}

function isTrue(value: Wire | undefined): boolean {
  return value instanceof Map ? value.size > 0 : Array.isArray(value) ? value.length > 0 : Boolean(value);
}

/** Where ranks say who they are, each (stage, tensor rank) of the instance is there once. */
function checkRanks(entries: readonly WireMap[]): void {
  const named = entries.filter((entry) => entry.has('tp_rank') || entry.has('pp_rank'));
  if (named.length === 0) return;
  if (named.length < entries.length) throw argumentError('tp_rank', 'one in every entry or in none', named.length);
  const stages = new Map<number, { readonly tpSize: number; readonly ranks: Set<number> }>();
  const stageCount = rankOf(entries[0]!, 'pp')[1];
  for (const entry of entries) {
    const [tpRank, tpSize] = rankOf(entry, 'tp');
    const [ppRank, ppSize] = rankOf(entry, 'pp');
    if (ppSize !== stageCount) throw argumentError('pp_size', `${stageCount} in every entry`, ppSize);
    const stage = stages.get(ppRank) ?? { tpSize, ranks: new Set() };
    stages.set(ppRank, stage);
    if (tpSize !== stage.tpSize) throw argumentError('tp_size', `${stage.tpSize} in all of stage ${ppRank}`, tpSize);
    if (stage.ranks.has(tpRank))
      throw argumentError('transfer metadata', `rank (pp ${ppRank}, tp ${tpRank}) once`, 'it twice');
    stage.ranks.add(tpRank);
  }
  if (stages.size !== stageCount)
    throw argumentError('transfer metadata', `${stageCount} pipeline stages`, stages.size);
  for (const [stage, { tpSize, ranks }] of stages) {
    if (ranks.size !== tpSize)
      throw argumentError('transfer metadata', `${tpSize} tensor ranks of stage ${stage}`, ranks.size);
  }
}

function rankOf(entry: WireMap, kind: 'tp' | 'pp'): readonly [number, number] {
  const size = positive(entry.get(`${kind}_size`), `${kind}_size`);
  const rank = entry.get(`${kind}_rank`);
  if (typeof rank !== 'number' || !Number.isSafeInteger(rank) || rank < 0 || rank >= size || size > ranksMax)
    throw argumentError(`${kind}_rank`, `an integer below ${kind}_size`, rank);
  return [rank, size];
}

/** What must be equal for state to fit: the KV geometry, and for each kind of SSM state its shape and its layers. */
function signatureOf(entries: readonly WireMap[]): string {
  const kv = entries.map((entry) => geometryKeys.map((key) => entry.get(key) ?? null));
  const [first] = kv as [Wire[]];
  const isWhole = first.every((value) => typeof value === 'number');
  if (!isWhole || kv.some((each) => each.some((value, index) => value !== first[index])))
    throw incompatible(`${geometryKeys.join(', ')} must be there and equal in every entry`);
  const hybrid = entries.filter((entry) => isTrue(entry.get('ssm')));
  if (hybrid.length === 0) return JSON.stringify(first);
  return JSON.stringify([first, stateKinds.map((kind) => stateSignature(hybrid, kind))]);
}

function stateSignature(hybrid: readonly WireMap[], kind: string): unknown {
  const shapes = new Set<string>();
  const ranges = new Map<number, number>();
  for (const entry of hybrid) {
    const ssm = entry.get('ssm');
    const state = ssm instanceof Map ? (ssm as WireMap).get(kind) : undefined;
    if (!(state instanceof Map)) throw incompatible(`ssm.${kind} is missing from part of the entries`);
    const layout = (state as WireMap).get('ssm_layout');
    const dims = layout instanceof Map ? (layout as WireMap).get('dims') : undefined;
    if (!(layout instanceof Map) || !(dims instanceof Map))
      throw incompatible(`ssm.${kind} has no ssm_layout with dims`);
    const sorted = [...(dims as WireMap)].sort(([a], [b]) => (a < b ? -1 : 1));
    if (sorted.some(([, size]) => typeof size !== 'number')) throw incompatible(`ssm.${kind} dims must be integers`);
    const elementSize = (state as WireMap).get('element_size') ?? null;
    if (elementSize !== null && typeof elementSize !== 'number')
      throw incompatible(`ssm.${kind} element_size must be an integer`);
    shapes.add(JSON.stringify([elementSize, sorted]));
    const [start, layers] = ['layer_start', 'num_layers'].map((key) => (layout as WireMap).get(key));
    if (typeof start !== 'number' || typeof layers !== 'number' || (ranges.get(start) ?? layers) !== layers)
      throw incompatible(`ssm.${kind} layer ranges must be integers, one length for each start`);
    ranges.set(start, layers);
  }
  if (shapes.size !== 1) throw incompatible(`ssm.${kind} must have one shape in every entry`);
  let end = 0;
  for (const [start, layers] of [...ranges].sort(([a], [b]) => a - b)) {
    if (start !== end || layers < 0) throw incompatible(`ssm.${kind} layers must follow each other from 0`);
    end += layers;
  }
  return [...shapes, end];
}

/** @param why - what differs */
export function incompatible(why: string): HandoffError {
  return new HandoffError('INCOMPATIBLE', `incompatible transfer geometry: ${why}`);
}
