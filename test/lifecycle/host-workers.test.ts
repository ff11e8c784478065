/**
 * Promise: an environment may end at any moment, with transfers under way, and takes nothing with it: no crash, no hang,
 * no thread and no mapping stays behind. Every scenario is a process of its own, so that a crash is seen.
 */
import { spawn } from 'node:child_process';
import { join } from 'node:path';

interface Outcome {
  readonly status: number | string | null;
  readonly output: string;
  readonly errors: string;
}

function run(scenario: string): Promise<Outcome> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [join(__dirname, '..', 'support', 'host-worker-child.js'), scenario], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    let errors = '';
    child.stdout.on('data', (text: Buffer) => (output += text.toString()));
    child.stderr.on('data', (text: Buffer) => (errors += text.toString()));
    const patience = setTimeout(() => child.kill('SIGKILL'), 40_000);
    child.on('close', (code, signal) => {
      clearTimeout(patience);
      resolve({ status: code ?? signal, output, errors });
    });
  });
}

test('workers that are terminated with transfers under way leave the process as it was', async () => {
  const { status, output, errors } = await run('terminate');
  expect({ status, errors }).toEqual({ status: 0, errors: '' });
  const { before, after, mappings, regions } = JSON.parse(output) as Record<string, unknown>;
  expect(after).toEqual(before);
  expect({ mappings, regions }).toEqual({ mappings: 0, regions: 0 });
});

test('a worker that exits with transfers under way ends its threads', async () => {
  expect(await run('workerExit')).toEqual({ status: 0, output: '{"native":0}', errors: '' });
});

test('a process exits with transfers under way', async () => {
  for (let round = 0; round < 5; round += 1) {
    expect(await run('exit')).toEqual({ status: 7, output: '', errors: '' });
  }
});

test('an uncaught error with transfers under way ends the process as any other', async () => {
  const { status, errors } = await run('crash');
  expect(status).toBe(1);
  expect(errors).toContain('the expected end');
});

test('an open transport does not hold the process', async () => {
  expect(await run('idle')).toEqual({ status: 0, output: '', errors: '' });
});

test('what is dropped without being closed is collected', async () => {
  expect(await run('dropped')).toEqual({ status: 0, output: '{"threads":0,"regions":0}', errors: '' });
});
