/**
 * Goal: the count that `npm test` ends with cannot look better than the run. Method: a small suite of its own in an
 * empty folder, with each way a test can fail to pass, judged by the project's reporter; then the script itself.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import ts from 'typescript';

const root = join(__dirname, '..', '..');
const reporter = join(root, 'test', 'support', 'reporter.js');
const jestBin = join(root, 'node_modules', 'jest', 'bin', 'jest.js');

interface Count {
  passed: number;
  failed: number;
  skipped: number;
  failures: string[];
  leftOut: Record<string, { reason: string; tests: number }>;
}

function countOf(
  files: Record<string, string>,
  environment: Record<string, string> = {},
): { count: Count; status: number | null } {
  const folder = mkdtempSync(join(tmpdir(), 'state-handoff-count-'));
  try {
    writeFileSync(join(folder, 'package.json'), '{}');
    for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
    const countFile = join(folder, 'count.json');
    const { status } = spawnSync(
      process.execPath,
      [jestBin, '--rootDir', folder, '--runInBand', `--reporters=${reporter}`],
      {
        cwd: folder,
        env: { ...process.env, ...environment, STATE_HANDOFF_TEST_COUNT: countFile },
      },
    );
    return { count: JSON.parse(readFileSync(countFile, 'utf8')) as Count, status };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

test('a passing file counts each of its tests', () => {
  const { count, status } = countOf({ 'a.test.js': "test('one', () => {}); test('two', () => {});" });
  expect(count).toEqual({ passed: 2, failed: 0, skipped: 0, failures: [], leftOut: {} });
  expect(status).toBe(0);
});

test('every way not to pass is counted as a failure, by name', () => {
  const { count } = countOf({
    'fails.test.js': "test('good', () => {}); test('bad', () => { throw new Error('x'); });",
    'does-not-load.test.js': "require('./absent');",
    'does-not-parse.test.js': 'test(',
    'is-empty.test.js': '',
    'hides.test.js': "test('here', () => {}); test.skip('hidden', () => {}); test.todo('later');",
    'setup.test.js': "beforeAll(() => { throw new Error('x'); }); test('after setup', () => {});",
  });
  expect(count.passed).toBe(2);
  expect(count.skipped).toBe(0);
  expect([...count.failures].sort()).toEqual([
    expect.stringMatching(/^does-not-load\.test\.js: did not run: Cannot find module '\.\/absent'/) as string,
    expect.stringMatching(/^does-not-parse\.test\.js: did not run: /) as string,
    'fails.test.js: bad',
    'hides.test.js: hidden: pending without a reason (see test/support/optional.ts)',
    'hides.test.js: later: todo without a reason (see test/support/optional.ts)',
    expect.stringMatching(/^is-empty\.test\.js: /) as string,
    'setup.test.js: after setup',
  ]);
  expect(count.failed).toBe(7);
});

test('what is left out with a reason is skipped, and the reason is kept', () => {
  const { count, status } = countOf({
    'gpu.test.js':
      "describe.skip('kernels [left out: gpu: no device]', () => { test('a', () => {}); test('b', () => {}); });",
  });
  expect(count).toEqual({
    passed: 0,
    failed: 0,
    skipped: 2,
    failures: [],
    leftOut: { gpu: { reason: 'no device', tests: 2 } },
  });
  expect(status).toBe(0);
});

test('an optional part runs where it can, is left out where it cannot, and fails where it is required', () => {
  const { outputText } = ts.transpileModule(readFileSync(join(root, 'test', 'support', 'optional.ts'), 'utf8'), {
    compilerOptions: { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2022 },
  });
  const suite = (missing: string): Record<string, string> => ({
    'optional.js': outputText,
    'a.test.js': `require('./optional').describeOptional('two-gpus', ${missing}, 'copies', () => { test('a', () => {}); test('b', () => {}); });`,
  });
  expect(countOf(suite('null')).count).toMatchObject({ passed: 2, failed: 0, skipped: 0 });
  const leftOut = { 'two-gpus': { reason: 'one device: no peer', tests: 2 } };
  expect(countOf(suite("'one device: no peer'")).count).toMatchObject({ passed: 0, failed: 0, skipped: 2, leftOut });
  const required = countOf(suite("'one device: no peer'"), { REQUIRE_TWO_GPUS: '1' }).count;
  expect(required).toMatchObject({ passed: 0, failed: 1, skipped: 0 });
});

test('a run without a test fails and still ends with the count', () => {
  const { status, stdout } = spawnSync(process.execPath, [join(root, 'scripts', 'test.js'), 'no-file-has-this-name'], {
    encoding: 'utf8',
  });
  expect(status).toBe(1);
  expect(stdout.trimEnd().split('\n').at(-1)).toBe('tests: 0 passed, 0 failed, 0 skipped');
});
