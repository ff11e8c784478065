/**
 * The plain C++ test program of test/cpp, built with the addon's own compiler and run case by case: executor, ring, both
 * ends of the host transport with peers that lie, and the hammer that shows what each comparison of generations is for.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { buildCppProgram } from '../support/cpp-program.js';
import { projectRoot } from '../support/source-files.js';

const folder = join(projectRoot, 'test', 'cpp');
const cases = readdirSync(folder)
  .filter((name) => name.endsWith('.cc'))
  .flatMap((name) => [...readFileSync(join(folder, name), 'utf8').matchAll(/^TEST\((\w+)\)/gm)])
  .map(([, name]) => name as string);

let program: string;

beforeAll(() => {
  program = buildCppProgram('plain', ['-O1']);
}, 240_000);

test('has cases', () => {
  expect(cases.length).toBeGreaterThan(20);
});

test.each(cases)('%s', (name) => {
  const { status, stdout, stderr } = spawnSync(program, [name], { cwd: join(program, '..'), encoding: 'utf8' });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  expect(stdout).toContain('1 cases passed');
});
