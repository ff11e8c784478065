/**
 * Goal: each boundary that lint guards bites. Method: for every boundary a text that breaks it and a neighbour that does
 * not, both judged by ESLint with the project's own configuration as if they lay at the path named.
 */
import { ESLint } from 'eslint';
import { join } from 'node:path';

const root = join(__dirname, '..', '..');
const config = jest.requireActual<object[]>('../../eslint.config.js');

/** Rule ids reported for `text` as if it were the file at `path`. Syntax rules only: the path need not exist. */
async function reported(path: string, text: string): Promise<string[]> {
  const eslint = new ESLint({
    cwd: root,
    overrideConfigFile: true,
    overrideConfig: [
      ...(config as object[]),
      { files: ['**/*.ts'], languageOptions: { parserOptions: { projectService: false } } },
    ] as NonNullable<ESLint.Options['overrideConfig']>,
    ruleFilter: ({ ruleId }) => !typedRules.has(ruleId),
  });
  const results = await eslint.lintText(text, { filePath: join(root, path) });
  return results.flatMap(({ messages }) => messages.map(({ ruleId, message }) => ruleId ?? message));
}

/** The rules that need types; the last test runs them on a real file. */
const typedRules = new Set(
  [
    'await-thenable',
    'no-floating-promises',
    'no-misused-promises',
    'only-throw-error',
    'prefer-promise-reject-errors',
    'switch-exhaustiveness-check',
  ].map((name) => `@typescript-eslint/${name}`),
);

const imports = '@typescript-eslint/no-restricted-imports';
const use = (specifier: string, names = 'x') =>
  `import { ${names} } from '${specifier}';\nexport const y: unknown = x;\n`;

