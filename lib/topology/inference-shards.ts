/**
 * The `--inference-shards` of the reference (spec 2): which parts of a world of ranks form engines, of which shape and role.
 *
 * Refuses unknown keys and roles, sizes below 1, context parallelism, a shard that its expert layout does not divide, and
 * a total that is not the world's size. A role counts however it is spaced, where the reference overlooks `role = x`.
 */
import { requireList, requireObject } from '../argument-shape.js';
import { argumentError, HandoffError } from '../errors.js';
import { isRecord } from '../json.js';
import { int32Max } from '../limits.js';
import { requireInteger } from '../memory/integer-field.js';

/** What engines of a shard do; null in a world that is not disaggregated. */
export type ShardRole = 'prefill' | 'decode';

/** One shard, complete and checked. */
export interface InferenceShard {
  /** Tensor-parallel ranks of one engine. */
  readonly tp: number;
  /** Pipeline stages of one engine. */
  readonly pp: number;
  /** Expert parallelism; it adds no ranks, experts spread over the `dp` engines. */
  readonly ep: number;
  /** Engines that are independent of each other. */
  readonly dp: number;
  /** Tensor parallelism of the experts; `tp` when it is not given. */
  readonly exptTp: number;
  readonly role: ShardRole | null;
  /** tp × pp × dp. */
  readonly worldSize: number;
  /** Its ranks are `firstRank` to `firstRank + worldSize - 1`: shards follow each other from left to right. */
  readonly firstRank: number;
}

/** A shard as an object, in the reference's own keys. */
export interface InferenceShardObject {
  readonly tp?: number;
  readonly pp?: number;
  readonly ep?: number;
  readonly dp?: number;
  readonly expt_tp?: number;
  /** Context parallelism; only 1 is taken. */
  readonly cp?: number;
  readonly role?: string | null;
}

/** All shards of a deployment as a specification names them (spec 2). */
export interface InferenceShards {
  readonly shards: readonly InferenceShard[];
  readonly worldSize: number;
  /** Whether any shard has a role. */
  readonly isDisaggregated: boolean;
  /** Keys that were given twice in one shard, as `shards[1].tp`; the last one counts (spec 2). */
  readonly overridden: readonly string[];
}

/** One engine of a shard. */
export interface ShardInstance {
  /** What it is called on the control plane (spec 1.2). */
  readonly identity: string;
  readonly shard: InferenceShard;
  readonly shardIndex: number;
  /** Which of the shard's `dp` engines. */
  readonly dpRank: number;
}

const sizeKeys = ['tp', 'pp', 'ep', 'dp', 'expt_tp', 'cp'] as const;
type SizeKey = (typeof sizeKeys)[number];
const keys = [...sizeKeys, 'role'].join(', ');

/** What was given for one shard. */
interface Given {
  readonly sizes: Partial<Record<SizeKey, number>>;
  role: ShardRole | null;
}

/**
 * Reads the text form (`tp=2,role=prefill+tp=1,dp=2,role=decode`; `;` does the same as `+`) or a list of objects.
 *
 * @param worldSize - ranks of the whole world; null: whatever the shards add up to
 * @throws `ARGUMENT_INVALID` naming the shard and key
 */
export function parseInferenceShards(
  given: string | readonly InferenceShardObject[],
  worldSize: number | null = null,
): InferenceShards {
  if (worldSize !== null && !Number.isSafeInteger(worldSize))
    throw argumentError('worldSize', 'a number of ranks or null', worldSize);
  const overridden: string[] = [];
  const parts = typeof given === 'string' ? fromText(given, overridden) : fromObjects(given);
  if (parts.length === 0)
    throw argumentError('shards', 'at least one shard', typeof given === 'string' ? given : 'none');
  const shards: InferenceShard[] = [];
  let total = 0;
  for (const [index, part] of parts.entries()) {
    const shard = complete(part, `shards[${index}]`, total);
    shards.push(shard);
    total += shard.worldSize;
  }
  if (worldSize !== null && total !== worldSize)
    throw argumentError('shards', `${worldSize} ranks, the size of the world`, total);
  return { shards, worldSize: total, isDisaggregated: shards.some(({ role }) => role !== null), overridden };
}

/**
 * What disaggregated serving needs of its shards (spec 2): a role for each, and each role at least once.
 *
 * @throws `ARGUMENT_INVALID` naming the shard without a role, or the role without a shard
 */
export function requireDisaggregated(given: InferenceShards): void {
  const shards = checkedShards(given);
  for (const [index, { role }] of shards.entries()) {
    if (role === null)
      throw argumentError(`shards[${index}].role`, 'prefill or decode, as other shards have one', null);
  }
  for (const role of ['prefill', 'decode'] as const) {
    if (!shards.some((shard) => shard.role === role))
      throw argumentError('shards', `at least one with role=${role}`, 'none');
  }
}

