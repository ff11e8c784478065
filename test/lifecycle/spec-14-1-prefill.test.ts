/**
 * Spec 14.1, the prefill side: items 10 to 13, 18, 25 to 28 and 41.
 *
 * A source block or slot is never reusable between a prompt's end and its release, nor while a push of it is in flight
 * (I1). Metadata is complete for every rank, made without a collective, and shares nothing that a request could change.
 */
import { faults } from '../../lib/testing/index.js';
import { decodeTicket, encodeTicket } from '../../lib/ticket-codec.js';
import {
  compute,
  createWorld,
  finishedOf,
  hashesOf,
  hybridShape,
  poolState,
  promptOf,
  settle,
  Instance,
} from '../support/lifecycle-fixture.js';
import { pushing } from '../support/lifecycle-in-flight.js';

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
  const { network, prefill } = await pushing(faults.drop(), false);
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

test('a released push that nobody receives is stopped when a transfer may take no longer, and its memory comes back', async () => {
  const { network, prefill } = await pushing(faults.drop());
  prefill.handoff.releaseHandoffBlocks(1);
  network.advance(29_999);
  expect(prefill.handoff.pollPendingKvPushes()).toBe(1);
  expect(prefill.engine.blocks.freeCount).toBe(0);
  network.advance(1);
  prefill.handoff.pollPendingKvPushes();
  network.advance(1);
  expect(prefill.handoff.pollPendingKvPushes()).toBe(0);
  expect(prefill.handoff.inspect().pins).toEqual([]);
  expect(prefill.seen('released')).toMatchObject([{ requestId: 1, reason: 'released' }]);
  expect(prefill.seen('requestError')).toEqual([]);
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
    ['prompt', { prompt: new Int32Array(5) }, 'ARGUMENT_INVALID'],
    ['prompt', { prompt: [1, 2, 3, 4, 5, 6] as never }, 'ARGUMENT_INVALID'],
    ['prompt', { prompt: null as never }, 'ARGUMENT_INVALID'],
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
