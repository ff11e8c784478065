/**
 * Spec 14.1, the prefill side: items 10 to 13, 18, 25 to 28 and 37 to 41.
 *
 * A source block or slot is never reusable between a prompt's end and its release, nor while a push of it is in flight
 * (I1). Metadata is complete for every rank, made without a collective, and shares nothing that a request could change.
 */
import { PinLedger } from '../../lib/prefill/pin-ledger.js';
import { faults, ModelBlockPool } from '../../lib/testing/index.js';
import { decodeTicket, encodeTicket } from '../../lib/ticket-codec.js';
import {
  compute,
  createWorld,
  finishedOf,
  hashesOf,
  hybridShape,
  Instance,
  movesOf,
  poolState,
  promptOf,
  settle,
} from '../support/lifecycle-fixture.js';

const push = { transport: { direction: 'push' as const } };

/** A pinned prompt of two blocks, decode's import of it, and a push that does what `plan` says. */
async function pushing(plan: Parameters<Awaited<ReturnType<typeof createWorld>>['network']['planNext']>[0]) {
  const world = await createWorld({}, {}, { ...push, shape: hybridShape });
  const { network, prefill, decode } = world;
  prefill.arrangeBlocks([100, 101]);
  prefill.arrangeSlots(9);
  network.planNext(plan);
  const prompt = promptOf(6);
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
  prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta);
  return { ...world, prompt, outcome };
}

test('14.1.10 a reset waits for a push in flight and drops it when it is over', async () => {
  const { network, prefill, outcome } = await pushing(faults.delay(5));
  expect(prefill.handoff.pendingKvPushCount).toBe(1);
  // Released already: the pin drains until the push is over.
  expect(prefill.handoff.releaseHandoffBlocks(1)).toBe(true);
  expect(prefill.handoff.inspect().pins).toMatchObject([{ state: 'draining', pushing: true }]);
  expect(prefill.engine.blocks.freeCount).toBe(0);
  let isDone = false;
  const reset = prefill.handoff.resetPendingKvImports().then(() => (isDone = true));
  for (let i = 0; i < 4; i += 1) await settle();
  expect(isDone).toBe(false);
  network.advance(10);
  await reset;
  expect(prefill.handoff.pendingKvPushCount).toBe(0);
  expect(prefill.handoff.inspect().pins).toEqual([]);
  expect(prefill.engine.slots!.isFree(9)).toBe(true);
  expect(prefill.seen('released')).toMatchObject([{ requestId: 1, reason: 'released' }]);
  expect(outcome.settled).toBe(0);
});

test('14.1.11 a reset whose push is not over by its deadline refuses and keeps it', async () => {
  const { network, prefill } = await pushing(faults.drop());
  prefill.handoff.releaseHandoffBlocks(1);
  network.advance(3_600_000);
  await expect(prefill.handoff.resetPendingKvImports({ deadlineMs: 0 })).rejects.toMatchObject({
    code: 'MEMORY_IN_DOUBT',
    message: expect.stringContaining('may still access cache storage'),
    sourceSafe: false,
  });
  expect(prefill.handoff.pendingKvPushCount).toBe(1);
  expect(prefill.engine.blocks.freeCount).toBe(0);
  expect(prefill.engine.slots!.isFree(9)).toBe(false);
  await expect(prefill.handoff.close()).rejects.toMatchObject({ code: 'MEMORY_IN_DOUBT' });
});

test('14.1.12 a reset refuses while handoffs are pinned, and keeps them', async () => {
  const { prefill } = await createWorld();
  const before = poolState(prefill.engine.blocks);
  prefill.handOver(1, promptOf(6));
  const pinned = poolState(prefill.engine.blocks);
  await expect(prefill.handoff.resetPendingKvImports()).rejects.toMatchObject({
    code: 'HANDOFF_STILL_PINNED',
    message: expect.stringContaining('remains pinned'),
  });
  expect(poolState(prefill.engine.blocks)).toEqual(pinned);
  expect(prefill.handoff.inspect().pins).toHaveLength(1);
  await expect(prefill.handoff.close()).rejects.toMatchObject({ code: 'HANDOFF_STILL_PINNED' });
  prefill.handoff.releaseHandoffBlocks(1);
  await prefill.handoff.resetPendingKvImports();
  expect(poolState(prefill.engine.blocks).refs).toEqual(before.refs);
});

