/**
 * The engine's loop: how requests end, what they hold and give back, who runs when. Every test ends with all memory
 * back where it came from.
 */
import { smallModel } from '../../examples/engine/config.js';
import { encode } from '../../examples/engine/tokenizer.js';
import type { PrefilledRequest, SamplingParams } from '../../lib/engine-context.js';
import { HandoffError } from '../../lib/errors.js';
import { modelBlockHashes } from '../../lib/testing/model-block-hash.js';
import {
  bitsOf,
  carryOver,
  engineFixture,
  extraOf,
  generate,
  greedy,
  prefill,
  promptOf,
  runUntilIdle,
  type EngineFixture,
} from '../support/engine-fixture.js';

const prompt = promptOf(37);

/** Nothing is referenced and nothing bound. */
function expectIdle({ engine, pool, slots }: EngineFixture): void {
  expect(engine.hasWork).toBe(false);
  expect(engine.growthReserve()).toBe(0);
  expect(pool.freeCount + pool.evictableCount).toBe(pool.poolSize - 1);
  expect(slots?.freeCount ?? null).toBe(slots?.size ?? null);
}

function codeOf(error: unknown): string {
  expect(error).toBeInstanceOf(HandoffError);
  return (error as HandoffError).code;
}

describe('ends', () => {
  test('by length, with as many tokens as were asked for', async () => {
    const fixture = engineFixture({ model: smallModel('hybrid', { numSpeculativeTokens: 3 }) });
    for (const wanted of [1, 2, 3, 4, 9]) {
      const result = await generate(fixture.engine, prompt, { num_tokens_to_generate: wanted });
      expect([result.generatedTokens.length, result.finishReason]).toEqual([wanted, 'length']);
    }
    expectIdle(fixture);
  });

  test('with no token when none was asked for, the prompt being in the cache then', async () => {
    const fixture = engineFixture();
    const none = await generate(fixture.engine, prompt, { num_tokens_to_generate: 0 });
    expect([none.generatedTokens, none.finishReason]).toEqual([[], 'length']);
    const warm = await generate(fixture.engine, prompt, { num_tokens_to_generate: 1 });
    expect(warm.cachedTokens).toBe(36);
    expectIdle(fixture);
  });

  test('by a total of prompt and output', async () => {
    const { engine } = engineFixture();
    const total = await generate(engine, prompt, { num_tokens_to_generate: null, num_tokens_total: 40 });
    expect(total.generatedTokens).toHaveLength(3);
    const past = await generate(engine, prompt, { num_tokens_to_generate: null, num_tokens_total: 10 });
    expect(past.generatedTokens).toHaveLength(0);
  });

  test('by the longest sequence when nothing else was said', async () => {
    const { engine } = engineFixture({ maxSequenceLength: 50 });
    const result = await generate(engine, prompt, { num_tokens_to_generate: null });
    expect([result.generatedTokens.length, result.finishReason]).toEqual([13, 'length']);
  });

  test.each([0, 3])('at the termination token, whatever the %i proposals behind it', async (numSpeculativeTokens) => {
    const fixture = engineFixture({ model: smallModel('moe', { numSpeculativeTokens }) });
    const whole = (await generate(fixture.engine, prompt, { num_tokens_to_generate: 20 })).generatedTokens;
    for (const token of new Set(whole)) {
      const result = await generate(fixture.engine, prompt, { num_tokens_to_generate: 20, termination_id: token });
      const end = whole.indexOf(token) + 1;
      expect([result.generatedTokens, result.finishReason]).toEqual([whole.slice(0, end), 'stop']);
    }
    expectIdle(fixture);
  });

  test('at a termination token that is also the last one allowed: as stopped', async () => {
    const { engine } = engineFixture();
    const [token] = (await generate(engine, prompt, { num_tokens_to_generate: 1 })).generatedTokens;
    const result = await generate(engine, prompt, { num_tokens_to_generate: 1, termination_id: token! });
    expect(result.finishReason).toBe('stop');
  });

  test('after a stop word, not before its last byte', async () => {
    const { engine } = engineFixture();
    const whole = (await generate(engine, prompt, { num_tokens_to_generate: 20 })).generatedTokens;
    const word = String.fromCharCode(...whole.slice(4, 7));
    const result = await generate(engine, prompt, { num_tokens_to_generate: 20, stop_words: ['\u00e9\u00e9', word] });
    expect([result.generatedTokens, result.finishReason]).toEqual([whole.slice(0, 7), 'stop']);
  });
});

