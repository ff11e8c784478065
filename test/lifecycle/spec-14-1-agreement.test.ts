/**
 * Spec 14.1, what several ranks agree on: items 19, 24 and 31; and the deadlines, which are rank 0's to decide.
 *
 * No hash is named before all ranks have their bytes (I3), and no deadline gives memory back (I9).
 */
import { CompletionTracker } from '../../lib/decode/completion-tracker.js';
import { faults } from '../../lib/testing/index.js';
import {
  createWorld,
  hashesOf,
  poolState,
  promptOf,
  settle,
  type InstanceOptions,
} from '../support/lifecycle-fixture.js';
import { memoryOf, nothingBack, onItsWay, unproved, type Plan } from '../support/lifecycle-in-flight.js';

describe('two ranks', () => {
  async function twoRanks(plans: readonly Plan[], options: InstanceOptions = {}) {
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

  test('a connection that never comes up costs its own requests only: the next one connects again', async () => {
    const { network, prefill, decode } = await createWorld({ handoff: { deadlines: { handshakeMs: 100 } } });
    network.planNextConnect({ outcome: 'connecting' });
    const prompt = promptOf(4);
    const lost = decode.add(1, prompt, prefill.handOver(1, prompt));
    network.advance(40);
    const other = promptOf(4, 7);
    const waiting = decode.add(2, other, prefill.handOver(2, other));
    network.advance(60);
    decode.poll();
    const served = decode.add(3, prompt, prefill.handOver(3, prompt));
    decode.poll();
    network.advance(1);
    await decode.step(4);
    expect(lost.error!.code).toBe('HANDSHAKE_DEADLINE');
    expect([waiting, served]).toMatchObject([
      { settled: 1, error: null },
      { settled: 1, error: null },
    ]);
  });
});

describe('a rank whose one leg fails stops its others at once, before any record says so', () => {
  test.each([
    ['in transfer', faults.error('now')],
    ['as it begins', faults.beginThrows(true)],
  ])('%s', async (_when, failing) => {
    const { network, prefill, decode, begun } = await createWorld({ tpSize: 2 }, { ppSize: 2 });
    const worker = decode.ranks[1]!.transport;
    network.planNext({ pieces: 4, pieceMs: 100 }, (_source, target) => target === worker);
    network.planNext(failing, (_source, target) => target === worker);
    const prompt = promptOf(4);
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
    decode.schedule();
    const [other] = begun.filter(({ target }) => target === worker);
    network.advance(1);
    decode.poll();
    expect(other!.targetEnd!.status).toBe('failed-quiet');
    await settle();
    expect(outcome.settled).toBe(0);
    await decode.step(2);
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'PEER_RANK_FAILED' } });
  });
});