test('14.1.13 a release returns the detached slot and forgets the handoff', async () => {
  const { prefill } = await createWorld({}, {}, { shape: hybridShape });
  prefill.arrangeSlots(9);
  const ticket = prefill.handOver(1, promptOf(6));
  const { slots } = prefill.engine;
  expect(slots!.freeCount).toBe(0);
  expect(prefill.handoff.inspect().pins).toMatchObject([{ slot: 9, state: 'offered' }]);
  expect(prefill.handoff.releaseHandoffBlocks(ticket.handoff!)).toBe(true);
  expect(slots!.isFree(9)).toBe(true);
  expect(prefill.handoff.inspect().pins).toEqual([]);
  expect(prefill.handoff.releaseHandoffBlocks(1)).toBe(false);
  expect(prefill.handoff.releaseHandoffBlocks(ticket.handoff!)).toBe(false);
  expect(slots!.freeCount).toBe(1);
  // Of another incarnation it is refused, not misapplied.
  expect(() => prefill.handoff.releaseHandoffBlocks({ ...ticket.handoff!, incarnation: 'boot-0' })).toThrow(
    expect.objectContaining({ code: 'HANDOFF_FENCED' }),
  );
});

test('14.1.18 pins hold a real pool’s blocks, and each release gives back its own', async () => {
  const { network } = await createWorld();
  const prefill = await Instance.create(network, 'prefill', { poolSize: 7 });
  const { blocks } = prefill.engine;
  const [first, second] = [promptOf(6, 1), promptOf(6, 2)];
  const capacity = () => blocks.freeCount + blocks.evictableCount;
  expect(capacity()).toBe(6);
  const tickets = [prefill.handOver(1, first), prefill.handOver(2, second)];
  expect(blocks.evictableCount).toBe(0);
  expect(capacity()).toBe(2);
  expect(blocks.evict(1)).toBe(false);
  expect(blocks.allocate(3)).toBeNull();
  expect(prefill.handoff.load()).toMatchObject({ blocksPinned: 4, blocksFree: 2 });

  prefill.handoff.releaseHandoffBlocks(1);
  expect(capacity()).toBe(4);
  const [named, tail] = tickets[0]!.blockIds as [number, number];
  expect(blocks.lookup(hashesOf(first)[0]!)).toBe(named);
  expect([blocks.isFree(named), blocks.isFree(tail)]).toEqual([false, true]);
  const state = poolState(blocks);
  for (const id of [1, 3, 'unknown']) expect(prefill.handoff.releaseHandoffBlocks(id)).toBe(false);
  expect(poolState(blocks)).toEqual(state);
  prefill.handoff.releaseHandoffBlocks(2);
  expect(capacity()).toBe(6);
  expect(blocks.evictableCount).toBe(2);
});

test('14.1.25 two requests on two stages carry both stages’ descriptors without any collective', async () => {
  const { prefill } = await createWorld({}, { ppSize: 2 });
  for (const { group } of prefill.ranks) {
    group!.allGather = () => Promise.reject(new Error('a collective'));
  }
  // A leaf is a map with the rank's descriptor; the reference's PP metadata holds the same under its agents' names.
  const tickets = [1, 2].map((id) => prefill.handOver(id, promptOf(6, id), { resumeTokens: [55 + id] }));
  for (const [index, ticket] of tickets.entries()) {
    const stages = ticket.kvMeta['pp_metas'] as { block_ids: number[]; tp_metas: { pp_rank: number } }[];
    expect(stages.map(({ block_ids }) => block_ids)).toEqual([ticket.blockIds, ticket.blockIds]);
    expect(stages.map(({ tp_metas }) => tp_metas.pp_rank)).toEqual([0, 1]);
    expect(ticket.kvMeta['resume_tokens']).toEqual([56 + index]);
  }
  const [one, two] = tickets.map(({ blockIds }) => blockIds);
  expect(one).not.toEqual(two);
});