describe('aborts', () => {
  test.each([0, 1, 5, 9])('after %i steps: the request rejects, its memory is back', async (steps) => {
    const fixture = engineFixture({ model: smallModel('hybrid', { numSpeculativeTokens: 1 }), prefillChunk: 16 });
    const promise = fixture.engine.addRequest({
      requestId: 'a',
      prompt,
      samplingParams: { num_tokens_to_generate: 50 },
    });
    for (let i = 0; i < steps; i++) fixture.engine.step();
    fixture.engine.abort('a');
    fixture.engine.abort('nobody');
    fixture.engine.step();
    expect(codeOf(await promise.catch((error: unknown) => error))).toBe('ABORTED');
    expectIdle(fixture);
    // The label is free again.
    await generate(fixture.engine, prompt);
    expectIdle(fixture);
  });

  test('of an admitted request are told to the SDK', () => {
    const source = engineFixture({ role: 'prefill' });
    const target = engineFixture({ role: 'decode' });
    const { taken } = prefill(source, prompt);
    target.engine.admitPrefilledDecode(carryOver(source, taken, target, 31));
    target.engine.step();
    target.engine.abortRequest(31);
    target.engine.abortRequest(32);
    expect(target.failed.size).toBe(0);
    target.engine.step();
    expect([...target.failed].map(([id, { code }]) => [id, code])).toEqual([[31, 'ABORTED']]);
    expect(target.finished.size).toBe(0);
    expectIdle(target);
  });

  test('wait for state that is still landing', () => {
    let hasLanded = false;
    const source = engineFixture({ role: 'prefill' });
    const target = engineFixture({ role: 'decode' });
    const carried = carryOver(source, prefill(source, prompt).taken, target);
    target.engine.admitPrefilledDecode({ ...carried, landed: { isComplete: () => hasLanded } });
    target.engine.abortRequest(7);
    target.engine.step();
    expect(target.failed.size).toBe(0);
    hasLanded = true;
    target.engine.step();
    expect(target.failed.get(7)!.code).toBe('ABORTED');
    expectIdle(target);
  });
});

