/**
 * The addon of the llama.cpp example alone: state leaves a cache for blocks and comes back in as many pieces as one likes,
 * and what makes no sense is refused before llama.cpp, which asserts, sees it.
 */
import { greedy } from '../../examples/llama/lanes.js';
import { openCache, type CacheType, type LlamaCache, type LlamaModel } from '../../examples/llama/llama.js';
import { StateMemory } from '../../examples/llama/state-memory.js';
import { blockTokens, loadedModel, promptOf } from '../support/llama-pair.js';

const chunk = 64;
const opened: LlamaCache[] = [];
afterEach(() => {
  for (const cache of opened.splice(0)) cache.close();
});

function cacheOf(llama: LlamaModel, dtype: CacheType = 'float16', sequences = 1): LlamaCache {
  const cache = openCache(llama, { cells: 512, sequences, batch: chunk, dtype });
  opened.push(cache);
  return cache;
}

async function evaluate(cache: LlamaCache, tokens: Int32Array, from = 0): Promise<Float32Array> {
  let logits = new Float32Array(0);
  for (let at = 0; at < tokens.length; at += chunk) {
    const part = tokens.slice(at, at + chunk);
    const outputs = new Uint8Array(part.length);
    outputs[part.length - 1] = 1;
    const positions = part.map((_, index) => from + at + index);
    logits = await cache.evaluate(part, positions, new Int32Array(part.length), outputs);
  }
  return logits;
}

/** Some tokens behind what the cache holds, and the logits of each. */
async function continuation(cache: LlamaCache, first: number): Promise<Buffer[]> {
  const rows: Buffer[] = [];
  for (let token = first, position = cache.lastPosition(0) + 1; rows.length < 4; position += 1) {
    const logits = await evaluate(cache, Int32Array.of(token), position);
    rows.push(Buffer.from(logits.buffer.slice(0)));
    token = greedy(logits);
  }
  return rows;
}

async function saved(llama: LlamaModel, length: number) {
  const prompt = promptOf(llama, length);
  const cache = cacheOf(llama);
  const first = greedy(await evaluate(cache, prompt));
  const count = Math.ceil(length / blockTokens);
  const memory = new StateMemory(llama, 'float16', blockTokens, 2 * count + 1);
  // Every second block, from the end to the beginning.
  const blocks = Int32Array.from({ length: count }, (_, index) => 2 * (count - 1 - index));
  memory.save(cache, 0, 0, length, blocks);
  return { cache, first, memory, blocks, expected: await continuation(cache, first) };
}

test.each([
  ['one piece', [0, 205]],
  ['seven pieces', [0, 16, 48, 64, 96, 160, 192, 205]],
])('state that is loaded in %s continues with the same bits', async (_, ends) => {
  const llama = await loadedModel();
  const { first, memory, blocks, expected } = await saved(llama, 205);
  const other = cacheOf(llama);
  for (const [index, to] of ends.slice(1).entries()) {
    const from = ends[index]!;
    memory.load(other, 0, from, to, blocks.slice(from / blockTokens, Math.ceil(to / blockTokens)));
  }
  expect(await continuation(other, first)).toEqual(expected);
});

test('a part of a sequence is kept, and only the rest is loaded behind it', async () => {
  const llama = await loadedModel();
  const { cache, first, memory, blocks, expected } = await saved(llama, 100);
  cache.truncate(0, 64);
  expect(cache.lastPosition(0)).toBe(63);
  memory.load(cache, 0, 64, 100, blocks.slice(4));
  expect(await continuation(cache, first)).toEqual(expected);
});

test('a suffix is saved alone, and touches no other block', async () => {
  const llama = await loadedModel();
  const { first, memory, blocks, expected } = await saved(llama, 60);
  const prompt = promptOf(llama, 60);
  const cache = cacheOf(llama);
  await evaluate(cache, prompt);
  const region = new Uint8Array(memory.regions[0].buffer!);
  const before = Buffer.from(region);
  region.fill(0, blocks[3]! * memory.blockBytes, (blocks[3]! + 1) * memory.blockBytes);
  memory.save(cache, 0, 48, 60, blocks.slice(3));
  // The unused rows of a partial block may stay as they are; they were zero from the start.
  expect(before.equals(region)).toBe(true);
  const other = cacheOf(llama);
  memory.load(other, 0, 0, 60, blocks);
  expect(await continuation(other, first)).toEqual(expected);
});

