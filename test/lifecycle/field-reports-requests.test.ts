/**
 * Field reports about what a request is: prefixes and partial blocks, order of memory, capacity, ids and what clients and
 * peers send (sections G to M as far as one host goes).
 */
import { computeBlockHashes } from '../../lib/memory/block-hash.js';
import { modelBlockHashes } from '../../lib/testing/model-block-hash.js';
import { faults } from '../../lib/testing/transfer-script.js';
import {
  add,
  codeThrown,
  compute,
  finishedOf,
  handOff,
  heard,
  hybridShape,
  pair,
  prefillStep,
  promptOf,
  settle,
  single,
  step,
  unheldBlocks,
  until,
  world,
} from '../support/misuse-world.js';

const hybrid = { engine: { shape: hybridShape } };

test('field report 70: only the slot that bears the state moves, whatever slots either side has taken before', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, hybrid, hybrid);
  prefill.engine.slots!.allocate();
  const scratch = decode.engine.slots!.allocate();
  decode.engine.memory.fillSlot(scratch, 0x5c);
  const outcome = add(decode, handOff(prefill));
  await until(outcome, decode);
  expect(outcome.error).toBeNull();
  expect(decode.engine.memory.slotFault(scratch, 0x5c)).toBeNull();
});

test('field report 71: after the import nothing clears the slot', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, hybrid, hybrid);
  const outcome = add(decode, handOff(prefill), { num_tokens_to_generate: 8 });
  // The test engine compares the slot with the prompt's marks when the request starts and when it ends.
  await until(outcome, decode);
  expect(outcome.finished!.generatedTokens).toHaveLength(8);
});

test.each([4, 8, 12])(
  'field report 79: a prompt of %p tokens, whole blocks: the resume token gets a block of its own',
  async (length) => {
    const network = world();
    const { prefill, decode } = await pair(network);
    const handed = handOff(prefill, 'r', promptOf(length));
    const outcome = add(decode, handed);
    step(decode);
    await until(outcome, decode);
    expect(outcome.error).toBeNull();
    expect(handed.ticket.blockIds).toHaveLength(length / 4);
  },
);

test('field report 80: a prompt that is wholly cached moves nothing, completes and frees its source', async () => {
  const network = world();
  const { prefill, decode } = await pair(network);
  decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
  await until(add(decode, handOff(prefill, 'first', promptOf(8))), decode);
  let moved = 0;
  network.onWrite = () => (moved += 1);
  const outcome = add(decode, handOff(prefill, 'second', promptOf(8)));
  await until(outcome, decode);
  expect([outcome.error, moved]).toEqual([null, 0]);
  expect(prefill.sdk.inspect().pins).toEqual([]);
});

test("field report 82: the ticket names the allocator's blocks, in order, without those beyond the prompt", async () => {
  const { prefill } = await pair(world());
  const run = compute(prefill, 'r', promptOf(10));
  const more = prefill.engine.blocks.allocate(2)!;
  const blocks = Int32Array.of(...run.blocks, ...more);
  const prepared = prefill.sdk.prepareHandoffMetadataBatch([{ ...finishedOf(run), blocks }]);
  const ticket = prefill.sdk.captureHandoffMeta('r', prepared);
  expect(ticket.blockIds).toEqual([...run.blocks]);
  expect(prefill.sdk.inspect().pins).toMatchObject([{ blocks: [...run.blocks] }]);
});

test('field report 83: hashes do not depend on the process, and a miss still frees what came', async () => {
  const tokens = promptOf(16);
  expect(computeBlockHashes(tokens, 4)).toEqual(modelBlockHashes(tokens, 4));
  const { prefill, decode } = await pair(world());
  const outcome = add(decode, handOff(prefill), { num_tokens_to_generate: 1 });
  await until(outcome, decode);
  expect(outcome.finished!.finishReason).toBe('length');
  expect(unheldBlocks(decode)).toBe(31);
});

test('field report 85: state that is not in place yet is not offered, and its bytes are right when it is', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, { engine: { readyAfterMs: () => 15 } });
  const handed = handOff(prefill);
  expect(prefill.sdk.inspect().pins).toMatchObject([{ state: 'pinned' }]);
  expect(prefill.sdk.claimHandoff(handed.ticket.handoff!, 'd/1')).toBe(false);
  network.advance(15);
  prefillStep(prefill);
  expect(heard(prefill, 'ticketReady')).toHaveLength(1);
  const outcome = add(decode, handed);
  await until(outcome, decode);
  expect(outcome.error).toBeNull();
});

test("field report 86: nothing is written before the engine's own earlier work on that memory is over", async () => {
  const network = world();
  const { prefill, decode } = await pair(network, {}, { engine: { quiescentAfterMs: () => 9 } });
  let firstWriteMs = -1;
  network.onWrite = () => (firstWriteMs = firstWriteMs < 0 ? network.clock.now() : firstWriteMs);
  const outcome = add(decode, handOff(prefill));
  await until(outcome, decode);
  expect(outcome.error).toBeNull();
  expect(firstWriteMs).toBeGreaterThanOrEqual(9);
});