describe('a finished prefill', () => {
  const model = smallModel('hybrid', { numSpeculativeTokens: 2 });

  test('is handed out once, with everything a ticket needs, and cleaned up after', async () => {
    const fixture = engineFixture({ model, role: 'prefill', prefillChunk: 10 });
    const { taken, promise } = prefill(fixture, prompt, { return_log_probs: true });
    expect(taken.blocks).toHaveLength(10);
    expect(taken.prompt).toEqual(Int32Array.from(prompt));
    expect(taken.resumeTokens).toHaveLength(3);
    expect(taken.resumeLogProbs).toHaveLength(1);
    expect(taken.blockHashes).toHaveLength(9);
    expect(taken.slot).not.toBeNull();
    expect(taken.ready).toBeNull();
    expect(fixture.engine.takeFinishedPrefills()).toEqual([]);
    // The engine's references are still there for the SDK to add to.
    for (const block of taken.blocks) expect(fixture.pool.refs[block]).toBe(1);
    fixture.pool.retain(taken.blocks);
    fixture.engine.cleanupFinished();
    for (const block of taken.blocks) expect(fixture.pool.refs[block]).toBe(1);
    const result = await promise;
    expect(result.generatedTokens).toEqual(taken.resumeTokens.slice(0, 1));
    expect(result.generatedLogProbs).toEqual(taken.resumeLogProbs);
    // The slot went with it; whoever took it gives it back.
    expect(fixture.slots!.freeCount).toBe(fixture.slots!.size - 1);
    fixture.slots!.free(taken.slot!);
    fixture.pool.release(taken.blocks);
    expectIdle(fixture);
  });

  test('that nobody takes loses its slot and blocks at the next step', async () => {
    const fixture = engineFixture({ model, role: 'prefill' });
    const promise = fixture.engine.addRequest({ requestId: 1, prompt, samplingParams: { do_kv_handoff: true } });
    fixture.engine.step();
    expect(fixture.engine.hasWork).toBe(true);
    fixture.engine.step();
    await promise;
    expectIdle(fixture);
  });

  test('needs room for its prompt alone, and hands on proposals whatever the limit', () => {
    const fixture = engineFixture({ model, role: 'prefill', poolSize: 11 });
    const { taken } = prefill(fixture, prompt, { num_tokens_to_generate: 300 });
    expect(fixture.engine.growthReserve()).toBe(0);
    fixture.engine.cleanupFinished();
    const short = prefill(fixture, prompt, { num_tokens_to_generate: 0 });
    expect(short.taken.resumeTokens).toEqual(taken.resumeTokens);
  });

  test('starts only with a permit, and a permit not used is given back', async () => {
    const fixture = engineFixture({ model, role: 'prefill' });
    const asked: unknown[] = [];
    const dropped: unknown[] = [];
    let isPermitted = false;
    fixture.engine.attachHandoff({
      finishRequest: () => undefined,
      failRequest: () => undefined,
      tryPinPermit: (requestId, blocks) => (asked.push([requestId, blocks]), isPermitted),
      dropPinPermit: (requestId) => dropped.push(requestId),
    });
    const samplingParams = { ...greedy, do_kv_handoff: true };
    const promise = fixture.engine.addRequest({ requestId: 1, prompt, samplingParams });
    expect(fixture.engine.step()).toBe(0);
    expect(asked).toEqual([[1, 10]]);
    expect(fixture.pool.freeCount).toBe(fixture.pool.poolSize - 1);
    isPermitted = true;
    expect(fixture.engine.step()).toBe(37);
    runUntilIdle(fixture.engine);
    await promise;
    const aborted = fixture.engine.addRequest({ requestId: 2, prompt, samplingParams });
    fixture.engine.abort(2);
    fixture.engine.step();
    await expect(aborted).rejects.toThrow('aborted');
    expect(dropped).toEqual([2]);
    expectIdle(fixture);
  });

  test('that can never be pinned fails, and the next one is not held up', async () => {
    const fixture = engineFixture({ model, role: 'prefill' });
    fixture.engine.attachHandoff({
      finishRequest: () => undefined,
      failRequest: () => undefined,
      tryPinPermit: (requestId) => {
        if (requestId === 1) throw new HandoffError('CAPACITY_NEVER_FITS', 'too large');
        return true;
      },
    });
    const never = fixture.engine.addRequest({ requestId: 1, prompt, samplingParams: { do_kv_handoff: true } });
    const next = fixture.engine.addRequest({ requestId: 2, prompt, samplingParams: { do_kv_handoff: true } });
    runUntilIdle(fixture.engine);
    expect(codeOf(await never.catch((error: unknown) => error))).toBe('CAPACITY_NEVER_FITS');
    expect((await next).generatedTokens).toHaveLength(1);
  });

  test('stands beside ordinary requests of the same engine', async () => {
    const fixture = engineFixture({ model, role: 'prefill' });
    const samplingParams = { ...greedy, num_tokens_to_generate: 8 };
    const plain = fixture.engine.addRequest({ requestId: 'plain', prompt: promptOf(20), samplingParams });
    const { taken } = prefill(fixture, prompt);
    runUntilIdle(fixture.engine);
    const alone = await generate(engineFixture({ model }).engine, promptOf(20), samplingParams);
    expect(bitsOf(await plain)).toBe(bitsOf(alone));
    fixture.slots!.free(taken.slot!);
    expectIdle(fixture);
  });
});

