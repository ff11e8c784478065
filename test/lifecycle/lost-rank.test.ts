/**
 * A rank that is gone: its instance fails as one, in the log's order, on every rank that is left; nothing is reused before
 * it is proved quiet.
 */
import type { HandoffError } from '../../lib/errors.js';
import { faults } from '../../lib/testing/index.js';
import { createWorld, hybridShape, promptOf, settle } from '../support/lifecycle-fixture.js';
import { losable, pools, scheduleAll, twoRanks } from '../support/failing-ranks.js';

describe('a rank that is lost', () => {
  test('requests end with it on all that are left, in the log’s order; memory on its way stays', async () => {
    const { groups, group } = losable();
    const world = await twoRanks({ tpSize: 2, ppSize: 2, group }, { shape: hybridShape });
    const { decode, prefill, network } = world;
    const prompt = promptOf(4);
    const moving = decode.add(1, prompt, prefill.handOver(1, prompt));
    decode.schedule();
    const before = pools(decode);
    groups[0]!.lose(3);
    decode.poll();
    const survivors = decode.ranks.slice(0, 3);
    const thrown = scheduleAll(decode).slice(0, 3);
    network.advance(1000);
    decode.poll();
    scheduleAll(decode);
    await settle();
    for (const error of thrown) expect(error).toMatchObject({ code: 'RANK_LOST', details: { rank: 3 } });
    expect(moving).toMatchObject({ settled: 1, error: { code: 'RANK_LOST', retryable: true } });
    expect(decode.seen('requestError')).toMatchObject([{ requestId: 1, sourceSafe: false }]);
    expect(decode.seen('kvReadDone')).toEqual([]);
    expect(pools(decode).slice(0, 3)).toEqual(before.slice(0, 3));
    for (const { handoff } of survivors) expect(handoff.inspect().quarantine).toHaveLength(1);
    const late = decode.add(2, prompt, prefill.handOver(2, prompt));
    await settle();
    expect(late.error).toMatchObject({ code: 'RANK_LOST' });
    expect(decode.seen('kvReadDone')).toHaveLength(1); // of the one that was refused
  });

  test('a request that all ranks had reported when the rank was lost is not admitted, and its memory is free', async () => {
    const { groups, group } = losable();
    const { decode, prefill, network } = await twoRanks({ group });
    const prompt = promptOf(4);
    const before = pools(decode);
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
    decode.schedule();
    network.advance(10);
    decode.ranks[1]!.handoff.pollPendingKvImports(); // its report is on the way
    groups[0]!.lose(1);
    decode.handoff.pollPendingKvImports();
    const thrown = scheduleAll(decode);
    await settle();
    for (const error of thrown) expect(error).toMatchObject({ code: 'RANK_LOST' });
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'RANK_LOST' } });
    expect(decode.seen('requestError')).toMatchObject([{ requestId: 1, sourceSafe: true }]);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(decode.ranks.flatMap(({ engine }) => engine.admitted)).toEqual([]);
    expect(pools(decode)).toEqual(before);
  });

  test('a request that comes into the log behind the loss ends there, and starts nothing', async () => {
    const { groups, group } = losable();
    const { decode, prefill, begun } = await twoRanks({ group });
    const before = pools(decode);
    groups[0]!.lose(1);
    decode.poll();
    const prompt = promptOf(4);
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
    scheduleAll(decode);
    await settle();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'RANK_LOST' } });
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    expect(begun).toEqual([]);
    expect(pools(decode)).toEqual(before);
    for (const { handoff } of decode.ranks) expect(handoff.inspect().imports).toEqual([]);
  });

  test('a worker that has lost rank 0 admits nothing more', async () => {
    const { groups, group } = losable();
    const world = await twoRanks({ group });
    const { decode, prefill, network } = world;
    const prompt = promptOf(4);
    decode.add(1, prompt, prefill.handOver(1, prompt));
    decode.schedule();
    const before = pools(decode)[1];
    network.advance(10);
    groups[1]!.lose(0);
    const worker = decode.ranks[1]!;
    worker.handoff.pollPendingKvImports();
    expect(world.failures[1]).toMatchObject([{ code: 'RANK_LOST', details: { rank: 0 } }]); // a poll tells already
    expect(() => worker.handoff.scheduleWaitingRequests(0)).toThrow(
      expect.objectContaining({ code: 'RANK_LOST', details: { rank: 0 } }),
    );
    expect(world.failures[1]).toMatchObject([{ code: 'RANK_LOST' }]);
    expect(pools(decode)[1]).toEqual(before);
    expect(worker.engine.admitted).toEqual([]);
  });
});

