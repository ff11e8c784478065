/**
 * Promise: one handoff moves over several transports where its pairs of ranks need that, within one target rank and over
 * several, and every rank gets its part: what decode generates is what one engine alone generates.
 *
 * Both instances of a case are in this process; that a source rank is on another machine is put into its grant.
 */
import type { EngineMemory } from '../../examples/engine/engine-memory.js';
import type { Backend, BlockPool, SsmSlotPool } from '../../lib/index.js';
import { HostTransport } from '../../lib/transfer/transports/host.js';
import { NixlTransport } from '../../lib/transfer/transports/nixl.js';
import type { Transport } from '../../lib/transfer/transport.js';
import { layoutCases, type LayoutCase } from '../support/layout-cases.js';
import { runLayoutCase, type LayoutOutcome } from '../support/layout-handoff.js';
import { nixlMissing } from '../support/nixl-fixture.js';
import { describeOptional } from '../support/optional.js';

type Role = 'prefill' | 'decode';

const [twoToOne, twoToTwo] = (['TP1', 'TP2'] as const).map((target) =>
  layoutCases([['TP2', target]]).find(({ kind, situation }) => kind === 'hybrid' && situation === 'cached prefix')!,
) as [LayoutCase, LayoutCase];

/** Puts tensor rank 1 of the source on another machine, as far as its grants tell. */
function farAway(ticket: string): string {
  let moved = 0;
  const altered = JSON.stringify(JSON.parse(ticket), (_, value: Record<string, unknown> | null) => {
    const { host } = (value?.['transports'] ?? {}) as { readonly host?: object };
    if (host === undefined || value!['tp_rank'] !== 1) return value;
    moved += 1;
    return {
      ...value,
      transports: { ...(value!['transports'] as object), host: { ...host, machine: 'f'.repeat(32) } },
    };
  });
  expect(moved).toBeGreaterThan(0);
  return altered;
}

function expectAlike(outcome: LayoutOutcome): void {
  expect(outcome.warnings).toEqual([]);
  expect(outcome.bits).toBe(outcome.expected);
  expect(outcome.logProbs).toEqual(outcome.expectedLogProbs);
  expect(outcome.missing).toEqual(outcome.missing.map(() => 0));
}

/** The host transport under another name: a second way to the same memory. */
function roundabout(_role: Role, { blocks, slots }: EngineMemory): Transport {
  const blockGenerations = (blocks as BlockPool).generations!;
  const slotGenerations = (slots as SsmSlotPool).generations!;
  return Object.defineProperty(new HostTransport({ blockGenerations, slotGenerations }), 'name', {
    value: 'roundabout',
  });
}

function suite(name: string, second: (role: Role, memory: EngineMemory) => Transport): void {
  const backend = (role: Role, memory: EngineMemory): Backend => ['host', second(role, memory)];

  test('a target rank reads one source rank over host and the other over the second', async () => {
    const outcome = await runLayoutCase(twoToOne, backend, farAway);
    expectAlike(outcome);
    expect(outcome.movers).toEqual([['host', name]]);
  });

  test('one target rank reads over host and the other over the second', async () => {
    const outcome = await runLayoutCase(twoToTwo, backend, farAway);
    expectAlike(outcome);
    expect(outcome.movers).toEqual([['host'], [name]]);
  });

  test('without such a rank all read over host', async () => {
    const outcome = await runLayoutCase(twoToOne, backend);
    expectAlike(outcome);
    expect(outcome.movers).toEqual([['host']]);
  });
}

describe('host and another one-sided transport', () => suite('roundabout', roundabout));

describeOptional('nixl', nixlMissing(), 'host and NIXL', () =>
  suite('nixl', (role) => new NixlTransport({ exports: role === 'prefill', packPatienceMs: 60_000 })),
);