describe('a decode engine', () => {
  const model = smallModel('attention', { numSpeculativeTokens: 2 });
  const source = engineFixture({ model, role: 'prefill' });
  const { taken } = prefill(source, prompt);

  test('takes no prompts', async () => {
    const error: unknown = await engineFixture({ role: 'decode' })
      .engine.addRequest({ requestId: 1, prompt })
      .catch((reason: unknown) => reason);
    expect(codeOf(error)).toBe('PROMPT_ON_DECODE');
  });

  test('admits as long as requests and tokens of a step allow, and never without an SDK or as prefill', () => {
    const request = {} as PrefilledRequest;
    expect(engineFixture({ model, role: 'both' }).engine.canAdmitPrefilledDecode(request)).toBe(false);
    const wrong = engineFixture({ model, role: 'prefill' });
    wrong.engine.attachHandoff({ finishRequest: () => undefined, failRequest: () => undefined });
    expect(wrong.engine.canAdmitPrefilledDecode(request)).toBe(false);
    for (const limits of [{ maxRequests: 2 }, { maxRequests: 5, maxTokensPerStep: 8 }]) {
      const target = engineFixture({ model, role: 'decode', ...limits });
      for (const attemptId of [1, 2]) {
        expect(target.engine.canAdmitPrefilledDecode(request)).toBe(true);
        target.engine.admitPrefilledDecode(carryOver(source, taken, target, attemptId));
      }
      expect(target.engine.canAdmitPrefilledDecode(request)).toBe(false);
      expect(target.engine.runningCount).toBe(2);
    }
  });

  test('runs all resume tokens first, at the positions after the prompt', () => {
    const target = engineFixture({ model, role: 'decode' });
    target.engine.admitPrefilledDecode(carryOver(source, taken, target));
    expect(target.engine.step()).toBe(3);
  });

  test('knows which requests end with the token that came', () => {
    const { engine } = engineFixture({ model, role: 'decode' });
    const [token] = taken.resumeTokens;
    const ask = (samplingParams: object, length = 37): string =>
      engine.isComplete({ prompt: new Int32Array(length), samplingParams } as unknown as PrefilledRequest, token!);
    expect(ask({ num_tokens_to_generate: 0 })).toBe('length');
    expect(ask({ num_tokens_to_generate: 0, termination_id: token! })).toBe('length');
    expect(ask({ num_tokens_to_generate: 1 })).toBe('length');
    expect(ask({ num_tokens_to_generate: 2 })).toBe('no');
    expect(ask({ num_tokens_total: 38 })).toBe('length');
    expect(ask({})).toBe('no');
    expect(ask({}, 511)).toBe('length');
    expect(ask({ termination_id: token! })).toBe('stop');
    expect(ask({ stop_words: [String.fromCharCode(token!)] })).toBe('stop');
    expect(ask({ termination_id: token! + 1, stop_words: ['xy'] })).toBe('no');
    expect(ask({ temperature: 'hot' })).toBe('no');
  });

  test('ends such a request at the next step if it was admitted all the same', () => {
    const target = engineFixture({ model, role: 'decode' });
    const carried = carryOver(source, taken, target);
    target.engine.admitPrefilledDecode({ ...carried, samplingParams: { num_tokens_to_generate: 1 } });
    expect(target.finished.size).toBe(0);
    expect(target.engine.step()).toBe(0);
    expect(target.finished.get(7)!.generatedTokens).toEqual(taken.resumeTokens.slice(0, 1));
    expectIdle(target);
  });

  test.each([
    ['parameters that mean nothing', { samplingParams: { temperature: 'hot' } }, 'ARGUMENT_INVALID'],
    ['a token outside the vocabulary', { resumeTokens: [1, 264, 3] }, 'RESUME_TOKENS_INVALID'],
    ['a token that is no integer', { resumeTokens: [1, 2.5, 3] }, 'RESUME_TOKENS_INVALID'],
    ['too few resume tokens', { resumeTokens: [1, 2] }, 'RESUME_TOKENS_INVALID'],
  ])('fails a request with %s at the next step and keeps nothing of it', (_name, lie, code) => {
    const hybrid = smallModel('hybrid', { numSpeculativeTokens: 2 });
    const from = engineFixture({ model: hybrid, role: 'prefill' });
    const target = engineFixture({ model: hybrid, role: 'decode' });
    target.engine.admitPrefilledDecode({ ...carryOver(from, prefill(from, prompt).taken, target), ...lie });
    expect(target.failed.size).toBe(0);
    expect(target.engine.step()).toBe(0);
    expect(target.failed.get(7)!.code).toBe(code);
    expectIdle(target);
  });

  test('does not read state before it has landed', () => {
    let hasLanded = false;
    const target = engineFixture({ model, role: 'decode' });
    const carried = carryOver(source, taken, target);
    const state = target.memory.kvMemory.readBlock(carried.blocks[2]!);
    target.memory.kvMemory.writeBlock(carried.blocks[2]!, new Float32Array(state.length));
    target.engine.admitPrefilledDecode({ ...carried, landed: { isComplete: () => hasLanded } });
    for (let i = 0; i < 3; i++) expect(target.engine.step()).toBe(0);
    target.memory.kvMemory.writeBlock(carried.blocks[2]!, state);
    hasLanded = true;
    runUntilIdle(target.engine);
    const direct = engineFixture({ model, role: 'decode' });
    direct.engine.admitPrefilledDecode(carryOver(source, taken, direct));
    runUntilIdle(direct.engine);
    expect(bitsOf(target.finished.get(7)!, 1)).toBe(bitsOf(direct.finished.get(7)!, 1));
  });

  test('streams the token that came, then its own', () => {
    const events: unknown[] = [];
    const target = engineFixture({ model, role: 'decode', onToken: (event) => events.push(event) });
    target.engine.admitPrefilledDecode(carryOver(source, taken, target));
    expect(events).toEqual([{ requestId: 'handoff', token: taken.resumeTokens[0], index: 0, logProb: null }]);
    runUntilIdle(target.engine);
    const { generatedTokens, cachedTokens } = target.finished.get(7)!;
    expect(events.map((event) => (event as { token: number }).token)).toEqual(generatedTokens);
    expect(events.map((event) => (event as { index: number }).index)).toEqual([...generatedTokens.keys()]);
    expect(cachedTokens).toBe(prompt.length);
  });

  test.each([
    [37, { num_tokens_to_generate: 20 }, 4],
    [37, { num_tokens_to_generate: 3 }, 0],
    [37, { num_tokens_to_generate: 5 }, 1],
    [40, { num_tokens_total: 60 }, 4],
    [40, {}, 117],
    [37, { num_tokens_to_generate: 1000 }, 118],
    [37, { num_tokens_to_generate: 'many' }, 0],
  ])('after %i tokens and with %j: says how many blocks an import may still need', (length, params, blocks) => {
    const { engine } = engineFixture({ model, role: 'decode' });
    expect(engine.growthBlocks(length, params as SamplingParams)).toBe(blocks);
  });

  test('does not lend the blocks of a request that came with more than it needs', () => {
    const target = engineFixture({ model, role: 'decode' });
    const samplingParams = { ...greedy, num_tokens_to_generate: 20 };
    target.engine.admitPrefilledDecode({ ...carryOver(source, taken, target), samplingParams });
    const reserve = target.engine.growthReserve();
    const longer = engineFixture({ model, role: 'prefill' });
    const short = carryOver(longer, prefill(longer, promptOf(38)).taken, target, 8);
    target.engine.admitPrefilledDecode({ ...short, samplingParams: { ...greedy, num_tokens_to_generate: 2 } });
    expect(short.blocks.length + short.continuationBlocks.length).toBe(11);
    expect(target.engine.growthReserve()).toBe(reserve);
  });

  test('counts in its reserve what running requests may still need, and no more', () => {
    const target = engineFixture({ model, role: 'decode' });
    const carried = carryOver(source, taken, target);
    const samplingParams = { ...greedy, num_tokens_to_generate: 20 };
    const growth = target.engine.growthBlocks(prompt.length, samplingParams);
    target.engine.admitPrefilledDecode({ ...carried, samplingParams });
    expect(growth).toBeGreaterThan(0);
    expect(target.engine.growthReserve()).toBe(growth);
    const free = target.pool.freeCount;
    let least = free;
    while (target.engine.hasWork) {
      target.engine.step();
      if (target.engine.runningCount > 0)
        least = Math.min(least, target.pool.freeCount - target.engine.growthReserve());
    }
    expect(least).toBe(free - growth);
  });
});