/** The engines of all shards, in order; with a role `prefill_s0_dp0`, without `mp-coord-0` (spec 1.2). */
export function shardInstances(given: InferenceShards): readonly ShardInstance[] {
  const shards = checkedShards(given);
  return shards.flatMap((shard, shardIndex) =>
    Array.from({ length: shard.dp }, (_, dpRank) => ({
      identity: shard.role === null ? `mp-coord-${dpRank}` : `${shard.role}_s${shardIndex}_dp${dpRank}`,
      shard,
      shardIndex,
      dpRank,
    })),
  );
}

/** The reference's `to_dict`: without `cp`, and with a role only where there is one. */
export function shardObject(shard: InferenceShard): InferenceShardObject {
  requireObject('shard', shard);
  const { tp, pp, ep, dp, exptTp, role } = shard;
  return { tp, pp, ep, dp, expt_tp: exptTp, ...(role === null ? {} : { role }) };
}

/** The shards of what `parseInferenceShards` made. @throws `ARGUMENT_INVALID` for anything else */
function checkedShards(given: InferenceShards): readonly InferenceShard[] {
  requireObject('shards', given, 'what parseInferenceShards gives');
  requireList('shards.shards', given.shards);
  given.shards.forEach((shard, index) => {
    requireObject(`shards.shards[${index}]`, shard);
    requireInteger(`shards.shards[${index}].dp`, shard.dp, 1);
    if (shard.role !== null && shard.role !== 'prefill' && shard.role !== 'decode')
      throw argumentError(`shards.shards[${index}].role`, 'prefill, decode or null', shard.role);
  });
  return given.shards;
}

function fromText(text: string, overridden: string[]): Given[] {
  const shards = text
    .split(/[+;]/)
    .map((shard) => shard.trim())
    .filter((shard) => shard !== '');
  return shards.map((shard, index) => {
    const part: Given = { sizes: {}, role: null };
    const seen = new Set<string>();
    for (const pair of shard.split(',')) {
      if (pair.trim() === '') continue;
      const equals = pair.indexOf('=');
      if (equals < 0) throw argumentError(`shards[${index}]`, 'key=value', pair.trim());
      const key = pair.slice(0, equals).trim();
      const path = `shards[${index}].${key}`;
      if (seen.has(key)) overridden.push(path);
      seen.add(key);
      const value = pair.slice(equals + 1).trim();
      if (key === 'role') part.role = roleOf(value, path);
      else if (isSizeKey(key)) part.sizes[key] = sizeOf(value, path);
      else throw argumentError(path, `a key that is one of ${keys}`, key);
    }
    return part;
  });
}

function fromObjects(given: readonly InferenceShardObject[]): Given[] {
  if (!Array.isArray(given)) throw argumentError('shards', 'a text or a list of shards', given);
  return given.map((object: unknown, index) => {
    const path = `shards[${index}]`;
    if (!isRecord(object)) throw argumentError(path, 'an object', object);
    const part: Given = { sizes: {}, role: null };
    for (const [key, value] of Object.entries(object)) {
      if (value === undefined) continue;
      if (key === 'role') part.role = value === null ? null : roleOf(value, `${path}.role`);
      else if (isSizeKey(key)) part.sizes[key] = requireSize(value, `${path}.${key}`);
      else throw argumentError(`${path}.${key}`, `a key that is one of ${keys}`, key);
    }
    return part;
  });
}

function complete({ sizes, role }: Given, path: string, firstRank: number): InferenceShard {
  const { tp = 1, pp = 1, ep = 1, dp = 1, cp = 1 } = sizes;
  const exptTp = sizes.expt_tp ?? tp;
  if (cp !== 1) throw argumentError(`${path}.cp`, '1, engines here have no context parallelism', cp);
  const worldSize = tp * pp * dp;
  if (firstRank + worldSize > int32Max) throw argumentError(path, `at most ${int32Max} ranks in all`, worldSize);
  if (worldSize % (exptTp * ep * pp) !== 0) {
    throw new HandoffError(
      'ARGUMENT_INVALID',
      `${path}: expected its ${worldSize} ranks (tp ${tp} × pp ${pp} × dp ${dp}) to be a multiple of expt_tp ${exptTp} × ep ${ep} × pp ${pp}, got a remainder of ${worldSize % (exptTp * ep * pp)}`,
      { details: { path } },
    );
  }
  return { tp, pp, ep, dp, exptTp, role, worldSize, firstRank };
}

function isSizeKey(key: string): key is SizeKey {
  return (sizeKeys as readonly string[]).includes(key);
}

/** An integer as the reference's language reads one: single underscores between digits are allowed. */
function sizeOf(text: string, path: string): number {
  if (!/^-?\d+(?:_\d+)*$/.test(text)) throw argumentError(path, 'an integer of at least 1', text);
  return requireSize(Number(text.replaceAll('_', '')), path);
}

function requireSize(value: unknown, path: string): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 1 || value > int32Max)
    throw argumentError(path, 'an integer of at least 1', value);
  return value;
}

function roleOf(value: unknown, path: string): ShardRole {
  const role = typeof value === 'string' ? value.trim().toLowerCase() : value;
  if (role !== 'prefill' && role !== 'decode') throw argumentError(path, 'prefill or decode', value);
  return role;
}
