/**
 * Spec 14.1, what decode reserves and what it then reads: items 5, 6, 29, 30 and 33 to 35.
 *
 * A shortage defers and touches nothing (I7), in order of arrival (I5); no two imports bring the same hash (I4); what is
 * cached here is not read again. The programs that reach the transport are looked at as well as the bytes.
 */
import { faults } from '../../lib/testing/index.js';
import {
  createWorld,
  hashesOf,
  hybridShape,
  movesOf,
  poolState,
  promptOf,
  settle,
  twoTokens,
  type World,
} from '../support/lifecycle-fixture.js';

test('14.1.5 a hybrid handoff without a free slot waits untouched and starts all transfers when one is freed', async () => {
  const { network, prefill, decode, begun } = await createWorld({}, {}, { shape: hybridShape });
  decode.arrangeBlocks([10, 11]);
  decode.arrangeSlots(20);
  const { slots, blocks } = decode.engine;
  expect(slots!.allocate()).toBe(20);
  prefill.arrangeBlocks([100]);
  const prompt = promptOf(4);
  const ticket = prefill.handOver(1, prompt);
  const sourceSlot = prefill.handoff.inspect().pins[0]!.slot!;
  const before = poolState(blocks);
  const outcome = decode.add(1, prompt, ticket);
  expect(decode.poll()).toBe(0);
  network.advance(1);
  await settle();
  expect(outcome.settled).toBe(0);
  expect(begun).toEqual([]);
  expect(poolState(blocks)).toEqual(before);
  expect(decode.handoff.inspect()).toMatchObject({ imports: [{ state: 'queued', blocks: [] }], hashOwners: [] });

  slots!.free(20);
  expect(decode.poll()).toBe(0);
  expect(begun).toHaveLength(1);
  // One program for the blocks; one for the slot, with both kinds of state.
  expect(movesOf(begun[0]!)).toEqual([
    { source: [100], target: [10], regions: [0] },
    { source: [sourceSlot], target: [20], regions: [1, 2] },
  ]);
  expect(slots!.freeCount).toBe(0);
  expect(decode.handoff.inspect().imports).toMatchObject([{ slot: 20, blocks: [10], continuationBlocks: [11] }]);
  network.advance(1);
  await decode.step(3);
  expect(outcome.settled).toBe(1);
});

test('14.1.6 a second import of the same prompt waits for the first and then reads only what is not cached', async () => {
  const { network, prefill, decode, begun } = await createWorld();
  decode.arrangeBlocks([10, 11], [12], [13]);
  const prompt = promptOf(6);
  const first = decode.add(7, prompt, prefill.handOver(7, prompt));
  const before = poolState(decode.engine.blocks);
  const second = decode.add(8, prompt, prefill.handOver(8, prompt));
  const [owned, others] = [hashesOf(prompt), decode.handoff.inspect()];
  expect(others.imports).toMatchObject([{ state: 'transferring' }, { state: 'queued', blocks: [] }]);
  expect(others.hashOwners).toEqual([[owned[0], 1]]);
  expect(poolState(decode.engine.blocks)).toEqual(before);
  expect(begun).toHaveLength(1);
  // Somebody else's prompt behind it waits too, although nothing is in its way but the order (I5).
  const other = promptOf(3, 9);
  const third = decode.add(9, other, prefill.handOver(9, other));
  decode.poll();
  expect(begun).toHaveLength(1);

  network.advance(1);
  decode.poll();
  expect(begun).toHaveLength(2); // the pool is full for the third
  expect(decode.handoff.inspect().imports[1]).toMatchObject({ cachedPrefixBlocks: 1, blocks: [10, 12] });
  expect(movesOf(begun[1]!)).toMatchObject([{ target: [12] }]);
  for (let i = 0; i < 6; i += 1) {
    network.advance(1);
    await decode.step();
  }
  expect([first.settled, second.settled, third.settled]).toEqual([1, 1, 1]);
  expect([first.error, second.error, third.error]).toEqual([null, null, null]);
});

