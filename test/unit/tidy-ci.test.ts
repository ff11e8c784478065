/**
 * Goal: `.ci/run` cannot end well when something failed or nothing ran. Method: the real script in an empty folder with
 * an npm that only says what each case wants it to say.
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { projectRoot } from '../support/source-files.js';

interface Said {
  readonly prints: string;
  readonly status: number;
}
const well: Record<string, Said> = {
  ci: { prints: 'added', status: 0 },
  'fetch:nixl': { prints: 'fetched', status: 0 },
  lint: { prints: 'clean', status: 0 },
  typecheck: { prints: '', status: 0 },
  docs: { prints: '', status: 0 },
  test: { prints: 'tests: 3 passed, 0 failed, 1 skipped', status: 0 },
  conformance: { prints: 'hashes: 5/5\nconformance: 5 passed, 0 failed, 2 skipped', status: 0 },
  'test:llama': { prints: 'tests: 2 passed, 0 failed, 0 skipped', status: 0 },
};

function runCi(said: Record<string, Said>): { status: number | null; lastLine: string; output: string } {
  const folder = mkdtempSync(join(tmpdir(), 'state-handoff-ci-'));
  try {
    mkdirSync(join(folder, '.ci'));
    mkdirSync(join(folder, 'bin'));
    copyFileSync(join(projectRoot, '.ci', 'run'), join(folder, '.ci', 'run'));
    // The first argument that names a case decides: `ci`, `test`, or the script of `run`.
    const cases = Object.entries(said).map(
      ([name, { prints, status }]) => `${name}) printf '%b\\n' '${prints.replaceAll('\n', '\\n')}'; exit ${status};;`,
    );
    writeFileSync(
      join(folder, 'bin', 'npm'),
      `#!/bin/sh\nfor word in "$@"; do case $word in\n${cases.join('\n')}\nesac; done\nexit 9\n`,
    );
    writeFileSync(join(folder, 'bin', 'uname'), '#!/bin/sh\necho x86_64\n');
    for (const name of ['npm', 'uname']) chmodSync(join(folder, 'bin', name), 0o755);
    const { status, stdout } = spawnSync('bash', [join(folder, '.ci', 'run')], {
      cwd: tmpdir(),
      encoding: 'utf8',
      env: { ...process.env, PATH: `${join(folder, 'bin')}${delimiter}${process.env['PATH'] ?? ''}` },
    });
    return { status, lastLine: stdout.trimEnd().split('\n').at(-1) ?? '', output: stdout };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

test('counts the tests of all suites', () => {
  const { status, lastLine } = runCi(well);
  expect(lastLine).toBe('tests: 10 passed, 0 failed, 3 skipped');
  expect(status).toBe(0);
});

test.each<[string, Record<string, Said>, string]>([
  [
    'the NIXL wheel is not to be had',
    { 'fetch:nixl': { prints: 'no', status: 1 } },
    'tests: 10 passed, 1 failed, 3 skipped',
  ],
  ['lint fails', { lint: { prints: 'a fault', status: 1 } }, 'tests: 10 passed, 1 failed, 3 skipped'],
  ['types fail', { typecheck: { prints: 'a fault', status: 2 } }, 'tests: 10 passed, 1 failed, 3 skipped'],
  ['documents fail', { docs: { prints: 'a fault', status: 4 } }, 'tests: 10 passed, 1 failed, 3 skipped'],
  [
    'tests fail',
    { test: { prints: 'tests: 2 passed, 1 failed, 1 skipped', status: 1 } },
    'tests: 9 passed, 1 failed, 3 skipped',
  ],
  [
    'a count of failures comes with status 0',
    { test: { prints: 'tests: 2 passed, 1 failed, 1 skipped', status: 0 } },
    'tests: 9 passed, 1 failed, 3 skipped',
  ],
  [
    'the tests end badly after a good count',
    { test: { prints: 'tests: 3 passed, 0 failed, 1 skipped', status: 137 } },
    'tests: 10 passed, 1 failed, 3 skipped',
  ],
  ['the tests end without a count', { test: { prints: 'hello', status: 0 } }, 'tests: 7 passed, 1 failed, 2 skipped'],
  [
    'no test ran',
    { test: { prints: 'tests: 0 passed, 0 failed, 0 skipped', status: 0 } },
    'tests: 7 passed, 1 failed, 2 skipped',
  ],
  [
    'conformance fails',
    { conformance: { prints: 'conformance: 4 passed, 1 failed, 0 skipped', status: 1 } },
    'tests: 9 passed, 1 failed, 1 skipped',
  ],
  [
    'engine or model are not to be had',
    { 'test:llama': { prints: 'tests: 0 passed, 1 failed, 0 skipped', status: 1 } },
    'tests: 8 passed, 2 failed, 3 skipped',
  ],
  ['the installation fails', { ci: { prints: 'no', status: 1 } }, 'tests: 0 passed, 1 failed, 0 skipped'],
])('fails when %s', (_, said, line) => {
  const { status, lastLine } = runCi({ ...well, ...said });
  expect(lastLine).toBe(line);
  expect(status).toBe(1);
});
