/**
 * Every state a `StateHandoff` can be in, as far as a caller can bring it there: its life, its role, its rank and the
 * carrier of its log. The misuse matrix makes each call in each of them.
 */
import type { ScriptedNetwork } from '../../lib/testing/scripted-network.js';
import { newRanks, setUp, world, type Carrier, type Rank, type Role } from './misuse-world.js';

export interface Situation {
  readonly life: 'new' | 'settingUp' | 'running' | 'draining' | 'closed';
  /** Null: it has none yet. */
  readonly role: Role | null;
  readonly rank: 0 | 1;
  readonly carrier: Carrier;
}

const places: readonly Pick<Situation, 'rank' | 'carrier'>[] = [
  { rank: 0, carrier: 'local' },
  { rank: 0, carrier: 'group' },
  { rank: 1, carrier: 'group' },
  { rank: 0, carrier: 'host' },
  { rank: 1, carrier: 'host' },
];
const alone = places[0]!;

export const situations: readonly Situation[] = [
  { life: 'new', role: null, ...alone },
  { life: 'settingUp', role: 'prefill', rank: 0, carrier: 'group' },
  { life: 'settingUp', role: 'decode', rank: 0, carrier: 'group' },
  ...(['running', 'draining', 'closed'] as const).flatMap((life) =>
    (['prefill', 'decode'] as const).flatMap((role) => places.map((place) => ({ life, role, ...place }))),
  ),
  { life: 'closed', role: null, ...alone },
];

export function nameOf({ life, role, rank, carrier }: Situation): string {
  const who = role === null ? '' : ` ${role} rank ${rank}, ${carrier} carrier`;
  return `${life}${who}`;
}

export interface Staged {
  readonly network: ScriptedNetwork;
  /** The rank that is called. */
  readonly rank: Rank;
  readonly ranks: readonly Rank[];
  /** A setup that is under way; it ends when `finish` is called. */
  readonly pending: Promise<unknown> | null;
  /** Lets the other ranks join a setup that is under way. */
  readonly finish: () => Promise<unknown>;
}

/** A fresh object in that situation. */
export async function stage({ life, role, rank, carrier }: Situation): Promise<Staged> {
  const network = world();
  const ranks = newRanks({ role: role ?? 'prefill', network, carrier, size: carrier === 'local' ? 1 : 2 });
  const called = ranks[rank]!;
  let pending: Promise<unknown> | null = null;
  let finish = (): Promise<unknown> => Promise.resolve();
  if (life === 'settingUp') {
    pending = setUp(ranks.slice(0, 1), role!, carrier);
    pending.catch(() => undefined);
    finish = () => Promise.allSettled([pending, setUp(ranks.slice(1), role!, carrier)]);
  } else if (role !== null) {
    await setUp(ranks, role, carrier);
    if (life === 'draining') await Promise.all(ranks.map(({ sdk }) => sdk.drain()));
  }
  if (life === 'closed') for (const { sdk } of ranks) await sdk.close();
  return { network, rank: called, ranks, pending, finish };
}