describe('14.1.26 a batch whose metadata cannot be prepared', () => {
  test.each([['the transfer is not set up'], ['a request has the wrong number of resume tokens']])(
    '%s: everything of every request goes back, the regular one’s too',
    async (why) => {
      const { network } = await createWorld();
      const isUp = why !== 'the transfer is not set up';
      const prefill = await Instance.create(network, 'prefill', { shape: hybridShape, setUp: isUp });
      const before = [poolState(prefill.engine.blocks).refs, prefill.engine.slots!.freeCount];
      const finished = [1, 2].map((id) => finishedOf(compute(prefill.leader, id, promptOf(6, id))));
      const regular = { ...finishedOf(compute(prefill.leader, 3, promptOf(3, 3))), doKvHandoff: false };
      const wrong = isUp ? { ...finished[1]!, resumeTokens: [1, 2] } : finished[1]!;
      expect(() => prefill.handoff.prepareHandoffMetadataBatch([finished[0]!, regular, wrong])).toThrow(
        expect.objectContaining({ code: isUp ? 'RESUME_TOKENS_INVALID' : 'NOT_SET_UP' }),
      );
      expect([poolState(prefill.engine.blocks).refs, prefill.engine.slots!.freeCount]).toEqual(before);
      expect(prefill.seen('pinned')).toEqual([]);
    },
  );

  test.each([
    ['promptTokens', { promptTokens: 0 }, 'ARGUMENT_INVALID'],
    ['blocks', { blocks: new Int32Array(0) }, 'BLOCK_COUNT_MISMATCH'],
    ['slot', { slot: null }, 'SSM_METADATA_INVALID'],
    ['resumeLogProbs', { returnLogProbs: true, resumeLogProbs: [-1, -2] }, 'RESUME_TOKENS_INVALID'],
  ])('%s is named in the error', async (field, wrong, code) => {
    const { prefill } = await createWorld({}, {}, { shape: hybridShape });
    const finished = { ...finishedOf(compute(prefill.leader, 1, promptOf(6))), ...wrong };
    expect(() => prefill.handoff.prepareHandoffMetadataBatch([finished])).toThrow(
      expect.objectContaining({ code, message: expect.stringContaining(`finished[0].${field}`) }),
    );
  });

  test('a permit that was taken for one of them is given back', async () => {
    const { network } = await createWorld();
    const prefill = await Instance.create(network, 'prefill', { handoff: { limits: { maxPinnedBlocks: 2 } } });
    expect(prefill.handoff.tryPinPermit(1, 2)).toBe(true);
    expect(prefill.handoff.tryPinPermit(2, 1)).toBe(false);
    const wrong = { ...finishedOf(compute(prefill.leader, 1, promptOf(6))), resumeTokens: [] };
    expect(() => prefill.handoff.prepareHandoffMetadataBatch([wrong])).toThrow();
    expect(prefill.handoff.tryPinPermit(2, 1)).toBe(true);
  });
});

test('14.1.27 a ten-token prompt keeps its three blocks, the partial one too, its token and its slot', async () => {
  const { prefill } = await createWorld({}, {}, { shape: hybridShape });
  prefill.arrangeBlocks([100, 101, 102, 103]);
  prefill.arrangeSlots(9);
  const run = compute(prefill.leader, 1, promptOf(10));
  // A table may reach beyond the prompt; what does is not handed over.
  const more = prefill.engine.blocks.allocate(1)!;
  const table = Int32Array.of(...run.blocks, ...more);
  const finished = { ...finishedOf(run, { resumeTokens: [55] }), blocks: table };
  const ticket = prefill.handoff.captureHandoffMeta(run, prefill.handoff.prepareHandoffMetadataBatch([finished]));
  const source = [...run.blocks];
  expect(source).toHaveLength(3);
  expect(ticket.blockIds).toEqual(source);
  expect(ticket.kvMeta['resume_tokens']).toEqual([55]);
  expect(prefill.handoff.inspect().pins).toMatchObject([{ blocks: source, slot: 9 }]);
  expect(source.map((block) => prefill.engine.blocks.refs[block])).toEqual([2, 2, 2]);
  expect(prefill.engine.blocks.refs[more[0]!]).toBe(1);
  prefill.engine.endPrefill(run, true);
  expect(source.map((block) => prefill.engine.blocks.refs[block])).toEqual([1, 1, 1]);
  expect(prefill.seen('released')).toEqual([]);
  // Nothing that is pinned can be had.
  expect(prefill.engine.blocks.allocate(1)).toBeNull();
  expect(prefill.engine.slots!.allocate()).toBe(-1);
});

