/**
 * Spec 14.1, what decode's scheduling point does with an import: items 1 to 4, 20 to 23 and 36.
 *
 * Whole instances with scripted transports; the decode engine checks every byte it is given and refuses to be given
 * anything outside its scheduling point (I6) or to run a prompt (I10).
 */
import { decodeAdmission } from '../../lib/decode/decode-admission.js';
import { TestMemory, wholeModel } from '../../lib/testing/index.js';
import {
  createWorld,
  hashesOf,
  hybridShape,
  Instance,
  poolState,
  promptOf,
  settle,
  twoTokens,
} from '../support/lifecycle-fixture.js';

const hybrid = { shape: hybridShape };

test('14.1.1 a three-token hybrid prompt with two proposals takes one block and one continuation block', async () => {
  const { network, prefill, decode } = await createWorld({}, {}, { ...hybrid, numSpeculativeTokens: 2 });
  // The reference's slot 10 is a slot of 20 and up here.
  decode.arrangeBlocks([10, 11]);
  decode.arrangeSlots(20);
  const prompt = promptOf(3);
  const ticket = prefill.handOver(1, prompt, { resumeTokens: [40, 41, 42] });
  // A chunked prefill id has no meaning here; it is a prompt that waits, and that is refused before anything is admitted.
  decode.add(1, prompt, ticket, { num_tokens_to_generate: 4 });
  network.advance(1);
  decode.poll();
  expect(() => decode.handoff.scheduleWaitingRequests(1)).toThrow(
    expect.objectContaining({ code: 'PROMPT_ON_DECODE', message: expect.stringContaining('decode-only engine') }),
  );
  expect(decode.engine.admitted).toEqual([]);

  expect(decode.schedule()).toBe(1);
  const [request] = decode.engine.admitted;
  expect(request).toMatchObject({ resumeTokens: [40, 41, 42], slot: 20, cachedPrefixBlocks: 0 });
  const { blocks, continuationBlocks } = request!;
  expect([[...blocks], [...continuationBlocks]]).toEqual([[10], [11]]);
  const rows = decodeAdmission({ promptTokens: 3, resumeTokens: 3, blockSize: 4 });
  expect(rows).toMatchObject({ continuationBlocks: 1, positions: [3, 4, 5], lastBlockOffset: 1 });
  const row = [...blocks, ...continuationBlocks];
  expect(rows.blockIndexOfPosition.map((index) => row[index])).toEqual([10, 11, 11]);
  // One request, nothing of its prompt left to compute.
  expect(decode.engine.batch.running.size).toBe(1);
  expect(decode.engine.promptTokensComputed).toBe(0);
});

test('14.1.2 a finished import becomes the engine’s with exactly its blocks, slot and first token', async () => {
  const { network, prefill, decode } = await createWorld({}, {}, hybrid);
  decode.arrangeBlocks([10, 11]);
  decode.arrangeSlots(20);
  const prompt = promptOf(4);
  const outcome = decode.add(2, prompt, prefill.handOver(2, prompt, { resumeTokens: [55] }));
  network.advance(1);
  decode.poll();
  decode.schedule();
  const [request] = decode.engine.admitted;
  expect(decode.engine.admitted).toHaveLength(1);
  expect(request).toMatchObject({ requestId: 2, slot: 20, resumeTokens: [55], landed: null });
  expect([...request!.prompt]).toEqual(prompt);
  expect([[...request!.blocks], [...request!.continuationBlocks]]).toEqual([[10], [11]]);
  expect(request!.blockHashes).toEqual(hashesOf(prompt));
  expect(decode.engine.batch.running.get(request!.attemptId)!.generated).toEqual([55]);
  // The record owns nothing any more and nothing waits.
  expect(decode.handoff.inspect().imports).toMatchObject([
    { requestId: 2, state: 'admitted', blocks: [], continuationBlocks: [], slot: null },
  ]);
  expect(decode.handoff.pendingKvImportCount).toBe(0);
  expect(decode.handoff.hasAdmittableKvImport).toBe(false);
  expect(decode.seen('handoffAdmitted')).toMatchObject([{ requestId: 2 }]);

  await decode.step(3);
  expect(outcome).toMatchObject({ settled: 1, finished: { cachedTokens: 4, finishReason: 'length' } });
  expect(outcome.finished!.generatedTokens[0]).toBe(55);
  // The admitted request's memory was the engine's to give back, once.
  expect(decode.engine.blocks.freeCount + decode.engine.blocks.evictableCount).toBe(2);
  expect(decode.engine.slots!.freeCount).toBe(1);
  expect(decode.handoff.inspect().imports).toEqual([]);
});

