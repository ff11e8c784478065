/**
 * Spec 14.1, how an import ends when it does not end well: items 7 to 9, 14 to 17, 19, 24, 31 and 32.
 *
 * Memory that may still be written stays out of the pool whatever the caller was told (I2), and no deadline changes that
 * (I9). Every request settles once, has one terminal notice and one `kvReadDone` (I8). No hash is named before all ranks
 * have their bytes (I3).
 */
import { CompletionTracker } from '../../lib/decode/completion-tracker.js';
import { faults } from '../../lib/testing/index.js';
import {
  createWorld,
  hashesOf,
  hybridShape,
  poolState,
  promptOf,
  settle,
  type Instance,
  type InstanceOptions,
  type World,
} from '../support/lifecycle-fixture.js';

const unproved = { transport: { provesQuietOnCancel: false } };

/** A world in which one request of one block is on its way; its transfer does what `plan` says. */
async function onItsWay(plan: Parameters<World['network']['planNext']>[0], options: InstanceOptions = {}) {
  const world = await createWorld(options, {}, { shape: hybridShape, ...options });
  const { prefill, decode, network } = world;
  decode.arrangeBlocks([10, 11]);
  decode.arrangeSlots(20);
  const prompt = promptOf(4);
  const before = poolState(decode.engine.blocks);
  network.planNext(plan);
  const ticket = prefill.handOver(7, prompt);
  const outcome = decode.add(7, prompt, ticket);
  return { ...world, prompt, before, outcome, ticket };
}

const memoryOf = (decode: Instance) => ({
  blocks: decode.engine.blocks.freeCount + decode.engine.blocks.evictableCount,
  slots: decode.engine.slots!.freeCount,
});
const allBack = { blocks: 2, slots: 1 };
const nothingBack = { blocks: 0, slots: 0 };

describe('14.1.7 aborting a transferring import', () => {
  test('waits for the decision and confirms once', async () => {
    const { network, decode, outcome, prompt } = await onItsWay(faults.lateDone(10, 'done'));
    network.advance(2);
    expect(decode.handoff.abortKvHandoff(7)).toBe(true);
    decode.poll();
    await settle();
    expect(outcome.settled).toBe(0);
    expect(decode.seen('requestAborted')).toEqual([]);
    expect(decode.handoff.inspect().imports).toMatchObject([{ cancelling: true }]);
    expect(memoryOf(decode)).toEqual(nothingBack);

    network.advance(10);
    decode.poll();
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'ABORTED' } });
    expect(decode.seen('requestAborted')).toMatchObject([{ requestId: 7, sourceSafe: true }]);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(decode.handoff.inspect().imports).toEqual([]);
    expect(memoryOf(decode)).toEqual(allBack);
    // What was cancelled leaves no name behind, although its bytes are here.
    expect(decode.engine.blocks.lookup(hashesOf(prompt)[0]!)).toBe(-1);
    expect(decode.handoff.inspect().hashOwners).toEqual([]);
    expect(decode.handoff.abortKvHandoff(7)).toBe(false);
    expect(decode.schedule()).toBe(0);
    expect(decode.seen('requestError')).toEqual([]);
  });

  test('by its signal, twice, is one abort', async () => {
    const { network, prefill, decode } = await createWorld();
    network.planNext(faults.lateDone(10, 'failed-quiet'));
    const controller = new AbortController();
    const prompt = promptOf(4);
    const outcome = decode.add(7, prompt, prefill.handOver(7, prompt), {}, controller.signal);
    network.advance(2);
    controller.abort();
    decode.handoff.abortKvHandoff(7);
    network.advance(10);
    decode.poll();
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'ABORTED' } });
    expect(decode.seen('requestAborted')).toMatchObject([{ sourceSafe: true }]);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
  });

  test('whose memory stays in doubt quarantines it, and confirms again when it is quiet', async () => {
    const { network, decode, outcome } = await onItsWay({ pieces: 4, pieceMs: 5 }, unproved);
    network.advance(1);
    decode.handoff.abortKvHandoff(7);
    decode.poll();
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'ABORTED' } });
    expect(decode.seen('requestAborted')).toMatchObject([{ sourceSafe: false }]);
    expect(decode.seen('kvReadDone')).toEqual([]);
    expect(memoryOf(decode)).toEqual(nothingBack);
    network.advance(30);
    decode.poll();
    expect(decode.seen('requestAborted')).toMatchObject([{ sourceSafe: false }, { sourceSafe: true }]);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(memoryOf(decode)).toEqual(allBack);
    expect(decode.seen('requestError')).toEqual([]);
  });
});

