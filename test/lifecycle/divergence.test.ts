/**
 * Ranks that no longer agree: found before anything is admitted, told on every rank with the request and the rank, and
 * memory still comes back on proof only. Under both carriers of the log.
 */
import type { LogRecord } from '../../lib/control/rank-group.js';
import { faults, type ModelBlockPool } from '../../lib/testing/index.js';
import { hybridShape, promptOf, settle, type Instance, type World } from '../support/lifecycle-fixture.js';
import { PlainRankGroup } from '../support/altered-rank-groups.js';
import { pools, scheduleAll, twoRanks } from '../support/failing-ranks.js';

const hybrid = { shape: hybridShape };

/** The two blocks that are handed out next change places. */
function turnTop(blocks: ModelBlockPool): void {
  const [first, second] = [blocks.allocate(1)!, blocks.allocate(1)!];
  blocks.release(first);
  blocks.release(second);
}

const admitted = (decode: Instance): number[] => decode.ranks.map(({ engine }) => engine.admitted.length);

describe('ranks that placed a request differently', () => {
  /** One request, which the ranks reserve in the frame of the first step, and which lands on both. */
  async function land(world: World, prompt = promptOf(4)) {
    const outcome = world.decode.add(7, prompt, world.prefill.handOver(7, prompt));
    world.decode.schedule();
    world.network.advance(10);
    world.decode.poll();
    await settle();
    return outcome;
  }

  test.each<[string, (decode: Instance) => void]>([
    ['blocks', (decode) => void decode.ranks[1]!.engine.blocks.allocate(1)],
    ['a slot', (decode) => void decode.ranks[1]!.engine.slots!.allocate()],
    ['blocks in another order', (decode) => turnTop(decode.ranks[1]!.engine.blocks)],
    [
      'a continuation block only',
      (decode) => {
        const { blocks } = decode.ranks[1]!.engine;
        const [other, first] = blocks.allocate(3)!;
        blocks.release(Int32Array.of(first!));
        blocks.release(Int32Array.of(other!)); // where the rank 0 has the third
      },
    ],
  ])('%s: an engine failure that names request and rank, before admission', async (_what, diverge) => {
    const world = await twoRanks({}, hybrid);
    const { decode, failures } = world;
    diverge(decode);
    const outcome = await land(world);
    const thrown = scheduleAll(decode);
    await settle();
    expect(admitted(decode)).toEqual([0, 0]);
    for (const [rank, error] of thrown.entries()) {
      expect(error).toMatchObject({
        code: 'DIVERGENCE',
        message:
          'rank 1 placed request 7 (attempt 1) elsewhere than rank 0; the ranks of this instance have diverged and must be restarted',
        sourceSafe: false,
        targetSafe: false,
        details: { requestId: 7, attemptId: 1, rank: 1 },
      });
      expect(failures[rank]).toEqual([error]);
    }
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'DIVERGENCE', details: { requestId: 7 } } });
    // Every byte is quiet, so the source is free; and this engine takes and admits no more.
    expect(decode.seen('requestError')).toMatchObject([{ requestId: 7, sourceSafe: true }]);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
    const prompt = promptOf(4, 2);
    const next = decode.add(8, prompt, world.prefill.handOver(8, prompt));
    await settle();
    expect(next.error).toMatchObject({ code: 'DIVERGENCE' });
    expect(scheduleAll(decode)).toMatchObject([{ code: 'DIVERGENCE' }, { code: 'DIVERGENCE' }]);
    expect(failures.map((each) => each.length)).toEqual([1, 1]);
  });

  test('another place in the log', async () => {
    const world = await twoRanks();
    const { decode } = world;
    const prompt = promptOf(4);
    decode.arrangeBlocks([10, 11]);
    const late = decode.ranks[1]!.engine.blocks.allocate(2)!;
    const outcome = decode.add(7, prompt, world.prefill.handOver(7, prompt));
    decode.schedule(); // rank 1 has no room yet
    decode.ranks[1]!.engine.blocks.release(late);
    decode.schedule(); // and takes the same blocks a step later
    expect(decode.ranks.map(({ handoff }) => handoff.inspect().imports[0]!.blocks)).toEqual([[10], [10]]);
    world.network.advance(10);
    decode.poll();
    expect(scheduleAll(decode)).toMatchObject([{ code: 'DIVERGENCE' }, { code: 'DIVERGENCE' }]);
    await settle();
    expect(admitted(decode)).toEqual([0, 0]);
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'DIVERGENCE' } });
  });

  test('ranks that agree are not disturbed, cached prefixes and continuations included', async () => {
    const world = await twoRanks({}, hybrid);
    const { decode, network, prefill, failures } = world;
    for (let turn = 0; turn < 4; turn += 1) {
      const prompt = promptOf(9 + turn, 1);
      const outcome = decode.add(turn, prompt, prefill.handOver(turn, prompt));
      for (let i = 0; i < 6; i += 1) {
        network.advance(10);
        await decode.step();
      }
      expect(outcome).toMatchObject({ settled: 1, error: null });
    }
    expect(failures).toEqual([[], []]);
  });

  test('what else was on its way, waited or had landed fails with it; nothing comes back early', async () => {
    const world = await twoRanks({ transport: { provesQuietOnCancel: false } });
    const { decode, network, prefill } = world;
    const [moving, first, landed, waiting] = [1, 2, 3, 4].map((seed) => promptOf(4, seed)) as [
      number[],
      number[],
      number[],
      number[],
    ];
    decode.arrangeBlocks([10, 11], [12, 13], [14, 15]);
    for (const { engine } of decode.ranks) engine.batchIsFull = true;
    for (const { transport } of decode.ranks)
      network.planNext(faults.delay(1000), (_source, target) => target === transport);
    const outcomes = [
      decode.add(1, moving, prefill.handOver(1, moving)),
      decode.add(3, landed, prefill.handOver(3, landed)),
    ];
    await decode.step();
    network.advance(10);
    await decode.step(2); // 3 is agreed and waits for room in the batch
    turnTop(decode.ranks[1]!.engine.blocks);
    outcomes.push(
      decode.add(2, first, prefill.handOver(2, first)),
      decode.add(4, waiting, prefill.handOver(4, waiting)),
    );
    decode.schedule();
    expect(decode.handoff.inspect().imports.map(({ requestId, state }) => [requestId, state])).toEqual([
      [1, 'transferring'],
      [3, 'agreed'],
      [2, 'transferring'],
      [4, 'queued'],
    ]);
    const held = pools(decode);
    network.advance(10);
    decode.poll();
    scheduleAll(decode);
    decode.poll();
    scheduleAll(decode);
    await settle();
    for (const outcome of outcomes) expect(outcome).toMatchObject({ settled: 1, error: { code: 'DIVERGENCE' } });
    expect(
      Object.fromEntries(decode.seen('requestError').map(({ requestId, sourceSafe }) => [requestId, sourceSafe])),
    ).toEqual({
      1: false,
      2: true,
      3: true,
      4: true,
    });
    // The one that may still be written stays out of use on both ranks.
    for (const { handoff, engine } of decode.ranks) {
      expect(handoff.inspect().quarantine.map(({ requestId }) => requestId)).toEqual([1]);
      expect(engine.blocks.freeCount + engine.blocks.evictableCount).toBe(4);
    }
    expect(held.map(({ free }) => free.length)).toEqual([0, 0]);
    network.advance(1000);
    decode.poll();
    scheduleAll(decode);
    for (const { engine } of decode.ranks) expect(engine.blocks.freeCount + engine.blocks.evictableCount).toBe(6);
    expect(
      decode
        .seen('kvReadDone')
        .map(({ requestId }) => requestId as number)
        .sort(),
    ).toEqual([1, 2, 3, 4]);
  });

  test('a peer that sends no digest is believed', async () => {
    const world = await twoRanks({ group: (group) => new PlainRankGroup(group) });
    const outcome = await land(world);
    world.decode.schedule();
    for (let i = 0; i < 3; i += 1) await world.decode.step();
    expect(outcome).toMatchObject({ settled: 1, error: null });
  });
});

