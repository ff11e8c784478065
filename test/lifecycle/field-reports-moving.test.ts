/**
 * Field reports about bytes that move while somebody gives up, waits or dies (sections B, C, D, F). One rule behind all:
 * a deadline or an abort ends a request; memory comes back on proof of quiet or attested death, and then always.
 */
import type { HandoffError } from '../../lib/errors.js';
import { faults } from '../../lib/testing/transfer-script.js';
import {
  add,
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
  until,
  world,
  type Rank,
} from '../support/misuse-world.js';

const patience = { options: { deadlines: { transferMs: 50, handshakeMs: 20, queueMs: 100 } } };

function pass(network: ReturnType<typeof world>, decode: Rank | readonly Rank[], ms: number): void {
  for (let i = 0; i < ms; i += 1) {
    network.advance(1);
    step(decode);
  }
}

test.each([0, 3, 10])(
  'field report 22: an abort %p ms into a slow write frees the target only when it is over',
  async (ms) => {
    const network = world();
    const { prefill, decode } = await pair(network);
    network.planNext({ pieces: 5, pieceMs: 2, cancelAfterMs: 7 });
    let writing = true;
    network.onQuiet = () => (writing = false);
    const outcome = add(decode, handOff(prefill));
    pass(network, [], ms);
    network.advance(ms);
    decode.sdk.abortKvHandoff('r');
    for (let i = 0; i < 30; i += 1) {
      step(decode);
      expect(writing && decode.engine.blocks.freeCount === 31).toBe(false);
      network.advance(1);
    }
    await settle();
    expect(outcome.error!.code).toBe('ABORTED');
    expect(decode.engine.blocks.freeCount).toBe(31);
  },
);

test('field report 23: an abort with a silent source holds the target until its death is attested; late words change nothing', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, {}, patience);
  network.planNext({ ...faults.peerRestart('silent'), cancelAfterMs: 1e6 });
  const outcome = add(decode, handOff(prefill));
  decode.sdk.abortKvHandoff('r');
  pass(network, decode, 200);
  await settle();
  expect(outcome.error!.code).toBe('ABORTED');
  expect(decode.sdk.inspect().quarantine).toHaveLength(1);
  expect(decode.engine.blocks.freeCount).toBe(28);
  decode.sdk.attestInstanceDead('prefill', 'first');
  pass(network, decode, 1);
  expect(decode.engine.blocks.freeCount).toBe(31);
  decode.sdk.attestInstanceDead('prefill', 'first');
  pass(network, decode, 10);
  expect(heard(decode, 'reclaimed')).toHaveLength(1);
});

test('field report 25: two decode ranks abort in the middle; the end is told after both are quiet', async () => {
  const network = world();
  const prefill = await single({ role: 'prefill', network });
  const decode = await instance({ role: 'decode', network, size: 2 });
  network.planNext({ startAfterMs: 3, pieces: 2, pieceMs: 300, cancelAfterMs: 5 });
  network.planNext({ startAfterMs: 3, pieces: 2, pieceMs: 300, cancelAfterMs: 20 });
  const outcome = add(decode[0]!, handOff(prefill));
  pass(network, decode, 4);
  decode[0]!.sdk.abortKvHandoff('r');
  pass(network, decode, 15);
  expect(heard(decode[0]!, 'kvReadDone')).toEqual([]);
  expect(decode.map(({ engine }) => engine.blocks.freeCount)).toEqual([28, 28]);
  pass(network, decode, 30);
  await settle();
  expect(outcome.error!.code).toBe('ABORTED');
  expect(heard(decode[0]!, 'kvReadDone')).toHaveLength(1);
  expect(decode.map(({ engine }) => engine.blocks.freeCount)).toEqual([31, 31]);
});