test('14.1.8 giving up an import that was not admitted returns its live slot', async () => {
  const { network, decode, outcome } = await onItsWay({});
  decode.engine.batchIsFull = true;
  network.advance(1);
  expect(decode.poll()).toBe(1);
  expect(memoryOf(decode)).toEqual(nothingBack);
  decode.handoff.abortKvHandoff(7);
  expect(memoryOf(decode)).toEqual(allBack);
  expect(decode.engine.slots!.isFree(20)).toBe(true);
  await settle();
  expect(outcome).toMatchObject({ settled: 1, error: { code: 'ABORTED' } });
  expect(decode.seen('requestAborted')).toMatchObject([{ sourceSafe: true }]);
  expect(decode.seen('kvReadDone')).toHaveLength(1); // at its decision; not again
  decode.engine.batchIsFull = false;
  expect(decode.schedule()).toBe(0);
  expect(decode.handoff.pendingKvImportCount).toBe(0);
});

test('14.1.9 a reset cancels handoffs that wait for capacity', async () => {
  const { prefill, decode } = await createWorld();
  decode.arrangeBlocks();
  const outcomes = [1, 2].map((id) => decode.add(id, promptOf(4, id), prefill.handOver(id, promptOf(4, id))));
  expect(decode.handoff.pendingKvImportCount).toBe(2);
  await decode.handoff.resetPendingKvImports();
  expect(decode.handoff.pendingKvImportCount).toBe(0);
  await settle();
  for (const outcome of outcomes) expect(outcome).toMatchObject({ settled: 1, error: { code: 'ABORTED' } });
  expect(decode.seen('requestAborted').map(({ requestId, sourceSafe }) => [requestId, sourceSafe])).toEqual([
    [1, true],
    [2, true],
  ]);
  expect(decode.seen('kvReadDone').map(({ requestId }) => requestId)).toEqual([1, 2]);
  expect(decode.handoff.metrics().counters).toMatchObject({ imports_aborted_total: 2 });
});

test('14.1.14 a reset refuses while destinations may still be written, and releases nothing', async () => {
  const { network, decode, outcome } = await onItsWay(faults.errorWhileWriting('never'));
  network.advance(2);
  decode.poll();
  await expect(decode.handoff.resetPendingKvImports()).rejects.toMatchObject({
    code: 'MEMORY_IN_DOUBT',
    message: expect.stringContaining('may still access cache storage'),
  });
  expect(memoryOf(decode)).toEqual(nothingBack);
  expect(decode.handoff.inspect().quarantine).toMatchObject([{ requestId: 7, blocks: [10], continuationBlocks: [11] }]);
  await expect(decode.handoff.close()).rejects.toMatchObject({ code: 'MEMORY_IN_DOUBT' });
  expect(outcome.settled).toBe(1);
});

test('14.1.14 a reset gives up waiting at its deadline and keeps what is still on its way', async () => {
  const { network, decode, outcome } = await onItsWay({ ...faults.lateDone(1000) });
  network.advance(2);
  await expect(decode.handoff.resetPendingKvImports({ deadlineMs: 0 })).rejects.toMatchObject({
    code: 'MEMORY_IN_DOUBT',
  });
  expect(decode.handoff.pendingKvImportCount).toBe(1);
  expect(memoryOf(decode)).toEqual(nothingBack);
  expect(outcome.settled).toBe(0);
});