test('cells that lie in another order than their tokens reach the blocks in the order of the tokens', async () => {
  const llama = await loadedModel();
  const prompt = promptOf(llama, 96);
  const plain = cacheOf(llama);
  await evaluate(plain, prompt);
  const cache = cacheOf(llama, 'float16', 2);
  const part = (sequence: number, from: number, to: number) =>
    cache.evaluate(
      prompt.slice(from, to),
      Int32Array.from({ length: to - from }, (_, index) => from + index),
      new Int32Array(to - from).fill(sequence),
      new Uint8Array(to - from),
    );
  // Sequence 0 leaves a gap before the cells of sequence 1, whose last tokens go there.
  await part(0, 0, 64);
  await part(1, 0, 64);
  cache.truncate(0, 32);
  await part(1, 64, 96);
  const rowsOf = (from: LlamaCache, sequence: number): Buffer => {
    const memory = new StateMemory(llama, 'float16', blockTokens, 7);
    memory.save(from, sequence, 0, 96, Int32Array.of(0, 1, 2, 3, 4, 5));
    const region = Buffer.from(memory.regions[0].buffer!);
    // Rows of the first layer follow from token and position alone, whatever the cache looks like.
    const layer = memory.form.layerStride;
    return Buffer.concat(
      [0, 1, 2, 3, 4, 5].map((block) => region.subarray(block * memory.blockBytes).subarray(0, layer)),
    );
  };
  expect(rowsOf(cache, 1).equals(rowsOf(plain, 0))).toBe(true);
});

test('what makes no sense is refused, by name, and leaves the sequence as it was', async () => {
  const llama = await loadedModel();
  const { memory, blocks } = await saved(llama, 40);
  const cache = cacheOf(llama);
  const load = (from: number, to: number, ids: Int32Array, sequence = 0) => memory.load(cache, sequence, from, to, ids);
  expect(() => load(16, 40, blocks.slice(1))).toThrow("run.from: expected 0, the sequence's end, got 16");
  expect(() => load(0, 40, blocks.slice(1))).toThrow('run.blocks: expected 3 blocks, got 2');
  expect(() => load(0, 40, Int32Array.of(0, 1, 7))).toThrow('run.blocks: expected ids below 7, got 7');
  expect(() => load(0, 40, Int32Array.of(0, -1, 2))).toThrow('run.blocks: expected ids below 7, got -1');
  expect(() => load(0, 40, blocks, 1)).toThrow('sequence: expected one of 1, got 1');
  expect(() => memory.save(cache, 0, 0, 40, blocks)).toThrow('run: expected tokens that the sequence has');
  expect(() => load(8.5, 40, blocks)).toThrow('from: expected an integer');
  const one = (token: number, position = 0, sequence = 0) =>
    cache.evaluate(Int32Array.of(token), Int32Array.of(position), Int32Array.of(sequence), Uint8Array.of(1));
  await expect(one(-1)).rejects.toThrow('batch.tokens: expected tokens of the vocabulary, got -1');
  await expect(one(1, 0, 3)).rejects.toThrow('sequence: expected one of 1, got 3');
  await expect(
    cache.evaluate(new Int32Array(65), new Int32Array(65), new Int32Array(65), new Uint8Array(65)),
  ).rejects.toThrow('batch: expected 1 to 64 tokens');
  expect(cache.lastPosition(0)).toBe(-1);
  expect(() => llama.piece(-1)).toThrow('token: expected an integer');
});

test('while a cache evaluates, nothing else of it may be called', async () => {
  const llama = await loadedModel();
  const cache = cacheOf(llama);
  const result = evaluate(cache, promptOf(llama, 20));
  expect(() => cache.lastPosition(0)).toThrow('the cache evaluates; wait for its end');
  expect(() => cache.close()).toThrow('the cache evaluates; wait for its end');
  await result;
  expect(cache.lastPosition(0)).toBe(19);
});

test('a closed cache says so', async () => {
  const cache = cacheOf(await loadedModel());
  cache.close();
  cache.close();
  expect(() => cache.lastPosition(0)).toThrow('the cache was closed');
});

test('state of another element type does not pass for one', async () => {
  const llama = await loadedModel();
  const cache = cacheOf(llama, 'float32');
  await evaluate(cache, promptOf(llama, 16));
  const memory = new StateMemory(llama, 'float16', blockTokens, 3);
  expect(() => memory.save(cache, 0, 0, 16, Int32Array.of(1))).toThrow(/^shape: expected strides that reach over/);
});
