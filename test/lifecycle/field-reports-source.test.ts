/**
 * Field reports about the source side: pins that leaked, were freed early, or were never reaped (section A). Rule
 * instead of a lease: a pin ends by a release, by attested death, or by age where a late reader notices.
 */
import { ScriptedTransport } from '../../lib/testing/scripted-transport.js';
import { faults } from '../../lib/testing/transfer-script.js';
import {
  add,
  codeThrown,
  compute,
  finishedOf,
  handOff,
  heard,
  instance,
  pair,
  prefillStep,
  promptOf,
  push,
  settle,
  single,
  step,
  unheldBlocks,
  until,
  world,
  type Rank,
} from '../support/misuse-world.js';

const limit = { options: { deadlines: { pinMs: 100 } } };

test('field report 1: a handoff that nobody asks for again is freed by its limit, once, and counted as expired', async () => {
  const network = world();
  const prefill = await single({ role: 'prefill', network, ...limit });
  const free = unheldBlocks(prefill);
  handOff(prefill);
  network.advance(99);
  prefillStep(prefill);
  expect(heard(prefill, 'released')).toEqual([]);
  network.advance(1);
  for (let i = 0; i < 3; i += 1) prefillStep(prefill);
  expect(heard(prefill, 'released')).toMatchObject([{ notice: { reason: 'expired' } }]);
  expect(prefill.sdk.metrics().counters).toMatchObject({ pins_expired_total: 1 });
  expect(unheldBlocks(prefill)).toBe(free);
});

test('field report 1: where a late reader would not notice, age ends nothing and is told once', async () => {
  const network = world();
  const [rank] = await instance({ role: 'prefill', network, ...limit, transport: { name: 'blind' } });
  // The same engine behind a transport that looks at no generations.
  const blind = new ScriptedTransport(network);
  const { engine } = rank!;
  const { StateHandoff } = await import('../../lib/state-handoff.js');
  const sdk = new StateHandoff(engine, { clock: network.clock, deadlines: { pinMs: 100 } });
  await sdk.setupKvTransfer('prefill', blind);
  const overdue: unknown[] = [];
  sdk.on('pinOverdue', (notice) => overdue.push(notice));
  const blindRank: Rank = { ...rank!, sdk };
  handOff(blindRank);
  network.advance(1000);
  for (let i = 0; i < 3; i += 1) prefillStep(blindRank);
  expect(overdue).toMatchObject([{ requestId: 'r', ageMs: 1000, owner: null }]);
  expect(sdk.inspect().pins).toMatchObject([{ overdue: true }]);
});

test('field report 2: a read that starts after the source let go fails as expired, and no byte of it is used', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, limit);
  const handed = handOff(prefill);
  network.advance(100);
  prefillStep(prefill);
  // The next owner of those blocks writes to them.
  expect(prefill.engine.hog(31)).toBe(31);
  const outcome = add(decode, handed);
  await until(outcome, decode);
  expect(outcome.error!.code).toBe('HANDOFF_EXPIRED');
  expect(outcome.error!.retryable).toBe(true);
  expect(decode.engine.batch.running.size).toBe(0);
  expect(decode.engine.blocks.freeCount).toBe(31);
});

test('field report 4: a handoff that decode refuses before it is a request frees the source at once', async () => {
  const { prefill, decode } = await pair(world());
  decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
  const { ticket } = handOff(prefill);
  decode.sdk.rejectKvHandoff('r', ticket.kvMeta);
  expect(prefill.sdk.inspect().pins).toEqual([]);
});

test.each(['abort first', 'bytes first'])(
  'field report 5: an abort and an arrival in either order (%s) release once and harm nobody',
  async (order) => {
    const network = world();
    const { prefill, decode } = await pair(network);
    decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
    const handed = handOff(prefill);
    network.planNext({ startAfterMs: 5 });
    const outcome = add(decode, handed);
    if (order === 'bytes first') network.advance(5);
    expect(decode.sdk.abortKvHandoff('r')).toBe(true);
    network.advance(10);
    await until(outcome, decode);
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'ABORTED' } });
    expect(heard(prefill, 'released')).toHaveLength(1);
    expect(prefill.sdk.releaseHandoffBlocks('r')).toBe(false);
    expect(unheldBlocks(decode)).toBe(31);
  },
);

test('field report 7: an old pin that is kept alive hides no expired one behind it', async () => {
  const network = world();
  const prefill = await single({ role: 'prefill', network, ...limit, ...push });
  const handed = ['a', 'b', 'c'].map((id, index) => handOff(prefill, id, promptOf(4, index)));
  // The oldest stays because a push of it never ends.
  network.planNextConnect({ outcome: 'connecting' });
  const decode = await single({ role: 'decode', network, ...push });
  prefill.sdk.pushHandoffKv(handed[0]!.ticket.handoff!, decode.sdk.instanceMeta);
  network.advance(100);
  prefillStep(prefill);
  expect(prefill.sdk.inspect().pins).toMatchObject([{ requestId: 'a', state: 'draining' }]);
  expect(heard(prefill, 'released')).toHaveLength(2);
});