test('14.1.3 only prefill pins, and each setup is another identity', async () => {
  const { network, prefill, decode } = await createWorld();
  expect(() => decode.handoff.tryPinPermit(1, 1)).toThrow(expect.objectContaining({ code: 'WRONG_ROLE' }));
  expect(() => decode.handoff.prepareHandoffMetadataBatch([])).toThrow(expect.objectContaining({ code: 'WRONG_ROLE' }));
  const prompt = promptOf(4);
  prefill.handOver(1, prompt);
  expect(prefill.handoff.inspect().pins).toMatchObject([{ requestId: 1, state: 'offered' }]);
  // The reference's agent name is the identity of an incarnation, and what the transport grants.
  const other = await Instance.create(network, 'prefill', { handoff: { incarnation: 'boot-2' } });
  expect(other.handoff.identity).not.toEqual(prefill.handoff.identity);
  expect(other.leader.transport.grant()).not.toEqual(prefill.leader.transport.grant());
  await expect(prefill.setUp()).rejects.toMatchObject({ code: 'ALREADY_SET_UP' });
});

describe('14.1.4 hybrid setup uses the live state', () => {
  const withCache = {
    ...hybrid,
    maxRequests: 8,
    prepare: (engine: object) => {
      Object.defineProperty(engine, 'hasSsmSnapshotCache', { value: true });
      // Eight slots to hand out, and a dummy slot in memory.
      Object.defineProperty(engine, 'memory', { value: new TestMemory(hybridShape, wholeModel, 32, 9) });
    },
    poolSize: 32,
  };
  const slotsOf = (instance: Instance): unknown => {
    const [rank] = instance.handoff.instanceMeta as [Record<string, Record<string, Record<string, unknown>>>];
    return [rank['ssm']!['conv']!['num_blocks'], rank['ssm']!['recurrent']!['num_blocks']];
  };

  test('decode refuses a durable cache, and without one describes every physical slot', async () => {
    const { network } = await createWorld();
    const refused = await Instance.create(network, 'decode', { ...withCache, setUp: false });
    await expect(refused.setUp()).rejects.toMatchObject({
      code: 'SSM_CACHE_ON_DECODE',
      message: expect.stringContaining('directly into live SSM state'),
    });
    expect(() => refused.handoff.instanceMeta).toThrow(expect.objectContaining({ code: 'NOT_SET_UP' }));
    Object.defineProperty(refused.engine, 'hasSsmSnapshotCache', { value: false });
    const decode = await Instance.create(network, 'decode', {
      ...withCache,
      prepare: (engine) => {
        Object.defineProperty(engine, 'memory', { value: new TestMemory(hybridShape, wholeModel, 32, 9) });
      },
    });
    expect(slotsOf(decode)).toEqual([9, 9]);
    expect(decode.handoff.instanceMeta[0]).toMatchObject({ ssm_slot_capacity: 8 });
  });

  test('prefill keeps its cache and describes its live state', async () => {
    const { network } = await createWorld();
    const prefill = await Instance.create(network, 'prefill', withCache);
    expect(slotsOf(prefill)).toEqual([9, 9]);
  });
});