test('field report 26: a request that decode has forgotten is not said to be read while its handles live', async () => {
  const network = world();
  const { prefill, decode } = await pair(network);
  network.planNext(faults.errorWhileWriting('later', 30));
  const outcome = add(decode, handOff(prefill));
  await until(outcome, decode);
  // The label is free again, its memory is not.
  expect(decode.sdk.abortKvHandoff('r')).toBe(false);
  expect(heard(decode, 'kvReadDone', 'requestError')).toMatchObject([{ notice: { sourceSafe: false } }]);
  pass(network, decode, 60);
  expect(heard(decode, 'kvReadDone')).toHaveLength(1);
});

test.each([28, 32])(
  'field report %p: a cancel that proves nothing gives nothing back, however long it is waited for',
  async () => {
    const network = world();
    const { prefill, decode } = await pair(network, {}, { ...patience, transport: { provesQuietOnCancel: false } });
    network.planNext(faults.stall());
    const outcome = add(decode, handOff(prefill));
    await until(outcome, decode);
    expect(outcome.error!.code).toBe('TRANSFER_DEADLINE');
    expect(outcome.error!.targetSafe && outcome.error!.sourceSafe).toBe(false);
    pass(network, decode, 1000);
    expect(decode.sdk.inspect().quarantine).toHaveLength(1);
    expect(decode.engine.blocks.freeCount).toBe(28);
    await expect(decode.sdk.close()).rejects.toMatchObject({ code: 'MEMORY_IN_DOUBT' });
  },
);

test('field report 29: a thousand deadlines in the middle of transfers end requests and leave memory whole', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, {}, { options: { deadlines: { transferMs: 2 } } });
  decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
  for (let i = 0; i < 1000; i += 1) {
    network.planNext({ startAfterMs: 1, pieces: 4, pieceMs: 1, cancelAfterMs: 2 });
    const outcome = add(decode, handOff(prefill, i, promptOf(10, i % 7)));
    await until(outcome, decode);
    expect(outcome.error!.code).toBe('TRANSFER_DEADLINE');
    pass(network, decode, 5);
  }
  expect(decode.engine.blocks.freeCount).toBe(31);
  expect(prefill.sdk.inspect().pins).toEqual([]);
});

test('field report 31: a push that waits for its connection keeps the pin, and what it sends is the right state', async () => {
  const network = world();
  const limit = { options: { deadlines: { pinMs: 5 } } };
  const { prefill, decode } = await pair(network, { ...push, ...limit }, push);
  const handed = handOff(prefill);
  const outcome = add(decode, handed);
  network.planNextConnect({ outcome: 'ready', afterMs: 30 });
  prefill.sdk.pushHandoffKv('r', decode.sdk.instanceMeta, 0, decode.sdk.identity);
  network.advance(10);
  prefillStep(prefill);
  expect(prefill.sdk.inspect().pins).toMatchObject([{ state: 'draining', pushing: true }]);
  // Another request cannot get those blocks meanwhile.
  expect(prefill.engine.hog(31)).toBe(28);
  for (let i = 0; i < 60 && outcome.settled === 0; i += 1) {
    network.advance(1);
    prefillStep(prefill);
    step(decode);
    await settle();
  }
  // The test engine verifies every element when the request starts and when it ends.
  expect(outcome.error).toBeNull();
  prefillStep(prefill);
  expect(heard(prefill, 'released')).toMatchObject([{ notice: { reason: 'expired' } }]);
});

test('field report 34: an error without proof puts memory aside, and proof alone brings it back', async () => {
  const network = world();
  const { prefill, decode } = await pair(network);
  network.planNext(faults.errorWhileWriting('later', 25));
  const outcome = add(decode, handOff(prefill));
  await until(outcome, decode);
  expect(outcome.error!.code).toBe('TRANSFER_FAILED');
  expect(decode.sdk.load().blocksQuarantined).toBe(3);
  expect(heard(decode, 'quarantined')).toMatchObject([{ notice: { blocks: 3 } }]);
  pass(network, decode, 40);
  expect(decode.sdk.load().blocksQuarantined).toBe(0);
});