test.each([8, 94])('field report %p: local ids that differ on each side change nothing', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, push, push);
  decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
  decode.sdk.on('kvTransferReady', ({ source }) =>
    prefill.sdk.pushHandoffKv(source!, decode.sdk.instanceMeta, 0, decode.sdk.identity),
  );
  const handed = handOff(prefill, 'the name on prefill');
  const outcome = add(decode, handed, { num_tokens_to_generate: 2 }, 4711);
  for (let i = 0; i < 20 && outcome.settled === 0; i += 1) {
    step(decode);
    prefillStep(prefill);
    network.advance(1);
    await settle();
  }
  prefillStep(prefill);
  expect(outcome.finished!.requestId).toBe(4711);
  expect(prefill.sdk.inspect().pins).toEqual([]);
});

test('field report 10: an idle engine releases a pin without a new request', async () => {
  const network = world();
  const { prefill } = await pair(network);
  handOff(prefill);
  expect(prefill.engine.prefills.size).toBe(0);
  prefill.sdk.releaseHandoffBlocks('r');
  expect(prefill.sdk.inspect().pins).toEqual([]);
});

test('field report 13: a pool that is full of expired pins comes free by itself, and prefill goes on', async () => {
  const network = world();
  const prefill = await single({ role: 'prefill', network, ...limit, engine: { poolSize: 9 } });
  for (let i = 0; i < 4; i += 1) handOff(prefill, i, promptOf(8, i));
  expect(prefill.engine.prefill('next', promptOf(8, 9))).toBeNull();
  network.advance(100);
  prefillStep(prefill);
  expect(prefill.engine.prefill('next', promptOf(8, 9))).not.toBeNull();
});

test('field report 14: a limit fires with an empty queue, on every rank in the same step', async () => {
  const network = world();
  const ranks = await instance({ role: 'prefill', network, size: 2, ...limit });
  handOff(ranks);
  network.advance(100);
  prefillStep(ranks);
  for (const rank of ranks) expect(heard(rank, 'released')).toMatchObject([{ notice: { reason: 'expired' } }]);
  expect(ranks[0]!.engine.blocks.digest()).toBe(ranks[1]!.engine.blocks.digest());
});

test('field report 16: releasing twice returns blocks once', async () => {
  const prefill = await single({ role: 'prefill', network: world() });
  const { handoff } = handOff(prefill).ticket;
  expect(prefill.sdk.releaseHandoffBlocks(handoff!)).toBe(true);
  const digest = prefill.engine.blocks.digest();
  expect(prefill.sdk.releaseHandoffBlocks(handoff!)).toBe(false);
  expect(prefill.sdk.releaseHandoffBlocks('r')).toBe(false);
  expect(prefill.engine.blocks.digest()).toBe(digest);
});

test('field report 17: with a limit of two, four of six wait before anything of them is pinned', async () => {
  const prefill = await single({
    role: 'prefill',
    network: world(),
    options: { limits: { maxPinnedHandoffs: 2 } },
  });
  const ids = [0, 1, 2, 3, 4, 5];
  expect(ids.map((id) => prefill.sdk.tryPinPermit(id, 1))).toEqual([true, true, false, false, false, false]);
  handOff(prefill, 0, promptOf(4, 0));
  handOff(prefill, 1, promptOf(4, 1));
  const run = compute(prefill, 2, promptOf(4, 2));
  const prepared = prefill.sdk.prepareHandoffMetadataBatch([finishedOf(run)]);
  expect(codeThrown(() => prefill.sdk.captureHandoffMeta(2, prepared))).toBe('PIN_LIMIT');
  prefill.sdk.releaseHandoffBlocks(0);
  expect(prefill.sdk.tryPinPermit(2, 1)).toBe(true);
  expect(prefill.sdk.inspect().pins).toHaveLength(1);
});

test('field report 19: after an abort the real completion is what frees the memory', async () => {
  const network = world();
  const { prefill, decode } = await pair(network);
  network.planNext(faults.lateDone(10, 'done'));
  const outcome = add(decode, handOff(prefill));
  decode.sdk.abortKvHandoff('r');
  step(decode);
  expect(decode.engine.blocks.freeCount).toBe(28);
  expect(outcome.settled).toBe(0);
  await until(outcome, decode);
  expect(outcome.error!.code).toBe('ABORTED');
  expect(decode.engine.blocks.freeCount).toBe(31);
});

describe.each([true, false])('field report 20: target safe at the failure: %s', (safe) => {
  test.each(['failure', 'abort'])('both sides end at nothing held (%s)', async (how) => {
    const network = world();
    const { prefill, decode } = await pair(network);
    decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
    network.planNext(safe ? faults.error('now') : faults.errorWhileWriting('later', 20));
    const outcome = add(decode, handOff(prefill));
    if (how === 'abort') decode.sdk.abortKvHandoff('r');
    await until(outcome, decode);
    for (let i = 0; i < 50; i += 1) {
      network.advance(1);
      step(decode);
    }
    expect(unheldBlocks(decode)).toBe(31);
    expect(decode.sdk.inspect()).toMatchObject({ imports: [], quarantine: [], hashOwners: [] });
    expect(prefill.sdk.inspect().pins).toEqual([]);
    expect(unheldBlocks(prefill)).toBe(31);
    expect(heard(decode, 'kvReadDone')).toHaveLength(1);
  });
});
