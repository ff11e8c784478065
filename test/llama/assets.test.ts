/**
 * Fetching engine and model: real package clients are replaced by ones that fail or lie, and nothing that they leave is
 * ever used or kept.
 */
import {
  appendFileSync,
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, delimiter, join } from 'node:path';
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
  restoreCache();
  Object.defineProperty(process, 'platform', platform);
  rmSync(folder, { recursive: true, force: true });
});

function restoreCache(): void {
  if (STATE_HANDOFF_CACHE === undefined) delete process.env['STATE_HANDOFF_CACHE'];
  else process.env['STATE_HANDOFF_CACHE'] = STATE_HANDOFF_CACHE;
}

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
  [
    'a client says much beside the reason',
    `cat >&2 <<'END'
npm error code ECONNREFUSED
npm error errno ECONNREFUSED
npm error FetchError: request to https://registry.invalid/x failed, reason: connect ECONNREFUSED 127.0.0.1:9
npm error     at ClientRequest.emit (node:events:524:28)
npm error   type: 'system'
npm error }
npm error A complete log of this run can be found in: /nowhere
END
exit 1`,
    /because npm ended with 1: npm error FetchError: request to https:\/\/registry\.invalid\/x failed, reason: connect ECONNREFUSED 127\.0\.0\.1:9; this needs/,
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

/** The real engine, as it lies in the real cache, in the cache of this test. */
async function copyOfEngine(): Promise<string> {
  const ours = process.env['STATE_HANDOFF_CACHE'];
  restoreCache();
  const { libraryFolder } = await assetsOf();
  process.env['STATE_HANDOFF_CACHE'] = ours;
  const copy = join(cacheFolder(), basename(libraryFolder));
  cpSync(libraryFolder, copy, { recursive: true });
  return copy;
}

test.each<[string, (kept: string) => void]>([
  ['a kernel that is cut off', (kept) => writeFileSync(join(kept, 'libggml-cpu-x64.so'), 'cut')],
  ['a kernel with a byte more', (kept) => appendFileSync(join(kept, 'libggml-cpu-haswell.so'), '.')],
  ['a file that is missing', (kept) => rmSync(join(kept, 'libggml-cpu-zen4.so'))],
  ['a file that nobody put there', (kept) => writeFileSync(join(kept, 'libggml-cpu-best.so'), '')],
  [
    'a folder in the place of a file',
    (kept) => {
      rmSync(join(kept, 'libllama.v0.5.0.so'));
      mkdirSync(join(kept, 'libllama.v0.5.0.so'));
    },
  ],
])('everything that llama.cpp may load is checked before it is used: %s', async (_, change) => {
  const kept = await copyOfEngine();
  change(kept);
  replace({ npm: 'exit 3' });
  const said: string[] = [];
  await expect(provideAssets(null, (line) => said.push(line))).rejects.toThrow(/npm ended with 3/);
  expect(said[0]).toMatch(/the files in the cache are not those that were checked; fetching them again$/);
  expect(existsSync(kept)).toBe(false);
});

test('who gives up while something is fetched ends the client and leaves nothing', async () => {
  replace({ npm: `echo half > half.tgz; echo $$ > ${join(folder, 'client')}; exec sleep 600` });
  const stop = new AbortController();
  const result = provideAssets(null, silently, stop.signal);
  const started = (): boolean => existsSync(join(folder, 'client')) && readFileSync(join(folder, 'client')).length > 0;
  while (!started()) await new Promise((resolve) => setTimeout(resolve, 20));
  stop.abort();
  await expect(result).rejects.toThrow(/was not fetched because npm was stopped/);
  expect(readdirSync(cacheFolder())).toEqual([]);
  expect(() => process.kill(Number(readFileSync(join(folder, 'client'), 'utf8')), 0)).toThrow('ESRCH');
});

test('a cache folder that is none is named', async () => {
  writeFileSync(cacheFolder(), '');
  await expect(provideAssets(null, silently)).rejects.toThrow(
    `STATE_HANDOFF_CACHE: expected a folder that can be written, got ${cacheFolder()} (EEXIST)`,
  );
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

test.each([
  ['does not exist', () => '/nowhere/model.gguf'],
  ['is not a file', () => folder],
])('a model that %s is named', async (why, file) => {
  restoreCache();
  await expect(assetsOf(file())).rejects.toThrow(`--model: expected a GGUF file, got ${file()}, which ${why}`);
});

test('a model is known by its bytes, whatever its name', async () => {
  restoreCache();
  const [one, other] = [join(folder, 'one.gguf'), join(folder, 'other.gguf')];
  for (const each of [one, other]) writeFileSync(each, 'the same bytes');
  expect((await assetsOf(one)).model).toBe((await assetsOf(other)).model);
});
