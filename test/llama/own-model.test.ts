/** A model of one's own (`--model FILE`): what its file may say about the size of its state, and how it is refused. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadModel, openCache, type LlamaCache, type LlamaModel } from '../../examples/llama/llama.js';
import { StateMemory } from '../../examples/llama/state-memory.js';
import { assetsOf, blockTokens } from '../support/llama-pair.js';
import { tinyVocabulary, writeTinyModel, type TinyModel } from '../support/tiny-gguf.js';

const folder = mkdtempSync(join(tmpdir(), 'state-handoff-model-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function modelOf(tiny: TinyModel): Promise<LlamaModel> {
  const { libraryFolder } = await assetsOf();
  const file = join(folder, 'tiny.gguf');
  writeTinyModel(file, tiny);
  return loadModel(libraryFolder, file);
}

const tokens = Int32Array.from({ length: 40 }, (_, index) => (index * 7) % tinyVocabulary);

function evaluate(cache: LlamaCache, part: Int32Array, from: number): Promise<Float32Array> {
  const outputs = new Uint8Array(part.length);
  outputs[part.length - 1] = 1;
  return cache.evaluate(
    part,
    part.map((_, index) => from + index),
    new Int32Array(part.length),
    outputs,
  );
}

test.each([16, 32, 8])('heads that are %i wide, of a model that is 64 wide with 4 of them', async (headDim) => {
  const llama = await modelOf({ headDim, kvHeads: [2, 2] });
  expect(llama.facts).toMatchObject({ layers: 2, heads: 2, headDim, vocabulary: tinyVocabulary });
  const caches = [0, 1].map(() => openCache(llama, { cells: 256, sequences: 1, batch: 64, dtype: 'float16' })) as [
    LlamaCache,
    LlamaCache,
  ];
  const [one, other] = caches;
  await evaluate(one, tokens, 0);
  const memory = new StateMemory(llama, 'float16', blockTokens, 4);
  const blocks = Int32Array.of(2, 0, 1);
  memory.save(one, 0, 0, tokens.length, blocks);
  memory.load(other, 0, 0, tokens.length, blocks);
  const next = Int32Array.of(5);
  expect(await evaluate(other, next, tokens.length)).toEqual(await evaluate(one, next, tokens.length));
  for (const cache of caches) cache.close();
});

test('layers that are not alike are refused before anything is computed', async () => {
  await expect(modelOf({ headDim: 16, kvHeads: [2, 1] })).rejects.toThrow(
    'model: expected keys and values of one size in every layer; state.row_bytes: expected 64, got 32',
  );
});