test('field report 35: a completion that never comes is a typed error at the deadline; the source is released once', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, {}, patience);
  decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
  network.planNext(faults.drop());
  const outcome = add(decode, handOff(prefill));
  await until(outcome, decode);
  expect(outcome.error).toMatchObject({ code: 'TRANSFER_DEADLINE', retryable: true });
  pass(network, decode, 5);
  expect(heard(prefill, 'released')).toHaveLength(1);
});

test.each([1, 2])(
  'field report 37: what has arrived before the first poll after the deadline is a success (%p ranks)',
  async (size) => {
    const network = world();
    const prefill = await single({ role: 'prefill', network });
    const decode = await instance({ role: 'decode', network, size, ...patience });
    const outcome = add(decode[0]!, handOff(prefill));
    step(decode);
    network.advance(1000);
    await until(outcome, decode);
    expect(outcome.error).toBeNull();
  },
);

test('field report 38: a source that failed before decode came answers at the first contact', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, {}, patience);
  const handed = handOff(prefill);
  network.kill(prefill.transport);
  const outcome = add(decode, handed);
  step(decode);
  await settle();
  expect(outcome.error!.code).toBe('PEER_UNREACHABLE');
  expect(decode.engine.blocks.freeCount).toBe(31);
});

describe('field report 40: a throw at any call of the transport ends in the same terminal failure', () => {
  const calls: Readonly<Record<string, (rank: Rank) => void>> = {
    connect: ({ transport }) =>
      jest.spyOn(transport, 'connect').mockImplementation(() => {
        throw new Error('odd');
      }),
    status: ({ transport }) =>
      jest.spyOn(transport, 'connect').mockReturnValue({ status: () => 'failed', error: null, close: () => undefined }),
    'begin, safely': ({ transport }) => transport.network.planNext(faults.beginThrows(true)),
    'begin, in doubt': ({ transport }) => transport.network.planNext(faults.beginThrows(false, true)),
    'begin, with something else': ({ transport }) =>
      jest.spyOn(transport, 'begin').mockImplementation(() => {
        throw new TypeError('odd');
      }),
    poll: ({ transport }) => transport.network.planNext(faults.pollThrows(1e9)),
  };
  test.each(Object.entries(calls))('%s', async (_name, fault) => {
    const network = world();
    const { prefill, decode } = await pair(network, {}, patience);
    fault(decode);
    const outcome = add(decode, handOff(prefill));
    await until(outcome, decode);
    expect(outcome.settled).toBe(1);
    expect((outcome.error as HandoffError).code).toMatch(/^(?:TRANSFER_|PEER_|INVARIANT)/);
    expect(heard(decode, 'requestError')).toHaveLength(1);
    expect(decode.sdk.metrics().counters).toMatchObject({ imports_failed_total: 1 });
    jest.restoreAllMocks();
    const next = add(decode, handOff(prefill, 'next', promptOf(6, 1)));
    await until(next, decode);
    expect(next.error).toBeNull();
  });
});

test('field report 41: a transport that is in progress for ever is ended by our deadline', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, {}, patience);
  network.planNext({ ...faults.stall(), cancelAfterMs: 1e9 });
  const outcome = add(decode, handOff(prefill));
  await until(outcome, decode);
  expect(outcome.error!.code).toBe('TRANSFER_DEADLINE');
});

test('field report 44: a wrong address fails its own request; another is served meanwhile', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, {}, patience);
  const other = await single({ role: 'prefill', network, options: { instance: 'other' } });
  network.planNextConnect({ outcome: 'connecting' });
  const lost = add(decode, handOff(prefill, 'lost'));
  const served = add(decode, handOff(other, 'served', promptOf(10, 3)));
  await until(served, decode);
  expect([served.error, lost.settled]).toEqual([null, 0]);
  await until(lost, decode);
  expect(lost.error!.code).toBe('HANDSHAKE_DEADLINE');
});