test('field report 88: an import without a place in the batch keeps its state; too few blocks are refused', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, {}, { engine: { maxRequests: 1 } });
  const long = add(decode, handOff(prefill, 'long', promptOf(6, 1)), { num_tokens_to_generate: 20 });
  step(decode);
  network.advance(1);
  step(decode);
  const waits = add(decode, handOff(prefill, 'waits', promptOf(6, 2)));
  for (let i = 0; i < 5; i += 1) {
    step(decode);
    network.advance(1);
  }
  expect(decode.sdk.inspect().imports).toMatchObject([{ requestId: 'long' }, { requestId: 'waits', state: 'agreed' }]);
  await until(waits, decode);
  expect([long.error, waits.error]).toEqual([null, null]);
  const run = compute(prefill, 'empty', promptOf(6, 3));
  const empty = { ...finishedOf(run), blocks: new Int32Array(0), slot: null };
  expect(codeThrown(() => prefill.sdk.prepareHandoffMetadataBatch([empty]))).toBe('BLOCK_COUNT_MISMATCH');
});

test('field report 89: growth of what runs and of what was imported is kept free; a request that was ended comes again', async () => {
  const network = world();
  const { prefill, decode } = await pair(network, {}, { engine: { poolSize: 9 } });
  const params = { num_tokens_to_generate: 12 };
  const first = add(decode, handOff(prefill, 'a', promptOf(8, 1)), params);
  const second = add(decode, handOff(prefill, 'b', promptOf(8, 2)), params);
  step(decode);
  expect(decode.sdk.inspect().imports.map(({ state }) => state)).toContain('queued');
  decode.sdk.abortKvHandoff('a');
  await until(first, decode);
  expect(first.error!.code).toBe('ABORTED');
  await until(second, decode);
  expect(second.error).toBeNull();
  const again = add(decode, handOff(prefill, 'a again', promptOf(8, 3)), params, 'a');
  await until(again, decode);
  expect(again.error).toBeNull();
});

test('field report 92: a decode that is slow shows in its load and stops taking; capacity returns without traffic', async () => {
  const network = world();
  const { prefill, decode } = await pair(
    network,
    {},
    { options: { limits: { maxDeferred: 1 } }, engine: { poolSize: 5 } },
  );
  network.planNext({ startAfterMs: 30 });
  const one = { num_tokens_to_generate: 1 };
  const [a, b, c] = [1, 2, 3].map((seed) => add(decode, handOff(prefill, seed, promptOf(12, seed)), one));
  await settle();
  expect(c!.error).toMatchObject({ code: 'DEFERRED_LIMIT', retryable: true });
  expect(decode.sdk.load()).toMatchObject({ queued: 1, active: 1, freeFraction: 0 });
  await until(a!, decode);
  await until(b!, decode);
  expect(decode.sdk.load()).toMatchObject({ queued: 0, active: 0, freeFraction: 1 });
});

test('field report 97: a label that lives is refused, and the first request with it goes on', async () => {
  const network = world();
  const { prefill, decode } = await pair(network);
  decode.sdk.on('kvReadDone', ({ source }) => prefill.sdk.releaseHandoffBlocks(source!));
  network.planNext({ startAfterMs: 10 });
  const first = add(decode, handOff(prefill, 'r', promptOf(10, 1)));
  const other = handOff(prefill, 'other', promptOf(10, 2));
  const second = add(decode, other, {}, 'r');
  await until(first, decode);
  expect([first.error, second.error!.code]).toEqual([null, 'DUPLICATE_REQUEST']);
  expect(prefill.sdk.inspect().pins).toEqual([]);
});

test('field report 98: handoffs are named by us; equal labels on two engines are two handoffs', async () => {
  const network = world();
  const { prefill, decode } = await pair(network);
  const other = await single({ role: 'prefill', network, options: { instance: 'other' } });
  const mine = handOff(prefill, '', promptOf(6, 1));
  const theirs = handOff(other, '', promptOf(6, 2));
  expect(mine.ticket.handoff).not.toEqual(theirs.ticket.handoff);
  const first = add(decode, mine, { num_tokens_to_generate: 2 }, 'x');
  const second = add(decode, theirs, { num_tokens_to_generate: 2 }, 'y');
  await until(first, decode);
  await until(second, decode);
  expect([first.error, second.error]).toEqual([null, null]);
});

test('field report 101: a ticket for another number of tokens is refused before anything moves', async () => {
  const { prefill, decode } = await pair(world());
  const { ticket } = handOff(prefill, 'r', promptOf(1));
  const outcome = add(decode, { ticket, prompt: promptOf(3) });
  await settle();
  expect(outcome.error!.code).toBe('BLOCK_COUNT_MISMATCH');
  expect(decode.engine.blocks.freeCount).toBe(31);
});