describe('14.1.29 with two of three blocks cached', () => {
  async function cachedTwo(): Promise<World & { prompt: number[] }> {
    const world = await createWorld();
    const { network, prefill, decode } = world;
    decode.arrangeBlocks([10, 11, 14], [12, 13]);
    prefill.arrangeBlocks([98, 99], [100, 101, 102]);
    const prompt = promptOf(12);
    const start = prompt.slice(0, 8);
    decode.add(1, start, prefill.handOver(1, start), { num_tokens_to_generate: 1 });
    network.advance(1);
    await decode.step();
    prefill.handoff.releaseHandoffBlocks(1);
    // Source ids of its own: the prefill engine forgets the prefix.
    prefill.engine.blocks.evict(2);
    prefill.engine.blocks.allocate(2);
    world.begun.length = 0;
    return { ...world, prompt };
  }

  test('only the last source block is read, and the original metadata says which', async () => {
    const { network, prefill, decode, begun, prompt } = await cachedTwo();
    const ticket = prefill.handOver(2, prompt, { resumeLogProbs: [-0.5] });
    expect(ticket.blockIds).toEqual([100, 101, 102]);
    const asked = structuredClone(ticket.kvMeta);
    const params = { ...twoTokens, return_log_probs: true, skip_prompt_log_probs: true };
    // The first handoff's unused continuation block is on top of the free bag; two remain below it.
    decode.engine.blocks.allocate(decode.engine.blocks.freeCount - 2);
    const outcome = decode.add(2, prompt, ticket, params);
    expect(decode.handoff.inspect().imports).toMatchObject([
      { blocks: [10, 11, 12], continuationBlocks: [13], cachedPrefixBlocks: 2 },
    ]);
    expect(movesOf(begun[0]!)).toEqual([{ source: [102], target: [12], regions: [0] }]);
    expect(begun[0]!.request!.generations!.blocks).toEqual(Int32Array.of(102));
    expect(ticket.kvMeta).toEqual(asked);

    const registered: unknown[] = [];
    decode.engine.blocks.observers.add({ registered: (ids, hashes) => registered.push([[...ids], hashes]) });
    const hashes = hashesOf(prompt);
    network.advance(1);
    decode.poll();
    // Registered at the decision, when all ranks have the bytes; the reference registers at admission.
    expect(registered).toEqual([[[12], [hashes[2]]]]);
    expect(decode.engine.blocks.state().parents[12]).toBe(11);
    decode.schedule();
    const [request] = decode.engine.admitted;
    expect(request!.blockHashes).toEqual(hashes);
    expect([[...request!.blocks], [...request!.continuationBlocks]]).toEqual([[10, 11, 12], [13]]);
    expect(request!.resumeLogProbs).toEqual([-0.5]);
    await decode.step(3);
    expect(outcome.finished!.generatedLogProbs).toEqual([-0.5, -0.5]);
    expect(registered).toHaveLength(1);
  });

  test('cached blocks are held while the rest is on its way', async () => {
    const { prefill, decode, prompt } = await cachedTwo();
    decode.engine.blocks.allocate(decode.engine.blocks.freeCount - 2);
    decode.add(2, prompt, prefill.handOver(2, prompt));
    expect([decode.engine.blocks.refs[10], decode.engine.blocks.refs[11]]).toEqual([1, 1]);
    expect(decode.engine.blocks.evict(1)).toBe(false);
  });
});

test('a cached prefix that is about to be pinned is not counted as room for the rest', async () => {
  const { network, prefill, decode, begun } = await createWorld();
  decode.arrangeBlocks([10, 11, 12]);
  const prompt = promptOf(12);
  const start = prompt.slice(0, 8);
  decode.add(1, start, prefill.handOver(1, start), { num_tokens_to_generate: 1 });
  network.advance(1);
  await decode.step();
  begun.length = 0;
  // Three blocks of the prompt and a continuation block; one is free, and the two cached ones are of the prompt itself.
  const outcome = decode.add(2, prompt, prefill.handOver(2, prompt));
  expect(decode.handoff.inspect().imports).toMatchObject([{ state: 'queued' }]);
  expect(begun).toEqual([]);
  await settle();
  expect(outcome.settled).toBe(0);
  decode.engine.blocks.release(Int32Array.of(1));
  decode.poll();
  expect(begun).toHaveLength(1);
});