test('14.1.28 a ticket survives its round trip as text, and its state is imported from the copy', async () => {
  const { network, prefill, decode } = await createWorld({}, { tpSize: 2, ppSize: 2 }, { shape: hybridShape });
  const prompt = promptOf(6);
  const ticket = prefill.handOver(1, prompt);
  // The reference serialises the whole request; here it is the ticket that travels.
  const copy = decodeTicket(encodeTicket(ticket));
  expect(copy.blockIds).toEqual(ticket.blockIds);
  expect(copy.handoff).toEqual(ticket.handoff);
  expect(encodeTicket(copy)).toBe(encodeTicket(ticket));
  const outcome = decode.add(1, prompt, copy);
  network.advance(1);
  await decode.step(3);
  expect(outcome).toMatchObject({ settled: 1, error: null });
});

test('14.1.37 a push sends the pinned blocks and slot to the decode entries’ own state, in one start', async () => {
  const { network, prefill, decode, begun, outcome } = await pushing({});
  const [transfer] = begun;
  expect(begun).toHaveLength(1);
  const [pending] = decode.handoff.inspect().imports;
  // The receiver's half names where it goes; what is sent are the pinned blocks and slot.
  expect(movesOf(transfer!)).toMatchObject([
    { target: pending!.blocks, regions: [0] },
    { target: [pending!.slot], regions: [1, 2] },
  ]);
  const read = new Set<string>();
  const { memory } = prefill.engine;
  network.onRead = (_source, region, offset) =>
    void read.add(`${memory.isSlotRegion(region) ? 'slot' : 'block'} ${memory.idAt(region, offset)}`);
  network.advance(1);
  expect([...read].sort()).toEqual(['block 100', 'block 101', 'slot 9']);
  prefill.poll();
  expect(prefill.handoff.pendingKvPushCount).toBe(0);
  expect(prefill.handoff.inspect().pins).toMatchObject([{ state: 'offered', pushing: false }]); // kept until released
  await decode.step(3);
  expect(outcome).toMatchObject({ settled: 1, error: null }); // the engine looked at every byte
});

test('14.1.37 a push leaves out what decode has cached', async () => {
  const { network, prefill, decode } = await createWorld({}, {}, push);
  prefill.arrangeBlocks([99], [100, 101]);
  const prompt = promptOf(8);
  const start = prompt.slice(0, 4);
  decode.add(1, start, prefill.handOver(1, start), { num_tokens_to_generate: 1 });
  prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta);
  network.advance(1);
  await decode.step();
  const outcome = decode.add(2, prompt, prefill.handOver(2, prompt));
  const [{ cachedPrefixBlocks }] = decode.seen('kvTransferReady').slice(-1) as [{ cachedPrefixBlocks: number }];
  expect(cachedPrefixBlocks).toBe(1);
  const read = new Set<number>();
  network.onRead = (_source, region, offset) => void read.add(prefill.engine.memory.idAt(region, offset));
  prefill.handoff.pushHandoffKv(2, decode.handoff.instanceMeta, cachedPrefixBlocks);
  network.advance(1);
  expect(read.size).toBe(1);
  await decode.step(3);
  expect(outcome).toMatchObject({ settled: 1, error: null });
});

