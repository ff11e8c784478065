/**
 * Other processes for tests: `startChild('NAME')` runs `test/support/NAME-child.js`, a plain program that requires
 * `dist/lib/...` (see global-setup.ts) and answers requests through test/support/answer-requests.js. No child outlives
 * its test file.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';

export interface Child {
  readonly process: ChildProcess;
  /** Sends `{command, ...values}` and resolves with the answer; rejects when the child fails or dies first. */
  ask<Answer = unknown>(command: string, values?: Record<string, unknown>): Promise<Answer>;
  /** Sends a signal and resolves when the process has gone. */
  kill(signal?: NodeJS.Signals): Promise<void>;
}

const running = new Set<ChildProcess>();

afterAll(async () => {
  await Promise.all([...running].map((child) => end(child, 'SIGKILL')));
});

export function startChild(name: string, execArgv: readonly string[] = [], env: Record<string, string> = {}): Child {
  const child = fork(join(__dirname, `${name}-child.js`), {
    execArgv: [...execArgv],
    env: { ...process.env, ...env },
    serialization: 'advanced',
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  running.add(child);
  child.once('exit', () => running.delete(child));
  const waiting = new Map<number, { resolve: (answer: never) => void; reject: (error: Error) => void }>();
  let lastId = 0;
  child.on('message', ({ id, answer, error }: { id: number; answer: never; error?: string }) => {
    const request = waiting.get(id);
    waiting.delete(id);
    if (error === undefined) request?.resolve(answer);
    else request?.reject(new Error(`${name} child: ${error}`));
  });
  child.on('exit', (code, signal) => {
    for (const { reject } of waiting.values()) reject(new Error(`${name} child ended with ${code ?? signal}`));
    waiting.clear();
  });
  return {
    process: child,
    ask: (command, values = {}) =>
      new Promise((resolve, reject) => {
        lastId += 1;
        waiting.set(lastId, { resolve, reject });
        const id = lastId;
        child.send({ id, command, ...values }, (error) => {
          if (error !== null && waiting.delete(id)) reject(error);
        });
      }),
    kill: (signal = 'SIGKILL') => end(child, signal),
  };
}

function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
  return new Promise((resolve) => {
    child.once('exit', () => resolve());
    child.kill(signal);
  });
}