describe('14.1.15 quarantined memory without a handle', () => {
  test('is never released, whatever time passes', async () => {
    const { network, decode, outcome } = await onItsWay(faults.beginThrows(false));
    for (let i = 0; i < 5; i += 1) {
      network.advance(3_600_000);
      await decode.step();
    }
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'TRANSFER_FAILED' } });
    expect(decode.seen('requestError')).toMatchObject([{ sourceSafe: false }]);
    expect(decode.seen('quarantined')).toMatchObject([{ blocks: 2, slot: 20 }]);
    expect(decode.seen('reclaimed')).toEqual([]);
    expect(decode.seen('kvReadDone')).toEqual([]);
    expect(memoryOf(decode)).toEqual(nothingBack);
    expect(decode.handoff.load()).toMatchObject({ blocksQuarantined: 2 });
  });

  test('comes back when the source is attested dead', async () => {
    const { network, prefill, decode } = await onItsWay(faults.beginThrows(false));
    decode.poll();
    network.advance(10);
    network.kill(prefill.leader.transport);
    decode.poll();
    expect(memoryOf(decode)).toEqual(nothingBack);
    decode.handoff.attestInstanceDead('prefill', 'boot-0'); // another incarnation says nothing
    decode.poll();
    expect(memoryOf(decode)).toEqual(nothingBack);
    decode.handoff.attestInstanceDead('prefill', 'boot-1');
    decode.poll();
    expect(memoryOf(decode)).toEqual(allBack);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
  });
});

test('14.1.16 a transport that throws while quarantined memory is polled changes nothing', async () => {
  const { network, decode, begun } = await onItsWay(faults.errorWhileWriting('later', 50));
  network.advance(2);
  decode.poll();
  expect(decode.seen('quarantined')).toHaveLength(1);
  begun[0]!.targetEnd!.pollThrowsLeft = 2;
  decode.poll();
  decode.poll();
  // The reference logs "Polling quarantined KV import failed"; here it is a warning.
  expect(decode.seen('warning')).toMatchObject([
    { message: expect.stringMatching(/polling a KV import failed/i) },
    { message: expect.stringMatching(/polling a KV import failed/i) },
  ]);
  expect(decode.handoff.inspect().quarantine).toMatchObject([{ transportPollErrors: 2 }]);
  expect(memoryOf(decode)).toEqual(nothingBack);
  network.advance(60);
  decode.poll();
  expect(memoryOf(decode)).toEqual(allBack);
  expect(decode.handoff.inspect().quarantine).toEqual([]);
});

test('14.1.16 a poll that throws while bytes move fails nothing', async () => {
  const { network, decode, outcome } = await onItsWay(faults.pollThrows(3));
  for (let i = 0; i < 6; i += 1) {
    network.advance(1);
    await decode.step();
  }
  expect(outcome).toMatchObject({ settled: 1, error: null });
  expect(decode.seen('warning')).toHaveLength(3);
});

test('14.1.17 when the cleanup handle of a failed start becomes safe its blocks come back', async () => {
  const { network, decode, outcome } = await onItsWay({
    ...faults.beginThrows(false, true),
    pieceMs: 100,
    cancelAfterMs: 5,
  });
  decode.poll();
  await settle();
  expect(outcome).toMatchObject({ settled: 1, error: { code: 'TRANSFER_FAILED' } });
  expect(decode.seen('requestError')).toMatchObject([{ sourceSafe: false }]);
  expect(memoryOf(decode)).toEqual(nothingBack);
  network.advance(4);
  decode.poll();
  expect(memoryOf(decode)).toEqual(nothingBack);
  network.advance(1);
  decode.poll();
  expect(memoryOf(decode)).toEqual(allBack);
  expect(decode.handoff.inspect().quarantine).toEqual([]);
  expect(decode.seen('reclaimed')).toMatchObject([{ requestId: 7, blocks: 2, slot: 20 }]);
  expect(decode.seen('kvReadDone')).toHaveLength(1);
  expect(decode.seen('requestAborted')).toMatchObject([{ sourceSafe: true }]);
});

