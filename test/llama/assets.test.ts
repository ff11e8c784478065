/**
 * Fetching engine and model: real package clients are replaced by ones that fail or lie, and nothing that they leave is
 * ever used or kept.
 */
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { cacheFolder, provideAssets } from '../../examples/llama/assets.js';
import { assetsOf } from '../support/llama-pair.js';

const { PATH, STATE_HANDOFF_CACHE } = process.env;
const platform = Object.getOwnPropertyDescriptor(process, 'platform')!;
let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'state-handoff-assets-'));
  mkdirSync(join(folder, 'bin'));
  process.env['STATE_HANDOFF_CACHE'] = join(folder, 'cache');
  process.env['PATH'] = `${join(folder, 'bin')}${delimiter}${PATH}`;
});

afterEach(() => {
  process.env['PATH'] = PATH;
  if (STATE_HANDOFF_CACHE === undefined) delete process.env['STATE_HANDOFF_CACHE'];
  else process.env['STATE_HANDOFF_CACHE'] = STATE_HANDOFF_CACHE;
  Object.defineProperty(process, 'platform', platform);
  rmSync(folder, { recursive: true, force: true });
});

/** Commands of these names do this instead. */
function replace(commands: Record<string, string>): void {
  for (const [name, script] of Object.entries(commands)) {
    const file = join(folder, 'bin', name);
    writeFileSync(file, `#!/bin/sh\n${script}\n`);
    chmodSync(file, 0o755);
  }
}

const silently = (): undefined => undefined;

test.each<[string, string, RegExp]>([
  [
    'there is no connection',
    'echo "getaddrinfo ENOTFOUND" >&2; exit 1',
    /^llama\.cpp v0\.5\.0 for Linux x64 was not fetched because npm ended with 1: getaddrinfo ENOTFOUND; this needs npm, python3 with pip, and a connection/,
  ],
  [
    'other bytes come',
    'echo short > engine.tgz',
    /^@node-llama-cpp\/linux-x64@3\.22\.1: expected 10824547 bytes, got 6; nothing was kept$/,
  ],
  [
    'as many other bytes come',
    'truncate -s 10824547 engine.tgz',
    /^@node-llama-cpp\/linux-x64@3\.22\.1: expected SHA-256 0d953e\w+, got \w{64}; nothing was kept$/,
  ],
  ['nothing comes', 'exit 0', /^@node-llama-cpp\/linux-x64@3\.22\.1: expected one archive, got 0$/],
])('says so and keeps nothing when %s', async (_, script, message) => {
  replace({ npm: script });
  await expect(provideAssets(null, silently)).rejects.toThrow(message);
  expect(readdirSync(cacheFolder())).toEqual([]);
});

test('files in the cache that were changed are fetched again, not used', async () => {
  replace({ npm: 'exit 3' });
  const kept = join(cacheFolder(), 'llama-0d953e1503d5ab46');
  mkdirSync(kept, { recursive: true });
  writeFileSync(join(kept, 'libllama.v0.5.0.so'), 'something else');
  const said: string[] = [];
  await expect(provideAssets(null, (line) => said.push(line))).rejects.toThrow(/npm ended with 3/);
  expect(said[0]).toMatch(/the files in the cache are not those that were checked; fetching them again$/);
  expect(existsSync(kept)).toBe(false);
});

test('what a process that is gone has left half fetched is removed; what one that lives fetches is not', async () => {
  replace({ npm: 'exit 3' });
  const abandoned = join(cacheFolder(), 'partial-99999999-x');
  const living = join(cacheFolder(), `partial-${process.ppid}-x`);
  for (const each of [abandoned, living]) mkdirSync(each, { recursive: true });
  await expect(provideAssets(null, silently)).rejects.toThrow();
  expect(existsSync(abandoned)).toBe(false);
  expect(existsSync(living)).toBe(true);
});

test('another platform is refused before anything is fetched', async () => {
  Object.defineProperty(process, 'platform', { value: 'darwin' });
  await expect(provideAssets(null, silently)).rejects.toThrow(
    /^the llama\.cpp that this example is pinned to runs on Linux x64 with glibc; this is darwin x64 with glibc$/,
  );
  expect(existsSync(cacheFolder())).toBe(false);
});

test('a model file that does not exist is named', async () => {
  if (STATE_HANDOFF_CACHE === undefined) delete process.env['STATE_HANDOFF_CACHE'];
  else process.env['STATE_HANDOFF_CACHE'] = STATE_HANDOFF_CACHE;
  await expect(assetsOf('/nowhere/model.gguf')).rejects.toThrow(
    '--model: expected a GGUF file, got /nowhere/model.gguf, which does not exist',
  );
});