const boundaries: { boundary: string; path: string; bad: string; rule: string; good: string }[] = [
  {
    boundary: 'policy does not reach the addon',
    path: 'lib/decode/fixture.ts',
    bad: use('../native/addon.js'),
    rule: imports,
    good: use('./other.js'),
  },
  {
    boundary: 'a planner does not reach the addon',
    path: 'lib/transfer/plan-fixture.ts',
    bad: use('../native/addon.js'),
    rule: imports,
    good: use('./copy-program.js'),
  },
  {
    boundary: 'policy does not take even types from the addon',
    path: 'lib/prefill/fixture.ts',
    bad: "import type { x } from '../native/memory-types.js';\nexport type Y = x;\n",
    rule: imports,
    good: "import type { x } from '../memory/allocators.js';\nexport type Y = x;\n",
  },
  ...[
    'node:net',
    'net',
    'node:fs',
    'node:fs/promises',
    'node:dgram',
    'node:worker_threads',
    'node:child_process',
    'node:timers',
    'node:perf_hooks',
    'zeromq',
    'zeromq/v5-compat',
    'prom-client',
  ].map((module) => ({
    boundary: `policy does not import ${module}`,
    path: 'lib/control/protocol/fixture.ts',
    bad: use(module),
    rule: imports,
    good: use('node:buffer'),
  })),
  {
    boundary: 'policy draws no random values',
    path: 'lib/decode/fixture.ts',
    bad: "import { randomUUID } from 'node:crypto';\nexport const y: string = randomUUID();\n",
    rule: imports,
    good: "import { createHash } from 'node:crypto';\nexport const y: unknown = createHash;\n",
  },
  {
    boundary: 'policy does not take the system clock',
    path: 'lib/decode/fixture.ts',
    bad: "import { systemClock } from '../clock.js';\nexport const y: unknown = systemClock;\n",
    rule: imports,
    good: "import type { Clock } from '../clock.js';\nexport type Y = Clock;\n",
  },
  ...[
    'Date.now()',
    'new Date()',
    'performance.now()',
    'setTimeout(() => {}, 1)',
    'setInterval(() => {}, 1)',
    'setImmediate(() => {})',
    'process.hrtime()',
  ].map((call) => ({
    boundary: `policy does not call ${call}`,
    path: 'lib/scheduling/fixture.ts',
    bad: `export const y: unknown = ${call};\n`,
    rule: 'no-restricted-globals',
    good: 'export const y = (now: number): number => now;\n',
  })),
  {
    boundary: 'policy reaches no clock through globalThis',
    path: 'lib/decode/fixture.ts',
    bad: 'export const y: unknown = globalThis.performance;\n',
    rule: 'no-restricted-syntax',
    good: 'export const y = 1;\n',
  },
  {
    boundary: 'policy does not call Math.random',
    path: 'lib/topology/fixture.ts',
    bad: 'export const y = Math.random();\n',
    rule: 'no-restricted-properties',
    good: 'export const y = Math.max(1, 2);\n',
  },
  {
    boundary: 'policy does not load at run time',
    path: 'lib/decode/fixture.ts',
    bad: "export const y: unknown = import('node:net');\n",
    rule: 'no-restricted-syntax',
    good: 'export const y = 1;\n',
  },
  {
    boundary: 'policy does not require',
    path: 'lib/decode/fixture.ts',
    bad: "export const y: unknown = require('node:net');\n",
    rule: 'no-restricted-syntax',
    good: 'export const y = 1;\n',
  },
  {
    boundary: 'a simulated clock reads no real one',
    path: 'lib/testing/simulated-fixture.ts',
    bad: 'export const y = Date.now();\n',
    rule: 'no-restricted-globals',
    good: 'export const y = 1;\n',
  },
  {
    boundary: 'the library does not import tests',
    path: 'lib/memory/fixture.ts',
    bad: use('../../test/support/x.js'),
    rule: imports,
    good: use('../native/addon.js'),
  },
  {
    boundary: 'the library does not import examples',
    path: 'lib/state-fixture.ts',
    bad: use('../examples/engine/index.js'),
    rule: imports,
    good: use('./errors.js'),
  },
  {
    boundary: 'the library does not import its test doubles',
    path: 'lib/state-fixture.ts',
    bad: use('./testing/index.js'),
    rule: imports,
    good: use('./errors.js'),
  },
  {
    boundary: 'nothing but the door loads the binary',
    path: 'lib/memory/fixture.ts',
    bad: use('../../build/Release/state_handoff.node'),
    rule: imports,
    good: use('../native/addon.js'),
  },
  {
    boundary: 'the library does not print',
    path: 'lib/memory/fixture.ts',
    bad: "console.log('x');\n",
    rule: 'no-console',
    good: 'export const y = 1;\n',
  },
  {
    boundary: 'the library does not wait on the event loop thread',
    path: 'lib/memory/fixture.ts',
    bad: 'Atomics.wait(new Int32Array(1), 0, 0);\n',
    rule: 'no-restricted-properties',
    good: 'Atomics.load(new Int32Array(1), 0);\n',
  },
  {
    boundary: 'exported functions state their types',
    path: 'lib/memory/fixture.ts',
    bad: 'export function y() { return 1; }\n',
    rule: '@typescript-eslint/explicit-module-boundary-types',
    good: 'export function y(): number { return 1; }\n',
  },
  {
    boundary: 'examples import the package by its name',
    path: 'examples/fixture.ts',
    bad: use('../lib/index.js'),
    rule: imports,
    good: use('state-handoff'),
  },
];

test.each(boundaries)('$boundary', async ({ path, bad, rule, good }) => {
  expect(await reported(path, bad)).toContain(rule);
  expect(await reported(path, good)).toEqual([]);
});

const { pureFiles } = jest.requireActual<{ pureFiles: string[] }>('../../scripts/import-arrows.js');
test.each(pureFiles)('%s is guarded', async (glob) => {
  const path = glob.replace('**/', 'deeper/').replace('*', 'fixture');
  expect(await reported(path, use('../native/addon.js'))).toContain(imports);
  expect(await reported(path, 'export const y: unknown = Date;\n')).toEqual(['no-restricted-globals']);
});

test('a promise that nobody awaits is reported, with types', async () => {
  const eslint = new ESLint({ cwd: root, overrideConfigFile: true, overrideConfig: config ?? null });
  const judge = async (text: string): Promise<(string | null)[]> => {
    const results = await eslint.lintText(text, { filePath: join(root, 'lib', 'invariant.ts') });
    return results.flatMap(({ messages }) => messages.map(({ ruleId }) => ruleId));
  };
  const start = 'const begin = async (): Promise<void> => {};\n';
  expect(await judge(`${start}begin();\n`)).toEqual(['@typescript-eslint/no-floating-promises']);
  expect(await judge(`${start}void begin();\n`)).toEqual([]);
});
