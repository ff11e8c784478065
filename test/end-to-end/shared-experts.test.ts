/**
 * Instances that share experts step together (spec 1.2): one that has nothing to do computes a token of no request, in a
 * slot that no request gets (spec 5), as long as another one has work, and all of them stop together.
 */
import { Engine } from '../../examples/engine/engine.js';
import { smallModel, type ModelConfig } from '../../examples/engine/config.js';
import { InProcessPeers, runTogether } from '../../examples/engine/in-process-peers.js';
import { nativeMemory } from '../../examples/engine/native-memory.js';
import { RankPlace, rankShape } from '../../examples/engine/rank-place.js';
import { rankSlice } from '../../examples/engine/rank-slice.js';
import type { Finished } from '../../lib/index.js';
import { bitsOf, greedy, promptOf } from '../support/engine-fixture.js';
import { computeAlone, LayoutWorld, type LayoutInstanceOptions } from '../support/layout-instance.js';

const model: ModelConfig = smallModel('hybrid', {
  name: 'hybrid-experts',
  layers: [
    { mixer: 'ssm', feedForward: 'experts' },
    { mixer: 'attention', feedForward: 'experts' },
  ],
  experts: { count: 4, perToken: 2, dim: 16 },
});
const maxRequests = 3;
const fifty = { ...greedy, num_tokens_to_generate: 50 };

const worlds: LayoutWorld[] = [];
afterEach(async () => {
  for (const world of worlds.splice(0)) await world.close();
});

async function openWorld(changes: Partial<LayoutInstanceOptions> = {}): Promise<LayoutWorld> {
  const options = { role: 'both', model, shape: { dp: 2, ep: 2 }, maxRequests, ...changes } as const;
  const world = await LayoutWorld.create(options);
  worlds.push(world);
  return world;
}

/** Everything in an instance's memory that a request of it owns: blocks, and slots without the dummy slot. */
function stateOf(world: LayoutWorld, instance: number): string {
  const { kvMemory, ssmMemory, blocks } = world.leader(instance).memory;
  const parts: Float32Array[] = [];
  for (let block = 0; block < blocks.poolSize - 1; block++) parts.push(kvMemory.readBlock(block));
  for (let slot = 0; slot < maxRequests; slot++) parts.push(ssmMemory!.readSlot(slot));
  return parts.map((part) => Buffer.from(part.buffer).toString('base64')).join();
}

/** Runs 50 tokens on the second instance, with turns of both. */
async function fiftyTokensBeside(world: LayoutWorld): Promise<Finished> {
  const prompt = promptOf(11, 8);
  let finished: Finished | null = null;
  void world
    .leader(1)
    .loop.submit({ requestId: 'fifty', prompt, samplingParams: fifty })
    .then((result) => (finished = result));
  await world.until(() => finished !== null);
  return finished!;
}

const expected = (): Promise<Finished> => computeAlone(model, promptOf(11, 8), fifty);

test('with every slot pinned by handoffs, an instance accompanies 50 tokens of another', async () => {
  const world = await openWorld();
  for (let i = 0; i < maxRequests; i++) await world.prefill(`pinned-${i}`, promptOf(9, i), greedy);
  const { handoff, engine } = world.leader(0);
  expect(handoff.load().slotsFree).toBe(0);
  const [state, tokens] = [stateOf(world, 0), engine.tokenCount];
  const finished = await fiftyTokensBeside(world);
  expect(finished.generatedTokens).toHaveLength(50);
  expect(bitsOf(finished)).toBe(bitsOf(await expected()));
  expect(stateOf(world, 0)).toBe(state);
  expect(engine.tokenCount).toBe(tokens);
  expect(handoff.inspect().pins).toHaveLength(maxRequests);
});

test('with every slot held back, as in quarantine, an instance accompanies 50 tokens of another', async () => {
  const world = await openWorld();
  const { slots } = world.leader(0).memory;
  for (let i = 0; i < maxRequests; i++) expect(slots!.allocate()).toBeGreaterThanOrEqual(0);
  expect(slots!.freeCount).toBe(0);
  const state = stateOf(world, 0);
  expect(bitsOf(await fiftyTokensBeside(world))).toBe(bitsOf(await expected()));
  expect(stateOf(world, 0)).toBe(state);
});

test('the dummy slot is registered and not advertised', async () => {
  const world = await openWorld();
  const { handoff, engine } = world.leader(0);
  const [meta] = handoff.instanceMeta as unknown as [
    { request_capacity: number; ssm_slot_capacity: number; ssm: { conv: { num_blocks: number } } },
  ];
  expect(meta.ssm.conv.num_blocks).toBe(maxRequests + 1);
  expect(meta.ssm_slot_capacity).toBe(maxRequests);
  expect(meta.request_capacity).toBe(maxRequests);
  expect(handoff.load().slotsTotal).toBe(maxRequests);
  expect(engine.ssm!.physicalSlots).toBe(maxRequests + 1);
});

test('an idle world computes nothing', async () => {
  const world = await openWorld();
  const before = world.ranks.map(({ memory }) => Array.from(memory.ssmMemory!.readSlot(maxRequests)));
  expect(world.turn()).toEqual([0, 1].map(() => ({ tokens: 0, isBusy: false, hasEnded: false })));
  expect(world.ranks.map(({ memory }) => Array.from(memory.ssmMemory!.readSlot(maxRequests)))).toEqual(before);
});

