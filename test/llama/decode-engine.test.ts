/**
 * Both engines of the llama.cpp example in one process, with a model of a few kilobytes: what becomes of a request that ends
 * between its admission and its first token, and of the blocks and the lane that it had.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { LlamaEngines } from '../support/llama-engines.js';
import { assetsOf, settingOf } from '../support/llama-pair.js';
import { tinyVocabulary, writeTinyModel } from '../support/tiny-gguf.js';

const folder = mkdtempSync(join(tmpdir(), 'state-handoff-decode-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const usable = 8;
const limit = 12;
/** Three blocks; two of another `step` share none. */
const promptOf = (step: number): Int32Array =>
  Int32Array.from({ length: 40 }, (_, index) => (index * step + 3) % tinyVocabulary);

async function pairOfEngines() {
  const file = join(folder, 'tiny.gguf');
  writeTinyModel(file, { headDim: 16, kvHeads: [2, 2] });
  const setting = await settingOf({ ...(await assetsOf(file)), blocks: usable + 1, lanes: 1 });
  const engines = await LlamaEngines.open(setting, setting, 1);
  const { decode, target } = engines;
  /** Resolves when the request is admitted; what becomes of it is in `result`. */
  const handOver = async (id: string, prompt: Int32Array): Promise<{ result: Promise<readonly number[] | string> }> => {
    const added = await engines.handOver(id, prompt, limit);
    const result = added.result.then(
      ({ generatedTokens }) => generatedTokens,
      (error: unknown) => (error as Error).message,
    );
    // Until what is to be admitted has landed.
    while (!target.hasAdmittableKvImport) {
      target.pollPendingKvImports();
      await new Promise(setImmediate);
    }
    target.scheduleWaitingRequests(0);
    expect(decode.hasWork).toBe(true);
    return { result };
  };
  const untilIdle = async (): Promise<void> => {
    while (decode.hasWork) await decode.step();
  };
  const isAllBack = (): boolean =>
    decode.blocks.freeCount + decode.blocks.evictableCount === usable && decode.canAdmitPrefilledDecode();
  return { decode, target, handOver, untilIdle, isAllBack };
}

test.each([
  ['before its state is in the lane', 0],
  ['when a part of its state is in the lane', 1],
  ['when its state is in the lane and tokens were drawn', 4],
])('an abort %s gives blocks and lane back, and the next one is answered', async (_, steps) => {
  const { decode, target, handOver, untilIdle, isAllBack } = await pairOfEngines();
  const expected = await handOver('first', promptOf(5));
  await untilIdle();
  expect((await expected.result).length).toBe(limit);
  const gone = await handOver('gone', promptOf(7));
  for (let step = 0; step < steps; step += 1) await decode.step();
  target.abortKvHandoff('gone');
  await untilIdle();
  expect(await gone.result).toMatch(/abort/);
  expect(isAllBack()).toBe(true);
  const next = await handOver('next', promptOf(5));
  await untilIdle();
  expect(await next.result).toEqual(await expected.result);
  expect(isAllBack()).toBe(true);
});

test('state that does not go into the lane fails its request alone, and gives blocks and lane back', async () => {
  const { decode, handOver, untilIdle, isAllBack } = await pairOfEngines();
  const load = jest.spyOn(decode.memory, 'load').mockImplementation(() => {
    throw new Error('llama.cpp does not take the state');
  });
  const failing = await handOver('failing', promptOf(5));
  await untilIdle();
  expect(await failing.result).toMatch(/llama\.cpp does not take the state/);
  expect(isAllBack()).toBe(true);
  load.mockRestore();
  const next = await handOver('next', promptOf(5));
  await untilIdle();
  expect((await next.result).length).toBe(limit);
  expect(isAllBack()).toBe(true);
});
