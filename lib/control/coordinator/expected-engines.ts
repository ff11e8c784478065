/**
 * The engines of a deployment by their names on the control plane (spec 1.2, 2). A coordinator that knows them refuses every
 * other, and one of another role or shape than its name says. Pure.
 */
import { HandoffError } from '../../errors.js';
import { shardInstances, type InferenceShards, type ShardRole } from '../../topology/inference-shards.js';
import type { WireMap } from '../protocol/wire-value.js';
import type { EngineCard } from './registration.js';

/** One engine that may register. */
export interface ExpectedEngine {
  /** Its connection's routing id, for example `prefill_s0_dp0`. */
  readonly identity: string;
  /** Null for an engine without a role. */
  readonly role: ShardRole | null;
  readonly tp: number;
  readonly pp: number;
}

/** What `--inference-shards` declares, in the order of the shards. @throws `ARGUMENT_INVALID` */
export function expectedEngines(shards: InferenceShards): ExpectedEngine[] {
  return shardInstances(shards).map(({ identity, shard: { role, tp, pp } }) => ({ identity, role, tp, pp }));
}

/**
 * @param expected - null: whoever comes
 * @param card - null for an engine without a role
 * @throws `INCOMPATIBLE` with the reason that the engine is told
 */
export function checkExpected(expected: readonly ExpectedEngine[] | null, peer: string, card: EngineCard | null): void {
  if (expected === null) return;
  const named = expected.find(({ identity }) => identity === peer);
  if (named === undefined) throw unlike('identity', `one of ${namesOf(expected)}`, JSON.stringify(peer.slice(0, 64)));
  const { identity, role, tp, pp } = named;
  if (card === null) return;
  if (card.role !== role) throw unlike('role', `${role}, as ${identity} has`, card.role);
  const ranks = card.instanceMeta as readonly WireMap[];
  if (ranks.length !== tp * pp)
    throw unlike('transfer metadata', `${tp * pp} ranks, tp ${tp} × pp ${pp} of ${identity}`, ranks.length);
  for (const [key, size] of [
    ['tp_size', tp],
    ['pp_size', pp],
  ] as const) {
    const odd = ranks.findIndex((rank) => (rank.get(key) ?? size) !== size);
    if (odd >= 0)
      throw unlike(`transfer metadata[${odd}].${key}`, `${size}, as ${identity} has`, String(ranks[odd]!.get(key)));
  }
}

const shownMax = 8;

function namesOf(expected: readonly ExpectedEngine[]): string {
  const more = expected.length > shownMax ? `, … (${expected.length} in all)` : '';
  return (
    expected
      .slice(0, shownMax)
      .map(({ identity }) => identity)
      .join(', ') + more
  );
}

function unlike(field: string, expected: string, got: string | number): HandoffError {
  return new HandoffError('INCOMPATIBLE', `${field}: expected ${expected}, got ${got}`);
}
