/** State of another model or of another element type is refused before a byte of it moves: by the router, and by decode itself. */
import { copyFileSync, mkdtempSync, openSync, readSync, rmSync, statSync, writeSync, closeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isHandoffError } from 'state-handoff';
import type { EngineSetting } from '../../examples/llama/messages.js';
import { LlamaEngines } from '../support/llama-engines.js';
import { assetsOf, loadedModel, openPair, promptOf, settingOf } from '../support/llama-pair.js';

const folder = mkdtempSync(join(tmpdir(), 'state-handoff-llama-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** The same model but for one bit of its last weights. */
function alteredModel(file: string): string {
  const altered = join(folder, 'altered.gguf');
  copyFileSync(file, altered);
  const handle = openSync(altered, 'r+');
  const byte = Buffer.alloc(1);
  const at = statSync(altered).size - 64;
  readSync(handle, byte, 0, 1, at);
  byte[0] = byte[0]! ^ 1;
  writeSync(handle, byte, 0, 1, at);
  closeSync(handle);
  return altered;
}

test.each<[string, () => Promise<Partial<EngineSetting>>, RegExp]>([
  [
    'another model',
    async () => assetsOf(alteredModel((await assetsOf()).modelFile)),
    /cannot work together: model is sha256:b179c9\w+ and sha256:\w+, and state of one model/,
  ],
  ['another type of the same size', async () => ({ dtype: 'bfloat16' }), /dtype is float16 and bfloat16, and bytes of/],
  [
    'a type of another size',
    async () => ({ dtype: 'float32' }),
    /dtype is float16 and float32.*kv\.elementBytes is 2 and 4/,
  ],
])('the router does not pair two engines with %s', async (_, changes, message) => {
  await expect(openPair({ decode: await changes() })).rejects.toThrow(message);
});

test.each([
  ['model', { model: 'sha256:00' }],
  ['dtype', { dtype: 'bfloat16' }],
] as const)('decode refuses a ticket of another %s by itself, and nothing moves', async (field, changes) => {
  const llama = await loadedModel();
  const engines = await LlamaEngines.open(
    await settingOf({ blocks: 9 }),
    await settingOf({ blocks: 9, ...changes }),
    4,
  );
  const { decode, source, target } = engines;
  const { result } = await engines.handOver('r', promptOf(llama, 20), 4);
  const refusal = await result.catch((error: unknown) => error);
  expect(isHandoffError(refusal) && [refusal.code, refusal.message]).toEqual([
    'INCOMPATIBLE',
    expect.stringMatching(new RegExp(`^kvMeta\\.handoff\\.${field}: expected .*, this engine's, got `)),
  ]);
  expect(target.pendingKvImportCount).toBe(0);
  expect(decode.blocks.freeCount).toBe(8);
  expect(source.inspect().pins).toEqual([]);
});
