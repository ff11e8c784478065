/**
 * Goal: an argument of the wrong kind, as plain JavaScript or a client's JSON brings it, is refused by name; whoever else
 * uses the engine notices nothing. Method: one wrong argument a test, then a look at memory, events and other requests.
 */
import type { FinishedPrefill } from '../../lib/prefill/finished-prefill.js';
import type { HandoffError } from '../../lib/errors.js';
import {
  add,
  codeThrown,
  compute,
  finishedOf,
  handOff,
  heard,
  hybridShape,
  pair,
  promptOf,
  settle,
  single,
  step,
  unheldBlocks,
  until,
  world,
} from '../support/misuse-world.js';

describe('a cache salt that is none', () => {
  test.each([5, true, {}, 1n, ['a'], '\ud800', 'a\udc00'])(
    '%p: the request is refused, its source is told, and those behind it are served',
    async (cacheSalt) => {
      const { prefill, decode } = await pair(world());
      const refused = add(decode, handOff(prefill, 'bad'), {}, 'bad', { cacheSalt: cacheSalt as string });
      const innocent = add(decode, handOff(prefill, 'good', promptOf(10, 1)));
      await until(innocent, decode);
      expect(innocent).toMatchObject({ settled: 1, error: null });
      expect(refused.settled).toBe(1);
      expect(refused.error).toMatchObject({
        code: 'ARGUMENT_INVALID',
        message: expect.stringMatching(/^options\.cacheSalt: expected /),
      });
      expect(heard(decode, 'requestError', 'requestAborted')).toMatchObject([
        { name: 'requestError', notice: { requestId: 'bad', sourceSafe: true } },
      ]);
      expect(heard(decode, 'kvReadDone').map(({ notice }) => notice['requestId'])).toEqual(['bad', 'good']);
      expect(decode.sdk.pendingKvImportCount).toBe(0);
      expect(decode.sdk.metrics().counters).toMatchObject({ imports_refused_total: 1, imports_completed_total: 1 });
    },
  );
});

describe('a signal', () => {
  test('of an ended request does not abort the one that took its label at once', async () => {
    const { prefill, decode } = await pair(world());
    const first = new AbortController();
    const ended = add(decode, handOff(prefill, 'r'), { num_tokens_to_generate: 3 }, 'r', { signal: first.signal });
    decode.sdk.resetPendingKvImports().catch(() => undefined);
    step(decode);
    prefill.sdk.releaseHandoffBlocks('r');
    // Whatever state the first was in, it is asked to end; where it has, nobody has seen its promise settle yet.
    decode.sdk.abortKvHandoff('r');
    while (decode.sdk.inspect().imports.length > 0) {
      decode.transport.network.advance(1);
      decode.sdk.pollPendingKvImports();
    }
    const second = add(decode, handOff(prefill, 'r', promptOf(10, 1)));
    first.abort();
    await until(second, decode);
    expect(ended.error).toMatchObject({ code: 'ABORTED' });
    expect(second).toMatchObject({ settled: 1, error: null });
  });

  test('that cannot take its listener back is refused before anything starts', async () => {
    const { prefill, decode } = await pair(world());
    const signal = { aborted: false, addEventListener: () => undefined } as unknown as AbortSignal;
    const refused = add(decode, handOff(prefill), {}, 'r', { signal });
    await settle();
    expect(refused.error).toMatchObject({
      code: 'ARGUMENT_INVALID',
      message: expect.stringMatching(/^options\.signal: expected an AbortSignal/),
    });
    expect(decode.sdk.pendingKvImportCount).toBe(0);
  });

  test('whose listeners cannot be added refuses the request and leaves nothing behind', async () => {
    const { prefill, decode } = await pair(world());
    const signal = {
      aborted: false,
      addEventListener: () => {
        throw new Error('no more listeners');
      },
      removeEventListener: () => undefined,
    } as unknown as AbortSignal;
    const refused = add(decode, handOff(prefill), {}, 'r', { signal });
    await settle();
    expect(refused.settled).toBe(1);
    expect(decode.sdk.pendingKvImportCount).toBe(0);
    expect(heard(decode, 'kvReadDone')).toHaveLength(1);
  });
});