describe('scheduling', () => {
  test('more prompts than fit run in turn, first come first, and all end', async () => {
    const order: unknown[] = [];
    for (const model of [smallModel('attention', { numSpeculativeTokens: 2 }), smallModel('hybrid')]) {
      const fixture = engineFixture({
        model,
        poolSize: 24,
        maxRequests: 4,
        prefillChunk: 9,
        maxSequenceLength: 88,
        onToken: ({ requestId, index }) => index === 0 && order.push(requestId),
      });
      const lengths = [30, 5, 61, 12, 33, 8, 40, 3];
      const results = lengths.map((length, index) =>
        fixture.engine.addRequest({
          requestId: index,
          prompt: promptOf(length, index),
          samplingParams: { ...greedy, num_tokens_to_generate: 88 - length < 25 ? 88 - length : 25 },
        }),
      );
      runUntilIdle(fixture.engine);
      for (const [index, result] of (await Promise.all(results)).entries()) {
        const alone = engineFixture({ model, maxSequenceLength: 88 });
        const samplingParams = { num_tokens_to_generate: result.generatedTokens.length };
        expect(bitsOf(result)).toBe(
          bitsOf(await generate(alone.engine, promptOf(lengths[index]!, index), samplingParams)),
        );
      }
      expect(order.splice(0)).toEqual([...lengths.keys()]);
      expectIdle(fixture);
    }
  });

  test('a prompt does not take what running requests will need', async () => {
    // Eleven usable blocks: the first holds 2 and grows to 6, the second needs 6 for its prompt.
    const fixture = engineFixture({ poolSize: 12, maxSequenceLength: 40 });
    const first = fixture.engine.addRequest({
      requestId: 1,
      prompt: promptOf(8),
      samplingParams: { ...greedy, num_tokens_to_generate: 17 },
    });
    const second = fixture.engine.addRequest({
      requestId: 2,
      prompt: promptOf(24, 5),
      samplingParams: { ...greedy, num_tokens_to_generate: 1 },
    });
    fixture.engine.step();
    expect(fixture.engine.waitingCount).toBe(1);
    runUntilIdle(fixture.engine);
    await Promise.all([first, second]);
    expectIdle(fixture);
  });

  test('decodes every step while a long prompt comes in chunks', async () => {
    const { engine } = engineFixture({ prefillChunk: 4, maxRequests: 2 });
    const short = engine.addRequest({
      requestId: 1,
      prompt: promptOf(4),
      samplingParams: { ...greedy, num_tokens_to_generate: 6 },
    });
    engine.step();
    const long = engine.addRequest({ requestId: 2, prompt, samplingParams: { ...greedy, num_tokens_to_generate: 1 } });
    for (let i = 0; i < 5; i++) expect(engine.step()).toBe(5);
    await short;
    runUntilIdle(engine);
    await long;
  });

  test('a cached prefix that would be pinned does not count as room', async () => {
    const fixture = engineFixture({ poolSize: 9 });
    await generate(fixture.engine, promptOf(16), { num_tokens_to_generate: 1 });
    const hoard = fixture.pool.allocate(2)!;
    expect([fixture.pool.freeCount, fixture.pool.evictableCount]).toEqual([2, 4]);
    const promise = fixture.engine.addRequest({
      requestId: 1,
      prompt: promptOf(28),
      samplingParams: { ...greedy, num_tokens_to_generate: 1 },
    });
    expect(fixture.engine.step()).toBe(0);
    fixture.pool.release(hoard);
    runUntilIdle(fixture.engine);
    expect((await promise).cachedTokens).toBe(16);
  });

  test('proposals never need more blocks than the tokens that may be generated', async () => {
    const model = smallModel('attention', { numSpeculativeTokens: 3 });
    for (const wanted of [8, 9, 10, 11, 12]) {
      const fixture = engineFixture({ model, poolSize: 1 + Math.ceil((8 + wanted - 1) / 4) });
      const result = await generate(fixture.engine, promptOf(8), { num_tokens_to_generate: wanted });
      expect(result.generatedTokens).toHaveLength(wanted);
    }
  });

  test('each step proposes what a prefill that ended there would propose', async () => {
    for (const seed of [1, 2, 3, 4]) {
      const model = smallModel('attention', { numSpeculativeTokens: 2, seed });
      const result = await generate(engineFixture({ model }).engine, prompt, { num_tokens_to_generate: 50 });
      const output = result.generatedTokens;
      let [accepted, proposed] = [0, 0];
      for (let at = 0; at < output.length - 1;) {
        const { taken } = prefill(engineFixture({ model, role: 'prefill' }), [...prompt, ...output.slice(0, at)]);
        expect(taken.resumeTokens[0]).toBe(output[at]);
        const proposals = taken.resumeTokens.slice(1, output.length - at - 1);
        let right = 0;
        while (right < proposals.length && proposals[right] === output[at + 1 + right]) right += 1;
        proposed += proposals.length;
        accepted += right;
        at += right + 1;
      }
      expect([extraOf(result).accepted, extraOf(result).proposed]).toEqual([accepted, proposed]);
    }
  });

  test('a request whose growth is not to be had sits out until it is', async () => {
    const fixture = engineFixture({ poolSize: 12 });
    const promise = fixture.engine.addRequest({
      requestId: 1,
      prompt: promptOf(8),
      samplingParams: { ...greedy, num_tokens_to_generate: 9 },
    });
    fixture.engine.step();
    const hoard = fixture.pool.allocate(fixture.pool.freeCount)!;
    expect(fixture.engine.step()).toBe(0);
    expect(fixture.engine.hasWork).toBe(true);
    fixture.pool.release(hoard);
    runUntilIdle(fixture.engine);
    const alone = await generate(engineFixture().engine, promptOf(8), { num_tokens_to_generate: 9 });
    expect(bitsOf(await promise)).toBe(bitsOf(alone));
  });

  test('waits for a state slot', async () => {
    const fixture = engineFixture({ model: smallModel('hybrid') });
    const held = Array.from({ length: 4 }, () => fixture.slots!.allocate());
    const promise = fixture.engine.addRequest({ requestId: 1, prompt, samplingParams: { num_tokens_to_generate: 2 } });
    expect(fixture.engine.step()).toBe(0);
    for (const slot of held) fixture.slots!.free(slot);
    runUntilIdle(fixture.engine);
    await promise;
    expectIdle(fixture);
  });

  test('an allocator that refuses what it promised is an invariant broken', () => {
    const fixture = engineFixture();
    void fixture.engine.addRequest({ requestId: 1, prompt });
    jest.spyOn(fixture.pool, 'allocate').mockReturnValue(null);
    expect(() => fixture.engine.step()).toThrow('refused what it had just said was available');
  });

  test('moves the allocator’s clock, but not under the SDK', () => {
    const alone = engineFixture();
    const clock = jest.spyOn(alone.pool, 'setClock');
    alone.engine.step();
    expect(clock.mock.calls).toEqual([[1]]);
    alone.engine.attachHandoff({ finishRequest: () => undefined, failRequest: () => undefined });
    alone.engine.step();
    expect(clock).toHaveBeenCalledTimes(1);
  });
});