describe('the host engine carries the log', () => {
  /** What the host engine does: rank 0's notifications go to every rank, in its own broadcast. */
  function broadcast(decode: Instance): LogRecord[] {
    const records = decode.handoff.drainHandoffCompletionNotifications();
    for (const record of records) {
      for (const { handoff } of decode.ranks) handoff.recordHandoffCompletionNotification(structuredClone(record));
    }
    return [...records];
  }

  async function hostWorld() {
    const world = await twoRanks({ carrier: 'host' });
    const { decode, prefill } = world;
    const prompt = promptOf(4);
    const ticket = prefill.handOver(7, prompt);
    return {
      ...world,
      addOnAll: () => decode.ranks.map((_, rank) => decode.add(7, prompt, ticket, undefined, null, rank)),
    };
  }

  test('a decision reaches every rank through it, and every rank’s caller', async () => {
    const { decode, network, addOnAll } = await hostWorld();
    const outcomes = addOnAll();
    network.advance(10);
    decode.poll();
    expect(broadcast(decode)).toEqual([
      { kind: 'decision', attemptId: 1, failed: false, sourceSafe: true, reason: null },
    ]);
    for (let i = 0; i < 4; i += 1) await decode.step();
    expect(admitted(decode)).toEqual([1, 1]);
    for (const outcome of outcomes) expect(outcome).toMatchObject({ settled: 1, error: null });
  });

  test('so does a divergence', async () => {
    const { decode, network, addOnAll, failures } = await hostWorld();
    decode.ranks[1]!.engine.blocks.allocate(1);
    const outcomes = addOnAll();
    network.advance(10);
    decode.poll();
    expect(broadcast(decode).map(({ kind }) => kind)).toEqual(['instance-failed', 'decision']);
    expect(scheduleAll(decode)).toMatchObject([{ code: 'DIVERGENCE' }, { code: 'DIVERGENCE' }]);
    await settle();
    for (const outcome of outcomes) expect(outcome).toMatchObject({ settled: 1, error: { code: 'DIVERGENCE' } });
    expect(failures.map((each) => each.length)).toEqual([1, 1]);
    expect(admitted(decode)).toEqual([0, 0]);
  });

  test('one order only: each carrier refuses the other’s calls', async () => {
    const { decode } = await hostWorld();
    const grouped = (await twoRanks()).decode;
    const mixed = expect.objectContaining({ code: 'LOG_CARRIER_MIXED' });
    expect(() => grouped.handoff.drainHandoffCompletionNotifications()).toThrow(mixed);
    const record: LogRecord = { kind: 'decision', attemptId: 1, failed: true, sourceSafe: true, reason: null };
    for (const { handoff } of grouped.ranks)
      expect(() => handoff.recordHandoffCompletionNotification(record)).toThrow(mixed);
    // And under the host's own order no frame of a group is taken or published.
    decode.schedule();
    expect(decode.ranks[1]!.group!.nextFrame()).toBeNull();
  });
});