describe('14.1.38 a push that does not start', () => {
  test('leaves the pins in place and says so', async () => {
    const { prefill, decode } = await createWorld({}, {}, push);
    prefill.handOver(1, promptOf(6));
    const elsewhere = decode.handoff.instanceMeta.map((rank) => ({ ...rank, transports: { another: {} } }));
    // Here the failure is a notice; nothing is thrown into the engine's step, as the reference does.
    prefill.handoff.pushHandoffKv(1, elsewhere);
    prefill.poll();
    expect(prefill.seen('requestError')).toMatchObject([
      { requestId: 1, sourceSafe: true, error: { code: 'NO_TRANSPORT' } },
    ]);
    expect(prefill.handoff.inspect().pins).toMatchObject([{ state: 'offered', pushing: false }]);
    expect(prefill.handoff.pendingKvPushCount).toBe(0);
  });

  test('and may still be read keeps the source even when it is released', async () => {
    const { network, prefill } = await pushing(faults.errorWhileWriting('later', 20));
    network.advance(2);
    prefill.poll();
    expect(prefill.seen('requestError')).toMatchObject([{ requestId: 1, sourceSafe: false }]);
    prefill.handoff.releaseHandoffBlocks(1);
    prefill.poll();
    expect(prefill.engine.blocks.freeCount).toBe(0);
    expect(prefill.engine.slots!.isFree(9)).toBe(false);
    expect(prefill.handoff.pendingKvPushCount).toBe(1);
    network.advance(30);
    prefill.poll();
    expect(prefill.engine.slots!.isFree(9)).toBe(true);
    expect(prefill.handoff.pendingKvPushCount).toBe(0);
    expect(prefill.handoff.inspect().pins).toEqual([]);
  });

  test('whose target is attested dead lets the source go', async () => {
    const { network, prefill, decode } = await createWorld({ handoff: { incarnation: 'boot-2' } }, {}, push);
    network.planNext(faults.errorWhileWriting('never'));
    const who = { instance: 'decode', incarnation: 'boot-2' };
    const prompt = promptOf(6);
    decode.add(2, prompt, prefill.handOver(2, prompt));
    prefill.handoff.pushHandoffKv(2, decode.handoff.instanceMeta, 0, who);
    network.advance(2);
    prefill.poll();
    prefill.handoff.releaseHandoffBlocks(2);
    network.kill(decode.leader.transport);
    prefill.handoff.attestInstanceDead('decode', 'boot-1');
    prefill.poll();
    expect(prefill.handoff.pendingKvPushCount).toBe(1);
    prefill.handoff.attestInstanceDead('decode', 'boot-2');
    prefill.poll();
    expect(prefill.handoff.pendingKvPushCount).toBe(0);
    expect(prefill.handoff.inspect().pins).toEqual([]);
  });

  test('a push of nothing pinned is a warning, one out of range or repeated an error', async () => {
    const { prefill, decode } = await pushing(faults.drop());
    const meta = decode.handoff.instanceMeta;
    prefill.handoff.pushHandoffKv(99, meta);
    expect(prefill.seen('warning')).toHaveLength(1);
    for (const count of [-1, 3, 0.5])
      expect(() => prefill.handoff.pushHandoffKv(1, meta, count)).toThrow(
        expect.objectContaining({ code: 'ARGUMENT_INVALID' }),
      );
    expect(() => prefill.handoff.pushHandoffKv(1, meta)).toThrow(
      expect.objectContaining({ code: 'DUPLICATE_REQUEST' }),
    );
    prefill.handoff.releaseHandoffBlocks(1);
    prefill.handoff.pushHandoffKv(1, meta); // draining: there is nothing to send any more
    expect(prefill.seen('warning')).toHaveLength(2);
    expect(prefill.handoff.pendingKvPushCount).toBe(1);
  });
});

test('14.1.39 a pinned slot without pinned blocks is refused before anything is prepared', async () => {
  const { network, prefill, decode, begun } = await createWorld({}, {}, { ...push, shape: hybridShape });
  // A checked batch cannot give such a pin; one made by hand can.
  const run = compute(prefill.leader, 1, promptOf(4));
  const withoutBlocks = { ...finishedOf(run), promptTokens: 0, blocks: new Int32Array(0) };
  prefill.handoff.captureHandoffMeta(1, { byRequest: new Map([[1, withoutBlocks]]) });
  expect(() => prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta)).toThrow(
    expect.objectContaining({
      code: 'HANDOFF_UNKNOWN',
      message: expect.stringContaining('detached SSM state but no pinned KV blocks'),
    }),
  );
  expect(prefill.handoff.pendingKvPushCount).toBe(0);
  network.advance(1);
  expect(begun).toEqual([]);
});