describe('the prefix cache', () => {
  test('is shared by prompts with a common start, in whole blocks', async () => {
    const { engine } = engineFixture();
    await generate(engine, encode('the quick brown fox jumps over'));
    const result = await generate(engine, encode('the quick brown cat sits'));
    expect(result.cachedTokens).toBe(16);
  });

  test('is found while the first prompt still runs', async () => {
    const { engine } = engineFixture({ prefillChunk: 16 });
    const samplingParams = { ...greedy, num_tokens_to_generate: 30 };
    const first = engine.addRequest({ requestId: 1, prompt, samplingParams });
    engine.step();
    const second = engine.addRequest({ requestId: 2, prompt, samplingParams });
    runUntilIdle(engine);
    expect((await second).cachedTokens).toBeGreaterThanOrEqual(16);
    expect(bitsOf(await second)).toBe(bitsOf(await first));
  });

  test.each(['attention', 'hybrid'] as const)(
    'keeps one copy of what two %s prompts computed at the same time',
    async (kind) => {
      const fixture = engineFixture({ model: smallModel(kind), prefillChunk: 8, maxTokensPerStep: 8 });
      const samplingParams = { ...greedy, num_tokens_to_generate: 4 };
      const start = promptOf(28);
      const prompts = [start, [...start, ...promptOf(12, 8)], [...start, ...promptOf(12, 9)]];
      const results = prompts.map((tokens, requestId) =>
        fixture.engine.addRequest({ requestId, prompt: tokens, samplingParams }),
      );
      const other = engineFixture({ model: smallModel(kind) });
      runUntilIdle(fixture.engine);
      for (const [index, result] of results.entries()) {
        expect(bitsOf(await result)).toBe(bitsOf(await generate(other.engine, prompts[index]!, samplingParams)));
      }
      // 7 blocks of the start, then 3 of each longer prompt.
      expect(fixture.pool.evictableCount).toBe(13);
      expectIdle(fixture);
    },
  );

  test('names blocks only when all their tokens are computed', async () => {
    const fixture = engineFixture({ prefillChunk: 6 });
    const hashes = modelBlockHashes(prompt, 4);
    const promise = fixture.engine.addRequest({ requestId: 1, prompt, samplingParams: { num_tokens_to_generate: 1 } });
    for (const named of [1, 3, 4, 6]) {
      fixture.engine.step();
      expect([...hashes].filter((hash) => fixture.pool.lookup(hash) >= 0)).toHaveLength(named);
    }
    runUntilIdle(fixture.engine);
    await promise;
  });

  test('chains each block to the one before it', async () => {
    const fixture = engineFixture({ prefillChunk: 6 });
    const { taken } = prefill(fixture, prompt);
    const { parents } = fixture.pool.state();
    for (let i = 0; i < 9; i++) expect(parents[taken.blocks[i]!]).toBe(i === 0 ? -1 : taken.blocks[i - 1]);
  });

  test('is kept apart by salt', async () => {
    const { engine } = engineFixture();
    await generate(engine, prompt, { cache_salt: 'a' });
    expect((await generate(engine, prompt, { cache_salt: 'b' })).cachedTokens).toBe(0);
    expect((await generate(engine, prompt)).cachedTokens).toBe(0);
    expect((await generate(engine, prompt, { cache_salt: 'a' })).cachedTokens).toBe(36);
  });

  test('is off with an allocator that has none', async () => {
    const { engine } = engineFixture({ policy: null });
    const cold = await generate(engine, prompt);
    const again = await generate(engine, prompt);
    expect(again.cachedTokens).toBe(0);
    expect(bitsOf(again)).toBe(bitsOf(cold));
  });

  test('names a hybrid prompt’s blocks too, for whoever can use them', async () => {
    const fixture = engineFixture({ model: smallModel('hybrid') });
    await generate(fixture.engine, prompt);
    expect(fixture.pool.evictableCount).toBe(9);
  });
});
