/**
 * Promise: an environment may end at any moment, with reads over NIXL under way, and takes nothing with it: no crash, no
 * hang, no agent stays behind. Every scenario is a process of its own, so that a crash is seen.
 */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { nixlMissing } from '../support/nixl-fixture.js';
import { describeOptional } from '../support/optional.js';

function run(scenario: string): Promise<{ status: number | string | null; output: string; errors: string }> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [join(__dirname, '..', 'support', 'nixl-worker-child.js'), scenario], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    let errors = '';
    child.stdout.on('data', (text: Buffer) => (output += text.toString()));
    child.stderr.on('data', (text: Buffer) => (errors += text.toString()));
    const patience = setTimeout(() => child.kill('SIGKILL'), 50_000);
    child.on('close', (code, signal) => {
      clearTimeout(patience);
      resolve({ status: code ?? signal, output, errors });
    });
  });
}

describeOptional('nixl', nixlMissing(), 'NIXL and environments that end', () => {
  test('workers that are terminated with reads under way leave the process as it was', async () => {
    expect(await run('terminate')).toEqual({ status: 0, output: '{"agents":1}', errors: '' });
  });

  test('a worker that exits with reads under way takes its own agents along', async () => {
    expect(await run('workerExit')).toEqual({ status: 0, output: 'over', errors: '' });
  });

  test('a process exits with reads under way', async () => {
    expect(await run('exit')).toEqual({ status: 7, output: '', errors: '' });
  });

  test('an open transport does not hold the process', async () => {
    expect(await run('idle')).toEqual({ status: 0, output: '', errors: '' });
  });
});
