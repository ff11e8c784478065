/**
 * Goal: a script that is called wrongly says what it takes, and runs nothing. Method: each is started as a user would, with
 * `--help`, with a flag that it has not, and with figures that are none.
 */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { projectRoot } from '../support/source-files.js';

function run(script: string, ...args: string[]): { status: number | null; output: string; errors: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(projectRoot, 'scripts', script), ...args], {
    encoding: 'utf8',
    timeout: 120_000,
  });
  return { status, output: stdout, errors: stderr };
}

const scripts = ['simulate.js', 'simulate-planted.js', 'simulate-coordinator.js', 'bench.js', 'fuzz.js'];
/** Their status 1 is for what they measured; a wrong call is 2. */
const measuring = ['soak.js', 'bench-coordinator.js'];

test.each([...scripts, ...measuring])('%s --help says how it is called, and is no error', (script) => {
  expect(run(script, '--help')).toEqual({ status: 0, output: expect.stringMatching(/^usage: npm run /), errors: '' });
});

test.each([
  ...scripts.map((script) => [script, '--no-such-flag']),
  ['simulate.js', '--worlds', '0'],
  ['simulate-coordinator.js', '--worlds', '0'],
  ['simulate-coordinator.js', 'worlds', '1'],
  ['simulate-planted.js', '--worlds', 'many'],
  ['fuzz.js', 'many'],
  ['fuzz.js', '0'],
  ['fuzz.js', '10', '-1'],
  ['fuzz.js', '10', '1', '1'],
])('%s %s %s: refused with what was expected', (script, ...args) => {
  const { status, output, errors } = run(script, ...args);
  expect({ status, output }).toEqual({ status: 1, output: '' });
  expect(errors).toMatch(/expected/);
});

test.each([
  ...measuring.map((script) => [script, '--no-such-flag']),
  ['soak.js', '--messages'],
  ['soak.js', '--messages', '0'],
  ['soak.js', '--messages', 'many'],
  ['soak.js', '--messages', '10', '1'],
  ['bench-coordinator.js', 'quick'],
])('%s %s %s: refused with what was expected, and status 2', (script, ...args) => {
  const { status, output, errors } = run(script, ...args);
  expect({ status, output }).toEqual({ status: 2, output: '' });
  expect(errors).toMatch(/expected/);
});

test('bench-coordinator.js writes no table of its quick run', () => {
  expect(run('bench-coordinator.js', '--quick', '--write')).toEqual({
    status: 2,
    output: '',
    errors: 'bench:coordinator: --write takes the whole table, not --quick\n',
  });
});