test.each([46, 47])(
  'field report %p: a hundred restarts of the source under one name: each is a new peer, decode goes on',
  async () => {
    const network = world();
    const decode = await single({ role: 'decode', network });
    for (let life = 0; life < 100; life += 1) {
      const options = { instance: 'prefill', incarnation: `life-${life}` };
      const prefill = await single({ role: 'prefill', network, options });
      const handed = handOff(prefill, life, promptOf(9, life % 5));
      if (life % 3 === 0) network.planNext(faults.peerRestart('noticed'));
      const outcome = add(decode, handed);
      await until(outcome, decode);
      expect(outcome.error?.code ?? null).toBe(life % 3 === 0 ? 'PEER_LOST' : null);
      expect(() => prefill.sdk.releaseHandoffBlocks({ ...handed.ticket.handoff!, incarnation: 'life-x' })).toThrow(
        expect.objectContaining({ code: 'HANDOFF_FENCED' }),
      );
      network.kill(prefill.transport);
    }
    expect(decode.sdk.inspect()).toMatchObject({ imports: [], quarantine: [] });
  },
);

test('field report 49: a restarted engine begins with no load', async () => {
  const network = world();
  const { prefill } = await pair(network);
  handOff(prefill);
  expect(prefill.sdk.load()).toMatchObject({ active: 1, blocksPinned: 3 });
  const again = await single({ role: 'prefill', network, options: { incarnation: 'second' } });
  expect(again.sdk.load()).toMatchObject({ active: 0, blocksPinned: 0, queued: 0, freeFraction: 1 });
});

test('field report 50: one claim a handoff; an owner that is fenced claims no more', async () => {
  const prefill = await single({ role: 'prefill', network: world() });
  const { handoff } = handOff(prefill, 'a').ticket;
  const other = handOff(prefill, 'b', promptOf(5, 2)).ticket.handoff!;
  expect(prefill.sdk.claimHandoff(handoff!, 'd/1')).toBe(true);
  expect(prefill.sdk.claimHandoff(handoff!, 'd/2')).toBe(false);
  prefill.sdk.attestInstanceDead('d', '1');
  expect(heard(prefill, 'released')).toMatchObject([{ notice: { requestId: 'a', reason: 'attested' } }]);
  expect(prefill.sdk.claimHandoff(other, 'd/1')).toBe(false);
  expect(prefill.sdk.claimHandoff({ ...other, incarnation: 'older' }, 'd/2')).toBe(false);
  expect(prefill.sdk.claimHandoff(other, 'd/2')).toBe(true);
});

test.each([61, 62])('field report %p: one of two ranks done is not done', async () => {
  const network = world();
  const prefill = await instance({ role: 'prefill', network, size: 2 });
  const decode = await instance({ role: 'decode', network, size: 2 });
  network.planNext({}, (_source, target) => target === decode[0]!.transport);
  network.planNext({ startAfterMs: 20 }, (_source, target) => target === decode[1]!.transport);
  const outcome = add(decode[0]!, handOff(prefill));
  pass(network, decode, 10);
  expect(decode.map(({ sdk }) => sdk.hasAdmittableKvImport)).toEqual([false, false]);
  expect(decode.map(({ engine }) => engine.batch.running.size)).toEqual([0, 0]);
  await until(outcome, decode);
  expect(outcome.error).toBeNull();
});

test('field report 64: one rank that fails takes all ranks the same way in the same step', async () => {
  const network = world();
  const prefill = await single({ role: 'prefill', network });
  const decode = await instance({ role: 'decode', network, size: 2 });
  network.planNext(faults.error(), (_source, target) => target === decode[1]!.transport);
  const outcome = add(decode[0]!, handOff(prefill));
  for (let i = 0; i < 10; i += 1) {
    pass(network, decode, 1);
    const [first, second] = decode.map(({ sdk, engine }) => [
      sdk.inspect().imports.map(({ state }) => state),
      engine.blocks.digest(),
    ]);
    expect(first![1]).toBe(second![1]);
  }
  await settle();
  expect(outcome.error!.code).toBe('PEER_RANK_FAILED');
});
