/**
 * Promise: where one source rank of a handoff can only be read and another only push, all are pushed when they can be, and
 * are refused when not; nobody waits for a push that nobody makes.
 */
import { ScriptedNetwork } from '../../lib/testing/index.js';
import { createWorld, hybridShape, Instance, type World } from '../support/lifecycle-fixture.js';
import type { Ticket } from '../../lib/ticket.js';

const prompt = [1, 2, 3, 4, 5, 6];

/** Two ranks a side that can be read over `near` and pushed over `far`. */
function createMixed(): Promise<World> {
  return createWorld(
    { tpSize: 2 },
    { tpSize: 2 },
    {
      shape: hybridShape,
      transport: { name: 'near' },
      otherTransports: [{ name: 'far', direction: 'push' }],
    },
  );
}

/** Takes the grant of this name from the source rank. */
function without(ticket: Ticket, taken: Readonly<Record<number, string>>): Ticket {
  const text = JSON.stringify(ticket.kvMeta, (_, value: unknown) => (typeof value === 'bigint' ? `${value}n` : value));
  const kvMeta = JSON.parse(text, (_, value: unknown) => {
    if (typeof value === 'string' && /^-?\d+n$/.test(value)) return BigInt(value.slice(0, -1));
    const rank = value as { readonly tp_rank?: number; readonly transports?: Record<string, unknown> } | null;
    const name = rank?.transports === undefined ? undefined : taken[rank.tp_rank!];
    if (name === undefined) return value;
    const transports = Object.fromEntries(Object.entries(rank!.transports!).filter(([each]) => each !== name));
    return { ...rank, transports };
  }) as Ticket['kvMeta'];
  return { ...ticket, kvMeta };
}

test('a source rank that cannot be read makes the whole handoff a push', async () => {
  const { network, prefill, decode, begun } = await createMixed();
  prefill.releaseWhenRead(decode);
  const outcome = decode.add('r', prompt, without(prefill.handOver('r', prompt), { 1: 'near' }));
  await decode.step();
  expect(decode.seen('kvTransferReady')).toHaveLength(1);
  prefill.handoff.pushHandoffKv('r', decode.handoff.instanceMeta);
  for (let turn = 0; turn < 40 && outcome.settled === 0; turn += 1) {
    await prefill.step();
    network.clock.advance(10);
    await decode.step();
  }
  expect(outcome).toMatchObject({ settled: 1, error: null });
  expect(new Set(begun.map(({ target }) => target.name))).toEqual(new Set(['far']));
  await prefill.step();
  expect(prefill.handoff.inspect().pins).toEqual([]);
});

test('ranks that share no way are refused, and their memory comes back', async () => {
  const { prefill, decode, begun } = await createMixed();
  prefill.releaseWhenRead(decode);
  const before = decode.handoff.load().blocksFree;
  const outcome = decode.add('r', prompt, without(prefill.handOver('r', prompt), { 0: 'far', 1: 'near' }));
  await decode.step(4);
  expect(outcome).toMatchObject({ settled: 1, error: { code: 'NO_TRANSPORT' } });
  expect(outcome.error!.message).toContain('it reaches 1 of 2 pairs of ranks');
  expect(decode.seen('kvTransferReady')).toEqual([]);
  expect(begun).toEqual([]);
  expect(decode.handoff.load().blocksFree).toBe(before);
  await prefill.step();
  expect(prefill.handoff.inspect().pins).toEqual([]);
});

test('without that, all are read', async () => {
  const { network, prefill, decode, begun } = await createMixed();
  const outcome = decode.add('r', prompt, prefill.handOver('r', prompt));
  for (let turn = 0; turn < 40 && outcome.settled === 0; turn += 1) {
    network.clock.advance(10);
    await decode.step();
  }
  expect(outcome).toMatchObject({ settled: 1, error: null });
  expect(decode.seen('kvTransferReady')).toEqual([]);
  expect(new Set(begun.map(({ target }) => target.name))).toEqual(new Set(['near']));
});

test('ranks of one instance that open different transports are no instance', async () => {
  const transports = { transport: { name: 'near' }, otherTransports: [{ name: 'far', direction: 'push' as const }] };
  const { ranks } = await Instance.create(new ScriptedNetwork(), 'decode', { tpSize: 2, setUp: false, ...transports });
  const outcomes = await Promise.allSettled(
    ranks.map(({ handoff, transports: opened, given }, index) =>
      handoff.setupKvTransfer('decode', index === 0 ? opened : opened.slice(0, 1), { group: given }),
    ),
  );
  const refused = { status: 'rejected', reason: { code: 'INCOMPATIBLE', details: { field: 'backend' } } };
  expect(outcomes).toMatchObject([refused, refused]);
});