describe('two ranks', () => {
  async function twoRanks(
    plans: readonly Parameters<World['network']['planNext']>[0][],
    options: InstanceOptions = {},
  ) {
    const world = await createWorld({ tpSize: 2, ...options });
    const { network, prefill, decode } = world;
    decode.arrangeBlocks([10, 11]);
    for (const [index, plan] of plans.entries()) {
      network.planNext(plan, (_source, target) => target === decode.ranks[index]!.transport);
    }
    const prompt = promptOf(4);
    const before = decode.ranks.map(({ engine }) => poolState(engine.blocks));
    const outcome = decode.add(7, prompt, prefill.handOver(7, prompt));
    decode.schedule(); // the add's frame: both ranks start
    expect(decode.ranks.map(({ handoff }) => handoff.inspect().imports.length)).toEqual([1, 1]);
    const states = () => decode.ranks.map(({ engine }) => poolState(engine.blocks));
    return { ...world, prompt, before, outcome, states };
  }

  test('14.1.19 a peer’s failure fails the request, and blocks stay until the own handle is safe', async () => {
    const { network, decode, outcome, before, states } = await twoRanks(
      [{ pieces: 2, pieceMs: 50 }, faults.error('now')],
      unproved,
    );
    const reserved = states();
    network.advance(1);
    decode.poll();
    decode.schedule();
    await settle();
    expect(outcome).toMatchObject({
      settled: 1,
      error: { code: 'PEER_RANK_FAILED', message: expect.stringContaining('model-parallel peer') },
    });
    expect(decode.seen('requestError')).toMatchObject([{ requestId: 7, sourceSafe: false }]);
    expect(states()).toEqual(reserved);
    // The rank whose own memory is quiet holds it too: pools stay equal.
    for (const rank of [0, 1]) expect(decode.seen('quarantined', rank)).toHaveLength(1);
    expect(decode.seen('kvReadDone')).toEqual([]);
    await decode.step(3);
    expect(states()).toEqual(reserved);

    network.advance(100);
    await decode.step(2);
    expect(states()).toEqual(before);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(decode.seen('requestAborted')).toMatchObject([{ requestId: 7, sourceSafe: true }]);
    expect(decode.seen('requestError')).toHaveLength(1);
    // Notices for the control plane come from rank 0 alone.
    for (const name of ['kvReadDone', 'requestError', 'requestAborted'] as const)
      expect(decode.seen(name, 1)).toEqual([]);
    expect(outcome.settled).toBe(1);
  });

  test('14.1.24 the tracker announces success when all are safe, and a failure once and then once more', () => {
    const tracker = new CompletionTracker(2);
    const report = (requestId: number, rank: number, failed: boolean, sourceSafe: boolean) =>
      tracker.report({ requestId, rank, failed, sourceSafe });
    const drained = () => tracker.drain().map(({ requestId, failed, sourceSafe }) => [requestId, failed, sourceSafe]);
    report(1, 0, false, true);
    expect(drained()).toEqual([]);
    report(1, 1, false, true);
    expect(drained()).toEqual([[1, false, true]]);
    report(2, 0, true, false);
    expect(drained()).toEqual([[2, true, false]]);
    expect(drained()).toEqual([]);
    report(2, 1, false, true);
    expect(drained()).toEqual([]);
    report(2, 0, true, true);
    expect(drained()).toEqual([[2, true, true]]);
    expect(drained()).toEqual([]);
    expect(tracker.openCount).toBe(0);
  });

  test('14.1.24 no hash is named and nothing is admitted before both ranks have their bytes', async () => {
    const { network, decode, outcome, prompt } = await twoRanks([{}, faults.delay(20)]);
    network.advance(10);
    await decode.step(3);
    const hash = hashesOf(prompt)[0]!;
    expect(decode.ranks.map(({ engine }) => engine.blocks.lookup(hash))).toEqual([-1, -1]);
    expect(decode.ranks.flatMap(({ engine }) => engine.admitted)).toEqual([]);
    expect(decode.seen('kvReadDone')).toEqual([]);
    network.advance(10);
    await decode.step();
    expect(decode.ranks.map(({ engine }) => engine.blocks.lookup(hash))).toEqual([10, 10]);
    expect(decode.ranks.map(({ engine }) => engine.admitted.length)).toEqual([1, 1]);
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(decode.ranks.map(({ engine }) => poolState(engine.blocks))).toEqual([
      poolState(decode.engine.blocks),
      poolState(decode.engine.blocks),
    ]);
  });

  test('14.1.31 a start that fails on one rank fails the request on both, safely and once', async () => {
    const { network, decode, outcome, before, states } = await twoRanks([{}, faults.beginThrows(true)]);
    network.advance(1);
    decode.handoff.pollPendingKvImports(); // rank 0 has its bytes, rank 1 has not reported
    decode.poll();
    await settle();
    expect(outcome.settled).toBe(0); // only a record ends it
    decode.schedule();
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'PEER_RANK_FAILED' } });
    expect(states()).toEqual(before); // the continuation block too
    expect(decode.seen('requestError')).toMatchObject([{ requestId: 7, sourceSafe: true }]);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(decode.seen('quarantined')).toEqual([]);
    await decode.step(2);
    expect(decode.seen('requestAborted')).toEqual([]);
    expect(decode.seen('requestError')).toHaveLength(1);
  });

  test('the rank that failed names its own error', async () => {
    const { network, decode, outcome } = await twoRanks([faults.error('now'), {}]);
    network.advance(1);
    decode.poll();
    decode.schedule();
    await settle();
    expect(outcome.error).toMatchObject({
      code: 'TRANSFER_FAILED',
      message: expect.stringContaining('script says so'),
    });
  });

  test('a worker takes no abort, add or decision of its own', async () => {
    const { decode, prompt } = await twoRanks([faults.drop(), faults.drop()]);
    const worker = decode.ranks[1]!.handoff;
    const refused = expect.objectContaining({ code: 'NOT_RANK_ZERO' });
    expect(() => worker.abortKvHandoff(7)).toThrow(refused);
    expect(() => worker.addRequestWithKvHandoff(8, prompt, {}, {}, [])).toThrow(refused);
    expect(() => worker.attestInstanceDead('prefill', 'boot-1')).toThrow(refused);
    await settle();
  });
});

