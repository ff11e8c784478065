/** The demo as a user runs it, for tests: one command, its output as it comes, its processes, its end. */
import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export const compiledDemo = join(__dirname, '..', '..', 'dist', 'examples', 'demo');
/** Small models, blocks and outputs; everything else as by default. */
export const smallDemo = ['--layers', '2', '--block-size', '8', '--tokens', '6'];

export interface DemoRun {
  readonly process: ChildProcess;
  readonly ended: Promise<{ status: number | null; signal: NodeJS.Signals | null }>;
  /** Standard output and error so far. */
  readonly out: () => string;
  readonly err: () => string;
  /** Resolves once standard error, or standard output, holds a match. */
  readonly sees: (pattern: RegExp, stream?: 'out' | 'err') => Promise<RegExpExecArray>;
}

/** What a test has started and not seen end. */
export const running = new Set<ChildProcess>();

/** After each test: nothing goes on. */
export function endDemos(): void {
  for (const child of running) child.kill('SIGKILL');
}

export function startDemo(...flags: string[]): DemoRun {
  const child = spawn(process.execPath, [join(compiledDemo, 'demo.js'), ...flags], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  running.add(child);
  let out = '';
  let err = '';
  const listeners = new Set<() => void>();
  child.stdout.on('data', (data: Buffer) => {
    out += data.toString();
    for (const listener of listeners) listener();
  });
  child.stderr.on('data', (data: Buffer) => {
    err += data.toString();
    for (const listener of listeners) listener();
  });
  return {
    process: child,
    ended: new Promise((resolve) => {
      child.once('close', (status, signal) => {
        running.delete(child);
        for (const listener of listeners) listener();
        resolve({ status, signal });
      });
    }),
    out: () => out,
    err: () => err,
    sees: (pattern, stream = 'err') =>
      new Promise((resolve, reject) => {
        const look = (): void => {
          const match = pattern.exec(stream === 'err' ? err : out);
          if (match !== null) resolve(match);
          else if (!running.has(child)) reject(new Error(`ended without ${String(pattern)}; it said:\n${err}`));
        };
        listeners.add(look);
        look();
      }),
  };
}

export function childrenOf(processId: number): number[] {
  const text = readFileSync(`/proc/${processId}/task/${processId}/children`, 'utf8').trim();
  return text === '' ? [] : text.split(' ').map(Number);
}

export async function gone(processIds: readonly number[]): Promise<void> {
  const isAlive = (id: number): boolean => existsSync(`/proc/${id}`) && !/^State:\s+Z/m.test(statusOf(id));
  while (processIds.some(isAlive)) await new Promise((resolve) => setTimeout(resolve, 20));
}

function statusOf(processId: number): string {
  try {
    return readFileSync(`/proc/${processId}/status`, 'utf8');
  } catch {
    return 'State: Z';
  }
}