describe('a prefill instance that has lost a rank', () => {
  test('pins, tickets and pushes end on every rank; releases still work; pushed memory stays until it is quiet', async () => {
    const { groups, group } = losable();
    const transport = { direction: 'push' as const, provesQuietOnCancel: false };
    const { prefill, decode, network } = await createWorld({ tpSize: 2 }, { tpSize: 2, group }, { transport });
    const failures: HandoffError[] = [];
    for (const { handoff } of prefill.ranks) handoff.on('engineFailed', (error) => failures.push(error));
    const [pushed, kept] = [promptOf(4, 1), promptOf(4, 2)];
    decode.add(1, pushed, prefill.handOver(1, pushed));
    prefill.handOver(2, kept);
    decode.schedule();
    for (const rank of prefill.ranks) network.planNext(faults.delay(1000), (source) => source === rank.transport);
    prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta);
    await prefill.step();
    groups[0]!.lose(1);
    await prefill.step(2);
    expect(failures).toMatchObject([
      { code: 'RANK_LOST', details: { rank: 1 } },
      { code: 'RANK_LOST', details: { rank: 1 } },
    ]);
    expect(prefill.seen('requestError')).toMatchObject([
      { requestId: 1, error: { code: 'PEER_RANK_FAILED' }, sourceSafe: false },
    ]);
    const lost = expect.objectContaining({ code: 'RANK_LOST' });
    expect(() => prefill.handoff.pushHandoffKv(2, decode.handoff.instanceMeta)).toThrow(lost);
    expect(() => prefill.handOver(3, promptOf(4, 3))).toThrow(lost);
    expect(() => prefill.handoff.releaseHandoffBlocks(2)).not.toThrow();
    prefill.handoff.releaseHandoffBlocks(1);
    await prefill.step(2);
    for (const rank of [0, 1]) expect(prefill.seen('released', rank)).toMatchObject([{ requestId: 2 }]);
    // Nobody can say that the lost rank's part is quiet.
    network.advance(2000);
    await prefill.step(2);
    expect(prefill.handoff.inspect().pins.map(({ requestId, state }) => [requestId, state])).toEqual([[1, 'draining']]);
  });

  test('a push that is already in the log when the instance fails sends nothing', async () => {
    const { groups, group } = losable();
    const { prefill, decode, begun } = await createWorld(
      {},
      { tpSize: 2, group },
      { transport: { direction: 'push' } },
    );
    const prompt = promptOf(4);
    prefill.handOver(1, prompt);
    groups[0]!.lose(1);
    prefill.poll();
    prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta);
    prefill.schedule();
    expect(begun).toEqual([]);
    for (const rank of [0, 1])
      expect(prefill.seen('warning', rank)).toMatchObject([
        { message: 'a push came after its instance had failed; nothing was sent' },
      ]);
  });

  test('a worker that has lost rank 0 says so', async () => {
    const { groups, group } = losable();
    const { prefill } = await createWorld({}, { tpSize: 2, group });
    const failures: HandoffError[] = [];
    prefill.ranks[1]!.handoff.on('engineFailed', (error) => failures.push(error));
    groups[1]!.lose(0);
    prefill.poll();
    prefill.poll();
    expect(failures).toMatchObject([{ code: 'RANK_LOST', details: { rank: 0 } }]);
  });
});