test('14.1.20 a decision waits while the batch is full, and is used once there is room', async () => {
  const { network, prefill, decode } = await createWorld();
  const prompt = promptOf(4);
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt));
  decode.engine.batchIsFull = true;
  network.advance(1);
  for (let i = 0; i < 3; i += 1) {
    expect(decode.poll()).toBe(1);
    expect(decode.schedule()).toBe(0);
  }
  expect(decode.engine.admitted).toEqual([]);
  expect(decode.handoff.hasAdmittableKvImport).toBe(true);
  expect(decode.handoff.inspect().imports).toMatchObject([{ state: 'agreed' }]);
  decode.engine.batchIsFull = false;
  expect(decode.schedule()).toBe(1);
  expect(decode.schedule()).toBe(0);
  expect(decode.engine.admitted).toHaveLength(1);
  expect(decode.handoff.hasAdmittableKvImport).toBe(false);
  await decode.step(3);
  expect(outcome.settled).toBe(1);
});

test('14.1.20 a later decision does not overtake one that waits for room', async () => {
  const { network, prefill, decode } = await createWorld();
  const [first, second] = [promptOf(4, 1), promptOf(4, 2)];
  decode.add(1, first, prefill.handOver(1, first));
  decode.add(2, second, prefill.handOver(2, second), { num_tokens_to_generate: 1 });
  decode.engine.batchIsFull = true;
  network.advance(1);
  expect(decode.poll()).toBe(2);
  expect(decode.schedule()).toBe(0);
  decode.engine.batchIsFull = false;
  expect(decode.schedule()).toBe(2);
});

test('14.1.21 polling finds an admittable import and leaves the batch alone; scheduling admits it', async () => {
  const { network, prefill, decode } = await createWorld();
  const prompt = promptOf(6);
  decode.add(1, prompt, prefill.handOver(1, prompt));
  expect(decode.poll()).toBe(0);
  network.advance(1);
  expect(decode.poll()).toBe(1);
  expect(decode.poll()).toBe(1);
  expect(decode.engine.admitted).toEqual([]);
  expect(decode.engine.batch.running.size).toBe(0);
  expect(decode.schedule()).toBe(1);
  expect(decode.engine.batch.running.size).toBe(1);
  await decode.step(3);
});

describe('14.1.22 what the first token ends needs no forward pass', () => {
  test.each([
    ['no token is wanted', { num_tokens_to_generate: 0 }, [], 'length'],
    ['one token is wanted', { num_tokens_to_generate: 1 }, [55], 'length'],
    ['the total is the prompt', { num_tokens_total: 4 }, [], 'length'],
    ['the token is the termination id', { ...twoTokens, termination_id: 55 }, [55], 'stop'],
    ['the token completes a stop word', { ...twoTokens, stop_words: ['!'] }, [55], 'stop'],
  ] as const)('%s', async (_case, samplingParams, generated, reason) => {
    const { network, prefill, decode } = await createWorld({}, {}, hybrid);
    decode.arrangeBlocks([10, 11]);
    decode.arrangeSlots(20);
    if ('stop_words' in samplingParams) decode.engine.stopTokens.add(55);
    const prompt = promptOf(4);
    const before = poolState(decode.engine.blocks).refs;
    const outcome = decode.add(1, prompt, prefill.handOver(1, prompt, { resumeTokens: [55] }), samplingParams);
    decode.engine.batchIsFull = true; // it takes no place in the batch
    network.advance(1);
    decode.poll();
    await settle();
    expect(outcome.settled).toBe(0); // only the scheduling point ends it
    expect(decode.schedule()).toBe(1);
    await settle();
    expect(outcome).toMatchObject({
      settled: 1,
      finished: { generatedTokens: generated, finishReason: reason, cachedTokens: 4, generatedLogProbs: null },
    });
    expect(decode.engine.admitted).toEqual([]);
    expect(decode.seen('handoffAdmitted')).toEqual([]);
    expect(poolState(decode.engine.blocks).refs).toEqual(before);
    expect(decode.engine.slots!.freeCount).toBe(1);
    // The imported block is complete, so it stays as cache.
    expect(decode.engine.blocks.lookup(hashesOf(prompt)[0]!)).toBe(10);
    expect(decode.seen('kvReadDone')).toHaveLength(1);
  });
});