describe('what the caller keeps and changes after the call', () => {
  test('is not what the request is decoded with', async () => {
    const { prefill, decode } = await pair(world());
    const handed = handOff(prefill);
    const params = { num_tokens_to_generate: 3 };
    const resume = handed.ticket.kvMeta['resume_tokens'] as number[];
    const [token] = resume;
    const outcome = add(decode, handed, params);
    params.num_tokens_to_generate = 1;
    resume[0] = token! + 1;
    await until(outcome, decode);
    expect(outcome.finished?.generatedTokens).toHaveLength(3);
    expect(outcome.finished?.generatedTokens[0]).toBe(token);
  });
});

describe('captureHandoffMeta', () => {
  test.each([
    ['no request', null, undefined, {}, 'request'],
    ['no batch', 'r', undefined, {}, 'prepared'],
    ['a batch of its own making', 'r', {}, {}, 'prepared'],
    ['a fence that is none', 'r', null, { ready: {} }, 'options.ready'],
  ])('with %s names it, pins nothing and calls no engine broken', async (_what, request, batch, options, path) => {
    const prefill = await single({ role: 'prefill', network: world() });
    const before = unheldBlocks(prefill);
    const run = compute(prefill, 'r', promptOf(10));
    const prepared = prefill.sdk.prepareHandoffMetadataBatch([finishedOf(run)]);
    let thrown: HandoffError | null = null;
    try {
      prefill.sdk.captureHandoffMeta(request as string, (batch === null ? prepared : batch) as never, options as never);
    } catch (error) {
      thrown = error as HandoffError;
    }
    expect(thrown).toMatchObject({ code: 'ARGUMENT_INVALID', message: expect.stringContaining(`${path}: expected `) });
    expect(heard(prefill, 'engineFailed', 'pinned')).toEqual([]);
    prefill.engine.endPrefill(run, false);
    expect(unheldBlocks(prefill)).toBe(before);
  });
});

describe('a finished batch with memory that is not the engine’s', () => {
  test('gives back all that is, and says what was wrong with the batch', async () => {
    const prefill = await single({ role: 'prefill', network: world(), engine: { shape: hybridShape } });
    const before = unheldBlocks(prefill);
    const freeSlots = prefill.engine.slots!.freeCount;
    const [first, last] = [compute(prefill, 'a', promptOf(10)), compute(prefill, 'c', promptOf(10, 2))];
    const wrong: FinishedPrefill = { ...finishedOf(first), requestId: 'b', blocks: Int32Array.of(9999), slot: 77 };
    expect(
      codeThrown(() => prefill.sdk.prepareHandoffMetadataBatch([finishedOf(first), wrong, finishedOf(last)])),
    ).toBe('BLOCK_COUNT_MISMATCH');
    expect(unheldBlocks(prefill)).toBe(before);
    expect(prefill.engine.slots!.freeCount).toBe(freeSlots);
  });
});

describe('failRequest', () => {
  test.each([undefined, null, 'text', { message: 'an object' }, 5])('with %p ends the request', async (error) => {
    const { prefill, decode } = await pair(world());
    const outcome = add(decode, handOff(prefill), { num_tokens_to_generate: 50 });
    while (decode.engine.batch.running.size === 0) {
      step(decode);
      decode.transport.network.advance(1);
    }
    const [attemptId] = [...decode.engine.batch.running.keys()];
    decode.sdk.failRequest(attemptId!, error as unknown as Error);
    await settle();
    const said = typeof error === 'object' && error !== null ? error.message : String(error);
    expect(outcome.error).toMatchObject({ code: 'ENGINE_FAILED', message: said });
  });
});

test('a targetQuiescent that throws is the engine’s failure, and costs the request it was asked about alone', async () => {
  const { prefill, decode } = await pair(world());
  const before = unheldBlocks(decode);
  const ask = decode.engine.targetQuiescent.bind(decode.engine);
  decode.engine.targetQuiescent = () => {
    decode.engine.targetQuiescent = ask;
    throw new Error('no such stream');
  };
  const asked = add(decode, handOff(prefill, 'asked'));
  const next = add(decode, handOff(prefill, 'next', promptOf(10, 1)));
  await until(next, decode);
  expect(next).toMatchObject({ settled: 1, error: null });
  expect(asked.error).toMatchObject({
    code: 'ENGINE_CALL_FAILED',
    message: expect.stringContaining('no such stream'),
  });
  expect(heard(decode, 'engineFailed')).toHaveLength(1);
  expect(unheldBlocks(decode)).toBe(before);
});