describe('14.1.30 without room for all of it', () => {
  test('nothing starts, and later the whole import does', async () => {
    const { network, prefill, decode, begun } = await createWorld();
    prefill.arrangeBlocks([100, 101]);
    decode.arrangeBlocks([10]);
    const prompt = promptOf(6);
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
    expect(decode.poll()).toBe(0);
    network.advance(1);
    await settle();
    expect(begun).toEqual([]);
    expect(outcome.settled).toBe(0);
    expect(decode.engine.blocks.freeCount).toBe(1);
    decode.engine.blocks.release(Int32Array.of(11));
    expect(decode.poll()).toBe(0);
    expect(movesOf(begun[0]!)).toEqual([{ source: [100, 101], target: [10, 11], regions: [0] }]);
    network.advance(1);
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
    expect(decode.seen('kvTransferReady')).toEqual([]); // nobody has to start a one-sided read
  });

  test('a smaller one behind it does not overtake', async () => {
    const { network, prefill, decode, begun } = await createWorld();
    decode.arrangeBlocks([10]);
    const [large, small] = [promptOf(6, 1), promptOf(3, 2)];
    const first = decode.add(1, large, prefill.handOver(1, large));
    const second = decode.add(2, small, prefill.handOver(2, small), { num_tokens_to_generate: 1 });
    decode.poll();
    expect(begun).toEqual([]);
    expect(decode.handoff.pendingKvImportCount).toBe(2);
    decode.engine.blocks.release(Int32Array.of(11));
    decode.poll();
    network.advance(1);
    decode.poll();
    expect(begun.map(({ tag }) => tag.split('/')[2])).toEqual(['1:0>0']);
    for (let i = 0; i < 4; i += 1) {
      await decode.step();
      network.advance(1);
    }
    expect([first.settled, second.settled]).toEqual([1, 1]);
    expect(begun.map(({ tag }) => tag.split('/')[2])).toEqual(['1:0>0', '2:0>0']);
  });

  test('what running requests may still need is left alone', async () => {
    const { network, prefill, decode, begun } = await createWorld();
    decode.arrangeBlocks([10], [11]);
    const [first, second] = [promptOf(3, 1), promptOf(3, 2)];
    // It holds one block and will grow into a second.
    const grown = decode.add(1, first, prefill.handOver(1, first), { num_tokens_to_generate: 4 });
    const behind = decode.add(2, second, prefill.handOver(2, second), { num_tokens_to_generate: 1 });
    expect(begun).toHaveLength(1);
    network.advance(1);
    decode.poll();
    decode.schedule();
    expect(decode.engine.admitted).toHaveLength(1);
    decode.poll();
    expect(begun).toHaveLength(1);
    await decode.step(6);
    network.advance(1);
    await decode.step(2);
    expect([grown.error, behind.error]).toEqual([null, null]);
    expect([grown.settled, behind.settled]).toEqual([1, 1]);
  });
});

test('14.1.33 with a cached block both stages of a PP source lose their first block', async () => {
  const { network, prefill, decode, begun } = await createWorld({}, { ppSize: 2 });
  prefill.arrangeBlocks([99], [100, 101, 102]);
  const prompt = promptOf(12);
  const start = prompt.slice(0, 4);
  decode.add(1, start, prefill.handOver(1, start), { num_tokens_to_generate: 1 });
  network.advance(1);
  await decode.step();
  for (const { engine } of prefill.ranks) engine.blocks.reset();
  prefill.arrangeBlocks([100, 101, 102]);
  begun.length = 0;
  decode.add(2, prompt, prefill.handOver(2, prompt));
  const [pending] = decode.handoff.inspect().imports;
  expect(pending).toMatchObject({ cachedPrefixBlocks: 1 });
  const target = pending!.blocks.slice(1);
  expect(begun.map(movesOf)).toEqual([
    [{ source: [101, 102], target, regions: [0] }],
    [{ source: [101, 102], target, regions: [0] }],
  ]);
  expect(begun.map(({ source }) => source)).toEqual(prefill.ranks.map(({ transport }) => transport));
});

test('14.1.34 each TP leaf’s own block list loses its first block', async () => {
  const { network, prefill, decode, begun } = await createWorld({}, { tpSize: 2 });
  const prompt = promptOf(12);
  const start = prompt.slice(0, 4);
  decode.add(1, start, prefill.handOver(1, start), { num_tokens_to_generate: 1 });
  network.advance(1);
  await decode.step();
  begun.length = 0;
  const ticket = prefill.handOver(2, prompt);
  // A peer whose ranks list different ids for the same blocks, as no instance of ours does.
  const leaves = ticket.kvMeta['tp_metas'] as object[];
  const kvMeta = {
    ...ticket.kvMeta,
    tp_metas: [
      { ...leaves[0], block_ids: [100, 101, 102] },
      { ...leaves[1], block_ids: [110, 111, 112] },
    ],
  };
  network.planNext(faults.drop());
  network.planNext(faults.drop());
  decode.add(2, prompt, { kvMeta, blockIds: [100, 101, 102] });
  expect(begun.map((transfer) => movesOf(transfer)[0]!.source)).toEqual([
    [101, 102],
    [111, 112],
  ]);
});