test('14.1.23 an immediate completion resolves with its record, is counted and is forgotten', async () => {
  const { network, prefill, decode } = await createWorld();
  const prompt = promptOf(4);
  const params = { num_tokens_to_generate: 1, return_log_probs: true, skip_prompt_log_probs: true };
  const ticket = prefill.handOver(1, prompt, { resumeTokens: [55], resumeLogProbs: [-0.5] });
  const outcome = decode.add(1, prompt, ticket, params);
  network.advance(1);
  await decode.step();
  // Text is the engine's own: it detokenises what it is given, in `extra` of what it finishes itself.
  expect(outcome.finished).toEqual({
    requestId: 1,
    attemptId: 1,
    generatedTokens: [55],
    generatedLogProbs: [-0.5],
    finishReason: 'length',
    cachedTokens: 4,
  });
  expect(decode.handoff.metrics().counters).toMatchObject({ imports_completed_total: 1 });
  expect(decode.handoff.inspect().imports).toEqual([]);
  // The label is free again.
  expect(decode.add(1, prompt, prefill.handOver(2, prompt)).error).toBeNull();
  await settle();
});

test('14.1.36 a decode engine with a prompt in its waiting queue refuses to schedule', async () => {
  const { network, prefill, decode } = await createWorld();
  const prompt = promptOf(4);
  decode.add(1, prompt, prefill.handOver(1, prompt));
  network.advance(1);
  decode.poll();
  expect(() => decode.handoff.scheduleWaitingRequests(2)).toThrow(
    expect.objectContaining({
      code: 'PROMPT_ON_DECODE',
      message: expect.stringContaining('cannot schedule prompt prefill'),
    }),
  );
  expect(decode.engine.admitted).toEqual([]);
  expect(decode.engine.promptTokensComputed).toBe(0);
  expect(() => prefill.handoff.scheduleWaitingRequests(0)).toThrow(expect.objectContaining({ code: 'WRONG_ROLE' }));
  await decode.step();
  expect(decode.engine.admitted).toHaveLength(1);
});

test('an admitted request that is aborted is told to stop at once and ends on the engine’s next step', async () => {
  const { network, prefill, decode } = await createWorld();
  const prompt = promptOf(4);
  const outcome = decode.add(1, prompt, prefill.handOver(1, prompt), { num_tokens_to_generate: 20 });
  network.advance(1);
  await decode.step();
  expect(decode.handoff.abortKvHandoff(1)).toBe(true);
  expect(decode.seen('requestAborted')).toMatchObject([{ requestId: 1, sourceSafe: true }]);
  await settle();
  expect(outcome.settled).toBe(0);
  decode.handoff.abortKvHandoff(1); // no second time
  await decode.step();
  expect(outcome).toMatchObject({ settled: 1, error: { code: 'ABORTED' } });
  expect(decode.seen('requestAborted')).toHaveLength(1);
  expect(decode.seen('kvReadDone')).toHaveLength(1);
});

test('an engine is given the fence of bytes that land later than they are agreed', async () => {
  const { network, prefill, decode } = await createWorld();
  network.planNext({ landedAfterMs: 5 });
  const prompt = promptOf(4);
  decode.add(1, prompt, prefill.handOver(1, prompt));
  network.advance(1);
  decode.poll();
  decode.schedule();
  const { landed } = decode.engine.admitted[0]!;
  expect(landed!.isComplete()).toBe(false);
  network.advance(5);
  expect(landed!.isComplete()).toBe(true);
});
