/**
 * Promise: an environment may load the addon beside others and end at any moment, with hashing under way, and nothing of
 * it stays: no crash, no hang, no object. Every scenario is a process of its own, so that a crash is seen.
 */
import { execFile } from 'node:child_process';
import { join } from 'node:path';

interface Outcome {
  readonly status: number | string | null;
  readonly output: string;
  readonly errors: string;
}

const child = join(__dirname, '..', 'support', 'memory-worker-child.js');
const nothing = { generations: 0, blockPools: 0, slotPools: 0, hashJobs: 0 };

function run(scenario: string): Promise<Outcome> {
  return new Promise((resolve) => {
    const process_ = execFile(
      process.execPath,
      ['--expose-gc', child, scenario],
      { timeout: 50_000, killSignal: 'SIGKILL' },
      (_, output, errors) =>
        resolve({ status: process_.exitCode ?? process_.signalCode, output: output.trim(), errors }),
    );
  });
}

test.each(['terminate', 'workerExit'])('workers end with hashing under way (%s)', async (scenario) => {
  const { status, output, errors } = await run(scenario);
  expect({ status, errors }).toEqual({ status: 0, errors: '' });
  expect(JSON.parse(output)).toEqual(nothing);
});

test('a process exits with hashing under way', async () => {
  for (let round = 0; round < 5; round += 1) {
    expect(await run('exit')).toEqual({ status: 7, output: '', errors: '' });
  }
});

test('pools and jobs that are dropped are collected', async () => {
  const { status, output, errors } = await run('dropped');
  expect({ status, errors }).toEqual({ status: 0, errors: '' });
  expect(JSON.parse(output)).toEqual(nothing);
});

test('environments side by side hash alike', async () => {
  expect(await run('agree')).toEqual({ status: 0, output: '[true,true]', errors: '' });
});