describe('14.1.32 a failed import over a transport that cannot stop', () => {
  const fatal = { transport: { direction: 'push' as const, unsafeFailureIsFatal: true } };

  test('ends the engine at its next scheduling point while the receive may still be in use', async () => {
    const { network, prefill, decode, outcome } = await onItsWay(faults.errorWhileWriting('never'), fatal);
    prefill.handoff.pushHandoffKv(7, decode.handoff.instanceMeta);
    network.advance(2);
    decode.poll();
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'TRANSFER_FAILED' } });
    // The reference says "NCCL handoff failed"; here any transport may declare itself so.
    for (let i = 0; i < 2; i += 1) {
      expect(() => decode.schedule()).toThrow(
        expect.objectContaining({
          code: 'ENGINE_FATAL',
          message: expect.stringContaining('two-sided handoff failed'),
          targetSafe: false,
        }),
      );
    }
    expect(memoryOf(decode)).toEqual(nothingBack);
  });

  test('does not when it failed quietly', async () => {
    const { network, prefill, decode, outcome } = await onItsWay(faults.error('now'), fatal);
    prefill.handoff.pushHandoffKv(7, decode.handoff.instanceMeta);
    network.advance(2);
    await decode.step(2);
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'TRANSFER_FAILED' } });
    expect(memoryOf(decode)).toEqual(allBack);
    expect(decode.seen('requestError')).toMatchObject([{ sourceSafe: true }]);
  });

  test('does not where memory in doubt can be put aside', async () => {
    const { network, decode, outcome } = await onItsWay(faults.errorWhileWriting('never'));
    network.advance(2);
    await decode.step(2);
    expect(outcome.settled).toBe(1);
    expect(decode.seen('quarantined')).toHaveLength(1);
    expect(decode.schedule()).toBe(0);
  });
});

describe('deadlines end requests and not holds on memory (I9)', () => {
  test('a transfer past its deadline fails, and its memory waits for proof', async () => {
    const { network, decode, outcome } = await onItsWay(faults.drop(), {
      ...unproved,
      handoff: { deadlines: { transferMs: 100 } },
    });
    network.advance(99);
    decode.poll();
    await settle();
    expect(outcome.settled).toBe(0);
    network.advance(1);
    decode.poll();
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'TRANSFER_DEADLINE', retryable: true } });
    expect(decode.seen('requestError')).toMatchObject([{ sourceSafe: false }]);
    for (let i = 0; i < 4; i += 1) {
      network.advance(1_000_000);
      await decode.step();
    }
    expect(memoryOf(decode)).toEqual(nothingBack);
    expect(decode.seen('kvReadDone')).toEqual([]);
  });

  test('a queue past its deadline fails safely and owns nothing', async () => {
    const { network, prefill, decode } = await createWorld({ handoff: { deadlines: { queueMs: 100 } } });
    decode.arrangeBlocks();
    const prompt = promptOf(4);
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
    network.advance(99);
    decode.poll();
    expect(decode.handoff.pendingKvImportCount).toBe(1);
    network.advance(1);
    decode.poll();
    decode.poll();
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'QUEUE_DEADLINE', retryable: true } });
    expect(decode.seen('requestError')).toMatchObject([{ requestId: 1, sourceSafe: true }]);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(decode.seen('requestAborted')).toEqual([]);
  });

  test('a handshake past its deadline fails quietly: nothing was begun', async () => {
    const { network, prefill, decode } = await createWorld({ handoff: { deadlines: { handshakeMs: 100 } } });
    network.planNextConnect({ outcome: 'connecting' });
    const prompt = promptOf(4);
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
    network.advance(99);
    decode.poll();
    await settle();
    expect(outcome.settled).toBe(0);
    network.advance(1);
    decode.poll();
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'HANDSHAKE_DEADLINE' } });
    expect(decode.seen('requestError')).toMatchObject([{ sourceSafe: true }]);
    expect(decode.handoff.inspect().quarantine).toEqual([]);
  });
});