test('14.1.40 decode metadata without a kind of state is refused before anything is prepared', async () => {
  const { prefill, decode } = await createWorld({}, {}, { ...push, shape: hybridShape });
  prefill.handOver(1, promptOf(4));
  for (const kind of ['recurrent', 'conv']) {
    const [rank] = structuredClone(decode.handoff.instanceMeta) as [{ ssm: Record<string, unknown> }];
    delete rank.ssm[kind];
    expect(() => prefill.handoff.pushHandoffKv(1, [rank])).toThrow(
      expect.objectContaining({ code: 'SSM_METADATA_INVALID', message: expect.stringContaining(kind) }),
    );
  }
  expect(prefill.handoff.pendingKvPushCount).toBe(0);
  expect(prefill.handoff.inspect().pins).toMatchObject([{ pushing: false }]);
});

test('14.1.41 hybrid TP 2 × PP 2: every leaf names the slot, nothing is shared that a request could change', async () => {
  const { prefill } = await createWorld({}, { tpSize: 2, ppSize: 2, shape: hybridShape });
  for (const { group } of prefill.ranks) group!.allGather = () => Promise.reject(new Error('a collective'));
  const described = structuredClone(prefill.handoff.instanceMeta);
  const tickets = [1, 2].map((id) => prefill.handOver(id, promptOf(6, id)));
  const leavesOf = (index: number, kind: string) => {
    const ssm = tickets[index]!.kvMeta['ssm'] as Record<
      string,
      { pp_metas: { tp_metas: Record<string, unknown>[] }[] }
    >;
    return ssm[kind]!.pp_metas.flatMap(({ tp_metas }) => tp_metas);
  };
  for (const [index, pin] of prefill.handoff.inspect().pins.entries()) {
    for (const kind of ['conv', 'recurrent']) {
      const leaves = leavesOf(index, kind);
      expect(leaves.map((leaf) => leaf['block_ids'])).toEqual([[pin.slot], [pin.slot], [pin.slot], [pin.slot]]);
      expect(leaves.map((leaf) => (leaf['ssm_layout'] as { global_rank: number }).global_rank)).toEqual([0, 1, 2, 3]);
    }
  }
  expect(leavesOf(0, 'conv')[0]).not.toBe(leavesOf(1, 'conv')[0]);
  expect(tickets[0]!.kvMeta).not.toBe(tickets[1]!.kvMeta);
  // What a router does to one ticket reaches neither the next nor the instance.
  leavesOf(0, 'conv')[0]!['block_ids'] = [77];
  expect(leavesOf(1, 'conv')[0]!['block_ids']).toEqual([prefill.handoff.inspect().pins[1]!.slot]);
  expect(prefill.handoff.instanceMeta).toEqual(described);
  const [stage] = tickets[0]!.kvMeta['pp_metas'] as { tp_metas: { geometry: { axes: unknown[] }[] }[] }[];
  expect(() => stage!.tp_metas[0]!.geometry[0]!.axes.pop()).toThrow('Cannot delete');
  expect(prefill.handoff.instanceMeta).toEqual(described);
});

test('instances that give no name are told apart: each push reaches its own', async () => {
  const { network, prefill, decode } = await createWorld({}, {}, push);
  const other = await Instance.create(network, 'decode', push);
  const outcomes = [decode, other].map((target, index) => {
    const prompt = promptOf(4, index + 1);
    const outcome = target.add(1, prompt, prefill.handOver(index, prompt));
    prefill.handoff.pushHandoffKv(index, target.handoff.instanceMeta);
    return outcome;
  });
  network.advance(1);
  for (const instance of [decode, other]) await instance.step(3);
  expect(outcomes).toMatchObject([
    { settled: 1, error: null },
    { settled: 1, error: null },
  ]);
});

