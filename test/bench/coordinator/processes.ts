/**
 * The processes that the coordinator's bench measures, each alone in one of its own: the coordinator, a bare zeromq.js
 * echo, a bare pyzmq + msgpack echo. Owns starting and ending them, and reading what CPU time they took.
 */
import { fork, spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Setting } from './frames.js';

/** A process that listens. */
export interface Measured {
  readonly address: string;
  /** CPU time of all its threads since it began, in µs. */
  cpuUs(): number;
  /** Makes the coordinator remember so many blocks. */
  preload(blocks: number): Promise<number>;
  /** What the coordinator's process holds, garbage collected. */
  holdings(): Promise<Holdings>;
  end(): Promise<void>;
}

/** What a coordinator's process holds. */
export interface Holdings {
  /** Objects and array buffers. */
  readonly heapBytes: number;
  readonly residentBytes: number;
  /** Requests in any phase and pins in any state. */
  readonly requests: number;
}

/** Debian's packages of pyzmq and msgpack are for its own interpreter. */
const pythons = [process.env['STATE_HANDOFF_PYTHON'] ?? 'python3', '/usr/bin/python3'];
const python = pythons.find((path) => spawnSync(path, ['-c', 'import zmq, msgpack']).status === 0);
const ticksPerSecond = Number(spawnSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }).stdout) || 100;

/** Why there is no pyzmq echo here; null when there is. */
export const pythonMissing = python === undefined ? `${pythons.join(' and ')} have no pyzmq and msgpack` : null;

function cpuUsOf(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const [utime, stime] = fields
    .slice(fields.lastIndexOf(')') + 2)
    .split(' ')
    .slice(11, 13)
    .map(Number);
  return ((utime! + stime!) * 1e6) / ticksPerSecond;
}

function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
  return new Promise((resolve) => {
    child.once('exit', () => resolve());
    child.kill('SIGKILL');
  });
}

interface Answer {
  readonly value: string | number | Holdings;
}

function asked(child: ChildProcess, question: Record<string, unknown>): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const onExit = (): void => reject(new Error('bench coordinator: the measured process ended'));
    child.once('exit', onExit);
    child.once('message', (answer: Answer) => {
      child.off('exit', onExit);
      resolve(answer);
    });
    child.send(question);
  });
}

async function forked(question: Record<string, unknown>): Promise<Measured> {
  const child = fork(join(__dirname, 'measured-process.ts'), [], {
    execArgv: [
      '--expose-gc',
      ...profiling(question),
      '-r',
      join(__dirname, '..', '..', '..', 'scripts', 'typescript-hook.js'),
    ],
  });
  const { value } = await asked(child, question);
  return {
    address: String(value),
    cpuUs: () => cpuUsOf(child.pid!),
    preload: async (blocks) => Number((await asked(child, { command: 'preload', blocks })).value),
    holdings: async () => (await asked(child, { command: 'holdings' })).value as Holdings,
    end: async () => {
      const exited = new Promise((resolve) => child.once('exit', resolve));
      child.send({ command: 'end' });
      await exited;
    },
  };
}

/** `BENCH_CPU_PROFILE=FOLDER` writes a profile of the coordinator's process. */
function profiling({ command }: Record<string, unknown>): string[] {
  const folder = process.env['BENCH_CPU_PROFILE'];
  return folder === undefined || command !== 'coordinator' ? [] : ['--cpu-prof', `--cpu-prof-dir=${folder}`];
}

export function startCoordinator(setting: Setting): Promise<Measured> {
  return forked({ command: 'coordinator', setting });
}

export function startEcho(setting: Setting): Promise<Measured> {
  return forked({ command: 'echo', setting });
}

export async function startPythonEcho(): Promise<Measured> {
  const root = join(__dirname, '..', '..', '..');
  if (python === undefined) throw new Error(`bench coordinator: ${pythonMissing}`);
  const child = spawn(python, [join(root, 'test', 'bench', 'coordinator', 'echo.py')], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const address = await new Promise<string>((resolve, reject) => {
    child.once('exit', () => reject(new Error('bench coordinator: the pyzmq echo ended')));
    child.stdout.once('data', (line: Buffer) => resolve(line.toString().trim()));
  });
  return {
    address,
    cpuUs: () => cpuUsOf(child.pid!),
    preload: () => Promise.resolve(0),
    holdings: () => Promise.reject(new Error('bench coordinator: an echo holds nothing')),
    end: () => ended(child),
  };
}