describe('14.1.35 a two-sided import with one cached block', () => {
  const twoSided = { transport: { direction: 'push' as const } };

  async function cachedOne(): Promise<World & { prompt: number[] }> {
    const world = await createWorld({}, {}, twoSided);
    const { network, prefill, decode } = world;
    const prompt = promptOf(8);
    const start = prompt.slice(0, 4);
    decode.add(1, start, prefill.handOver(1, start), { num_tokens_to_generate: 1 });
    prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta, 0);
    network.advance(1);
    await decode.step();
    world.begun.length = 0;
    return { ...world, prompt };
  }

  test('plans the suffix alone, and announces it after all is reserved and before anything is waited for', async () => {
    const { network, prefill, decode, begun, prompt } = await cachedOne();
    const ticket = prefill.handOver(2, prompt);
    const order: string[] = [];
    decode.handoff.on('kvTransferReady', ({ requestId, cachedPrefixBlocks }) => {
      const [pending] = decode.handoff.inspect().imports;
      order.push(`ready ${requestId} ${cachedPrefixBlocks} with ${pending!.blocks.length} blocks`);
      prefill.handoff.pushHandoffKv(2, decode.handoff.instanceMeta, cachedPrefixBlocks);
    });
    network.onWrite = () => void order.push('write');
    const outcome = decode.add(2, prompt, ticket);
    // The receive is posted in the same call (nothing here blocks, so a sender's rendezvous cannot deadlock); listeners
    // hear of it when the call is over. The reference notifies before it starts, because its start blocks.
    expect(movesOf(begun[0]!)).toMatchObject([{ source: expect.any(Array), regions: [0] }]);
    expect(movesOf(begun[0]!)[0]!.target).toEqual([decode.handoff.inspect().imports[0]!.blocks[1]]);
    network.advance(1);
    expect(order[0]).toBe('ready 2 1 with 2 blocks');
    expect(order.filter((each) => each.startsWith('ready'))).toHaveLength(1);
    expect(order.at(-1)).toBe('write');
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
  });

  test('announces nothing that could not be planned', async () => {
    const { prefill, decode, begun, prompt } = await cachedOne();
    const ticket = prefill.handOver(2, prompt);
    const kvMeta = { ...ticket.kvMeta, transports: { another: { id: 'elsewhere' } } };
    const before = decode.seen('kvTransferReady').length;
    const outcome = decode.add(2, prompt, { ...ticket, kvMeta });
    await decode.step();
    expect(begun).toEqual([]);
    expect(decode.seen('kvTransferReady')).toHaveLength(before);
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'NO_TRANSPORT' } });
  });

  test('announces nothing to a source that leaves out a rank', async () => {
    const { network, prefill, decode, begun } = await createWorld({}, { tpSize: 2 }, twoSided);
    const prompt = promptOf(4);
    const ticket = prefill.handOver(1, prompt);
    const kvMeta = { ...ticket.kvMeta, tp_metas: (ticket.kvMeta['tp_metas'] as object[]).slice(0, 1) };
    const outcome = decode.add(1, prompt, { ...ticket, kvMeta });
    network.advance(1);
    await decode.step();
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'INCOMPATIBLE' } });
    expect(begun).toEqual([]);
    expect(decode.seen('kvTransferReady')).toEqual([]);
  });

  test('announces before the receive where the connection is still coming up', async () => {
    const { network, prefill, decode, begun } = await createWorld({}, {}, twoSided);
    const prompt = promptOf(4);
    network.planNextConnect({ outcome: 'ready', afterMs: 5 });
    decode.add(1, prompt, prefill.handOver(1, prompt));
    expect(decode.seen('kvTransferReady')).toMatchObject([{ requestId: 1, cachedPrefixBlocks: 0 }]);
    expect(begun).toEqual([]);
    network.advance(5);
    decode.poll();
    expect(begun).toHaveLength(1);
    expect(decode.seen('kvTransferReady')).toHaveLength(1);
  });
});

test('an engine that continues outside its blocks gets those of the prompt and no other', async () => {
  const { prefill, decode, begun } = await createWorld();
  decode.arrangeBlocks([10]);
  const prompt = promptOf(4);
  const waits = decode.add(1, prompt, prefill.handOver(1, prompt));
  expect(decode.handoff.inspect().imports).toMatchObject([{ state: 'queued', blocks: [] }]);
  expect(decode.handoff.abortKvHandoff(1)).toBe(true);
  await settle();
  expect(waits.settled).toBe(1);

  Object.defineProperty(decode.engine, 'growsInBlocks', { value: false });
  decode.add(2, prompt, prefill.handOver(2, prompt));
  expect(decode.handoff.inspect().imports).toMatchObject([{ blocks: [10], continuationBlocks: [] }]);
  expect(decode.handoff.load().blocksReserved).toBe(0);
  expect(begun).toHaveLength(1);
});