test('a ticket for another prompt of the same length is refused before anything moves, and says so', async () => {
  const { prefill, decode } = await pair(world());
  const { ticket, prompt } = handOff(prefill, 'r', promptOf(6, 1));
  const outcome = add(decode, { ticket, prompt: promptOf(6, 2) });
  await settle();
  expect(outcome.error!.code).toBe('PROMPT_MISMATCH');
  expect(decode.engine.blocks.freeCount).toBe(31);
  // The right one goes through.
  const right = add(decode, { ticket, prompt }, { num_tokens_to_generate: 2 });
  await until(right, decode);
  expect(right.error).toBeNull();
});

test('an engine that does not give its prompt: only the length is compared', async () => {
  const { prefill, decode } = await pair(world());
  const run = compute(prefill, 'r', promptOf(6, 1));
  const { prompt: _, ...silent } = finishedOf(run);
  const ticket = prefill.sdk.captureHandoffMeta('r', prefill.sdk.prepareHandoffMetadataBatch([silent]));
  expect(ticket.kvMeta['handoff']).not.toHaveProperty('prompt_sha256');
  const outcome = add(decode, { ticket, prompt: promptOf(6, 2) }, { num_tokens_to_generate: 1 });
  await until(outcome, decode);
  expect(outcome.error).toBeNull();
});

test('field report 110: each end of a request moves one outcome counter, and their sum is the number of calls', async () => {
  const network = world();
  const options = { deadlines: { transferMs: 50, handshakeMs: 20 } };
  const { prefill, decode } = await pair(network, {}, { options });
  const ends = [
    { plan: {}, expected: 'completed' },
    { plan: {}, expected: 'completed', params: { num_tokens_to_generate: 0 } },
    { plan: {}, expected: 'completed', params: { num_tokens_to_generate: 1 } },
    { plan: faults.error(), expected: 'failed' },
    { plan: faults.drop(), expected: 'failed' },
    { plan: faults.errorWhileWriting('later', 10), expected: 'failed' },
    { plan: faults.beginThrows(true), expected: 'failed' },
    { plan: { startAfterMs: 20 }, expected: 'aborted', abort: true },
    { plan: faults.lateDone(10, 'done'), expected: 'aborted', abort: true },
    { plan: {}, expected: 'refused', params: { top_n_logprobs: 2 } },
  ];
  for (const [index, { plan, expected, params, abort }] of ends.entries()) {
    const before = decode.sdk.metrics().counters;
    const handed = handOff(prefill, index, promptOf(5, index));
    if (expected !== 'refused') network.planNext(plan);
    const outcome = add(decode, handed, params);
    if (abort === true) decode.sdk.abortKvHandoff(index);
    await settle();
    await until(outcome, decode);
    prefill.sdk.releaseHandoffBlocks(index);
    const after = decode.sdk.metrics().counters;
    const moved = ['completed', 'failed', 'aborted', 'refused'].filter(
      (end) => (after[`imports_${end}_total`] ?? 0) !== (before[`imports_${end}_total`] ?? 0),
    );
    expect([index, moved]).toEqual([index, [expected]]);
  }
  const { counters } = decode.sdk.metrics();
  const sum = ['completed', 'failed', 'aborted', 'refused'].reduce(
    (n, end) => n + (counters[`imports_${end}_total`] ?? 0),
    0,
  );
  expect(sum).toBe(ends.length);
});

describe('field report 113: references that a client makes up are refused', () => {
  const lies: Readonly<Record<string, [(meta: Record<string, unknown>, ids: number[]) => void, string]>> = {
    'a block outside the pool': [(_meta, ids) => (ids[0] = 99), 'TICKET_INVALID'],
    'a block twice': [(_meta, ids) => (ids[1] = ids[0]!), 'TICKET_INVALID'],
    'too few blocks': [(_meta, ids) => ids.pop(), 'BLOCK_COUNT_MISMATCH'],
    'a source that is not there': [
      (meta) => (meta['transports'] = { scripted: { id: 'scripted-77', region_bytes: [8192] } }),
      'PEER_UNREACHABLE',
    ],
    'a transport that is not ours': [(meta) => (meta['transports'] = { magic: 1 }), 'NO_TRANSPORT'],
  };
  test.each(Object.entries(lies))('%s', async (_name, [lie, code]) => {
    const { prefill, decode } = await pair(world());
    const { ticket, prompt } = handOff(prefill);
    // Every block of the source that is in the pool has moved on since.
    prefill.engine.hog(28);
    const [kvMeta, blockIds] = [{ ...ticket.kvMeta }, [...ticket.blockIds]];
    lie(kvMeta, blockIds);
    const outcome = add(decode, { ticket: { ...ticket, kvMeta, blockIds }, prompt });
    await until(outcome, decode);
    expect(outcome.error!.code).toBe(code);
    expect(decode.engine.blocks.freeCount).toBe(31);
  });
});