test('a transfer starts only when no earlier work of the engine can touch its target', async () => {
  const { network, prefill, decode, begun } = await createWorld({ quiescentAfterMs: () => 5 });
  const prompt = promptOf(4);
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
  network.advance(4);
  decode.poll();
  expect(begun).toEqual([]);
  network.advance(1);
  decode.poll();
  expect(begun).toHaveLength(1);
  network.advance(1);
  await decode.step(3);
  expect(outcome).toMatchObject({ settled: 1, error: null });
});

test('aborted before it began, a transfer never begins and its memory is back at once', async () => {
  const { network, prefill, decode, begun } = await createWorld();
  network.planNextConnect({ outcome: 'ready', afterMs: 5 });
  const prompt = promptOf(4);
  const before = poolState(decode.engine.blocks);
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
  decode.handoff.abortKvHandoff(1);
  decode.poll();
  await settle();
  expect(outcome).toMatchObject({ settled: 1, error: { code: 'ABORTED' } });
  expect(poolState(decode.engine.blocks)).toEqual(before);
  network.advance(10);
  decode.poll();
  expect(begun).toEqual([]);
});

describe('a handoff that comes twice', () => {
  test('is refused, and the source is not told that it was read while the first still reads it', async () => {
    const { network, prefill, decode, prompt, ticket, outcome } = await onItsWay(faults.delay(5));
    prefill.releaseWhenRead(decode);
    const again = decode.add(7, prompt, ticket);
    await settle();
    expect(again).toMatchObject({ settled: 1, error: { code: 'DUPLICATE_REQUEST' } });
    decode.handoff.rejectKvHandoff(7, ticket.kvMeta);
    expect(decode.seen('kvReadDone')).toEqual([]);
    expect(prefill.handoff.inspect().pins).toHaveLength(1);
    network.advance(10);
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(prefill.handoff.inspect().pins).toEqual([]);
  });

  test('under another label is refused too', async () => {
    const { network, prefill, decode, prompt, ticket, outcome } = await onItsWay(faults.delay(5));
    prefill.releaseWhenRead(decode);
    const again = decode.add(8, prompt, ticket);
    network.advance(10);
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
    expect(again).toMatchObject({ settled: 1, error: { code: 'DUPLICATE_REQUEST' } });
    expect(decode.seen('kvReadDone')).toHaveLength(1);
  });

  test('another handoff under a living label is refused and let go', async () => {
    const { prefill, decode } = await createWorld();
    const [one, two] = [promptOf(4, 1), promptOf(4, 2)];
    decode.add(7, one, prefill.handOver(7, one));
    decode.add(7, two, prefill.handOver(8, two));
    await settle();
    expect(decode.seen('kvReadDone')).toMatchObject([{ requestId: 7, source: { handoffId: 2 } }]);
  });

  test('a handoff that was cancelled while it waited can come again', async () => {
    const { network, prefill, decode } = await createWorld();
    decode.arrangeBlocks();
    const prompt = promptOf(4);
    const ticket = prefill.handOver(7, prompt);
    decode.add(7, prompt, ticket);
    decode.handoff.abortKvHandoff(7);
    decode.engine.blocks.release(Int32Array.of(10, 11));
    const again = decode.add(7, prompt, ticket);
    network.advance(1);
    await decode.step(3);
    expect(again).toMatchObject({ settled: 1, error: null });
  });
});