test('sources that give no name are told apart: each import reads its own', async () => {
  const { network, prefill, decode } = await createWorld();
  const other = await Instance.create(network, 'prefill');
  const outcomes = [prefill, other].map((source, index) => {
    const prompt = promptOf(3, index + 1);
    const { kvMeta, blockIds } = source.handOver(1, prompt);
    return decode.add(index, prompt, { blockIds, kvMeta: { ...kvMeta, handoff: null } });
  });
  network.advance(1);
  await decode.step(3); // the engine looks at every byte
  expect(outcomes).toMatchObject([
    { settled: 1, error: null },
    { settled: 1, error: null },
  ]);
});

describe('pins', () => {
  test('a ticket is ready when its fence has fired, and a push waits for it', async () => {
    const { network, prefill, decode, begun } = await createWorld({}, { readyAfterMs: () => 10 }, push);
    const run = compute(prefill.leader, 1, promptOf(4));
    const prepared = prefill.handoff.prepareHandoffMetadataBatch([finishedOf(run)]);
    const ticket = prefill.handoff.captureHandoffMeta(1, prepared, { ready: run.ready });
    prefill.engine.endPrefill(run, true);
    expect(prefill.handoff.inspect().pins).toMatchObject([{ state: 'pinned' }]);
    expect(prefill.handoff.claimHandoff(ticket.handoff!, 'decode/boot-1')).toBe(false);
    expect(() => encodeTicket(ticket)).toThrow(); // it stays at home until then
    const outcome = decode.add(1, promptOf(4), ticket);
    prefill.handoff.pushHandoffKv(1, decode.handoff.instanceMeta);
    network.advance(9);
    prefill.poll();
    decode.poll();
    expect(begun).toEqual([]);
    expect(prefill.seen('ticketReady')).toEqual([]);
    network.advance(1);
    prefill.poll();
    decode.poll();
    expect(prefill.seen('ticketReady')).toMatchObject([{ requestId: 1 }]);
    expect(begun).toHaveLength(1);
    network.advance(1);
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1, error: null });
  });

  test('the first claim wins, and an owner attested dead loses what it has and gets no more', async () => {
    const { prefill } = await createWorld();
    const [one, two] = [1, 2].map((id) => prefill.handOver(id, promptOf(4, id)).handoff!) as [never, never];
    expect(prefill.handoff.claimHandoff(one, 'a')).toBe(true);
    expect(prefill.handoff.claimHandoff(one, 'a')).toBe(true);
    expect(prefill.handoff.claimHandoff(one, 'b')).toBe(false);
    expect(prefill.handoff.releaseOwner('a')).toBe(1);
    expect(prefill.seen('released')).toMatchObject([{ requestId: 1, reason: 'attested' }]);
    expect(prefill.handoff.claimHandoff(two, 'a')).toBe(false);
    expect(prefill.handoff.claimHandoff(two, 'b')).toBe(true);
    expect(prefill.handoff.releaseOwner('a')).toBe(0);
  });

  test('bounds are taken before the prefill, and never exceeded', async () => {
    const limits = { maxPinnedHandoffs: 2, maxPinnedBlocks: 3 };
    const { prefill } = await createWorld({}, { handoff: { limits } });
    const { handoff } = prefill;
    expect(() => handoff.tryPinPermit(1, 4)).toThrow(expect.objectContaining({ code: 'CAPACITY_NEVER_FITS' }));
    expect(handoff.tryPinPermit(1, 2)).toBe(true);
    expect(handoff.tryPinPermit(1, 2)).toBe(true);
    expect(handoff.tryPinPermit(2, 2)).toBe(false);
    expect(handoff.tryPinPermit(2, 1)).toBe(true);
    expect(handoff.tryPinPermit(3, 0)).toBe(false);
    // Without a permit a third is refused with nothing pinned.
    const before = poolState(prefill.engine.blocks).refs;
    const run = compute(prefill.leader, 3, promptOf(3, 3));
    const prepared = handoff.prepareHandoffMetadataBatch([finishedOf(run)]);
    expect(() => handoff.captureHandoffMeta(3, prepared)).toThrow(expect.objectContaining({ code: 'PIN_LIMIT' }));
    prefill.engine.endPrefill(run, false);
    expect(poolState(prefill.engine.blocks).refs).toEqual(before);
    prefill.handOver(1, promptOf(6, 1));
    prefill.handOver(2, promptOf(3, 2));
    expect(handoff.dropPinPermit(2)).toBe(false);
    expect(handoff.tryPinPermit(3, 1)).toBe(false);
    handoff.releaseHandoffBlocks(2);
    expect(handoff.tryPinPermit(3, 1)).toBe(true);
    expect(handoff.dropPinPermit(3)).toBe(true);
  });

  test('one request has one pin, and one that was not prepared has none', async () => {
    const { prefill } = await createWorld();
    prefill.handOver(1, promptOf(4));
    const run = compute(prefill.leader, 1, promptOf(4));
    const prepared = prefill.handoff.prepareHandoffMetadataBatch([finishedOf(run)]);
    expect(() => prefill.handoff.captureHandoffMeta(1, prepared)).toThrow(
      expect.objectContaining({ code: 'DUPLICATE_REQUEST' }),
    );
    expect(() => prefill.handoff.captureHandoffMeta(5, prepared)).toThrow(
      expect.objectContaining({ code: 'UNKNOWN_REQUEST' }),
    );
  });

  test('a retention limit ends pins whose late readers are noticed, and only shows the others', async () => {
    const handoff = { deadlines: { pinMs: 100 } };
    const { network, prefill } = await createWorld({}, { handoff });
    prefill.handOver(1, promptOf(4));
    network.advance(99);
    prefill.poll();
    expect(prefill.handoff.inspect().pins).toHaveLength(1);
    network.advance(1);
    prefill.poll();
    expect(prefill.handoff.inspect().pins).toEqual([]);
    expect(prefill.seen('released')).toMatchObject([{ reason: 'expired' }]);

    // A transport without generations (I9): the pin is overdue and stays.
    const blind = await Instance.create(network, 'prefill', { handoff });
    Object.defineProperty(blind.leader.transport.capabilities, 'detectsLateReads', { value: false });
    blind.handOver(1, promptOf(4));
    network.advance(1_000_000);
    blind.poll();
    blind.poll();
    expect(blind.seen('pinOverdue')).toMatchObject([{ requestId: 1, ageMs: 1_000_000, owner: null }]);
    expect(blind.handoff.inspect().pins).toMatchObject([{ state: 'offered', overdue: true }]);
  });

  test('a late reader of an expired pin gets no byte', async () => {
    const { network, prefill, decode } = await createWorld({}, { handoff: { deadlines: { pinMs: 100 } } });
    const prompt = promptOf(3);
    const ticket = prefill.handOver(1, prompt);
    network.advance(100);
    prefill.poll();
    prefill.handOver(2, promptOf(3, 2)); // the block has another owner now
    const outcome = decode.add(1, prompt, ticket);
    network.advance(1);
    await decode.step(2);
    expect(outcome).toMatchObject({ settled: 1, error: { code: 'HANDOFF_EXPIRED' } });
    expect(decode.engine.admitted).toEqual([]);
  });

  test('the ledger of a rank counts what is pinned and permitted', () => {
    const blocks = new ModelBlockPool({ poolSize: 8 });
    const ledger = new PinLedger(
      blocks,
      null,
      { maxPinnedHandoffs: 4, maxPinnedBlocks: 6 },
      {
        released: () => undefined,
        ready: () => undefined,
      },
    );
    const ids = blocks.allocate(2)!;
    const pin = ledger.pin('a', ids, null, 0, null);
    ledger.tryPermit('b', 3);
    expect([ledger.size, ledger.pinnedBlocks, ledger.permitCount]).toEqual([1, 2, 1]);
    ledger.end(pin, 'released');
    expect([ledger.size, ledger.pinnedBlocks]).toEqual([0, 0]);
    expect(() => ledger.end(pin, 'released')).toThrow(expect.objectContaining({ code: 'INVARIANT' }));
  });
});