test('an instance that was told to end goes on as long as another one needs its experts, and both end in one turn', async () => {
  const world = await openWorld();
  world.leader(0).loop.end();
  expect(bitsOf(await fiftyTokensBeside(world))).toBe(bitsOf(await expected()));
  expect(world.turn().map(({ hasEnded }) => hasEnded)).toEqual([false, false]);
  let finished: Finished | null = null;
  void world
    .leader(1)
    .loop.submit({ requestId: 'last', prompt: promptOf(5), samplingParams: { ...greedy, num_tokens_to_generate: 3 } })
    .then((result) => (finished = result));
  world.leader(1).loop.end();
  const outcomes = [];
  do outcomes.push(world.turn());
  while (!outcomes.at(-1)![0]!.hasEnded && outcomes.length < 20);
  await new Promise((resolve) => setImmediate(resolve));
  expect(finished).toMatchObject({ finishReason: 'length' });
  expect(outcomes.map((turn) => turn.map(({ hasEnded }) => hasEnded)).slice(0, -1)).toEqual(
    outcomes.slice(1).map(() => [false, false]),
  );
  expect(outcomes.at(-1)!.map(({ hasEnded }) => hasEnded)).toEqual([true, true]);
});

test('what comes while a turn is under way, or is begun elsewhere, is input for the next turn', async () => {
  const world = await openWorld();
  const [a, b] = [world.leader(0).loop, world.leader(1).loop];
  world.turn();
  expect([a.hasInput, b.hasInput]).toEqual([false, false]);
  const [turnOfA, turnOfB] = [a.turn(), b.turn()];
  expect(turnOfA.next().done).toBe(false);
  // The first has begun the turn: the second must not sleep.
  expect(b.hasInput).toBe(true);
  a.wake();
  runTogether([turnOfA, turnOfB]);
  expect([a.hasInput, b.hasInput]).toEqual([true, false]);
  for (const call of [() => a.end(), () => a.abort('nobody'), () => void a.submit({ requestId: 1, prompt: [97] })]) {
    world.turn();
    expect(a.hasInput).toBe(false);
    call();
    expect(a.hasInput).toBe(true);
  }
});

test('instances with work both compute it, each its own', async () => {
  const world = await openWorld({ shape: { tp: 2, dp: 2, ep: 2 } });
  const finished = new Map<number, Finished>();
  for (const instance of [0, 1]) {
    const prompt = promptOf(7 + 4 * instance, instance);
    void world
      .leader(instance)
      .loop.submit({ requestId: 1, prompt, samplingParams: { ...greedy, num_tokens_to_generate: 6 + instance } })
      .then((result) => finished.set(instance, result));
  }
  await world.until(() => finished.size === 2);
  for (const instance of [0, 1]) {
    const sampling = { ...greedy, num_tokens_to_generate: 6 + instance };
    const one = await computeAlone(model, promptOf(7 + 4 * instance, instance), sampling);
    expect(bitsOf(finished.get(instance)!)).toBe(bitsOf(one));
  }
});

describe('an engine refuses', () => {
  const peers = InProcessPeers.create(2);
  const build = (place: RankPlace, changes: { peers?: InProcessPeers; place?: RankPlace; dummySlot?: boolean }) => {
    const { dummySlot = true } = changes;
    const slice = rankSlice(model, place.parallelism);
    const memory = nativeMemory({ model, slice, blockSize: 4, poolSize: 20, maxRequests, dummySlot });
    const ranks = { place: changes.place ?? place, peers: changes.peers ?? peers[0]! };
    return () => new Engine({ role: 'both', model, memory, maxRequests, maxSequenceLength: 50, ranks });
  };
  const place = new RankPlace(rankShape({ dp: 2, ep: 2 }), 0);

  test.each([
    [
      'a hybrid model whose experts are shared, without a dummy slot',
      build(place, { dummySlot: false }),
      'memory.physicalSlots: expected one slot more than requests get, for steps without a request, got 3',
    ],
    [
      'memory of another place',
      build(place, { place: new RankPlace(rankShape({ dp: 2, ep: 2 }), 1) }),
      "memory.slice.parallelism.epRank: expected 1, as the rank's place, got 0",
    ],
    [
      'another rank’s peers',
      build(place, { peers: peers[1]! }),
      'ranks.peers: expected rank 0 of 2, got "rank 1 of 2"',
    ],
  ])('%s', (_, run, message) => {
    expect(run).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID', message }));
  });

  test('to step alone when it is one of several', () => {
    const engine = build(place, {})();
    void engine.addRequest({ requestId: 1, prompt: [97], samplingParams: { num_tokens_to_generate: 1 } });
    expect(() => engine.step()).toThrow(expect.objectContaining({ code: 'INVARIANT' }));
  });

  test.each([
    [{ tp: 0 }, 'tp: expected an integer in [1, 1024], got 0'],
    [{ dp: 3, ep: 2 }, 'expertTp * ep: expected a divisor of the 3 ranks of a stage over all instances, got 2'],
  ])('the shape %j', (shape, message) => {
    expect(() => rankShape(shape)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID', message }));
  });
});
