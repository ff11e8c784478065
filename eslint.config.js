'use strict';
// Lint: TypeScript with type information, and the import arrows (who may reach what; the lists are in
// scripts/import-arrows.js). test/unit/tidy-lint.test.ts breaks each boundary once and sees it reported.
const { defineConfig } = require('eslint/config');
const tseslint = require('typescript-eslint');
const { clockGlobals, nativeImport, pureFiles, scaffoldImport, worldImport } = require('./scripts/import-arrows');

const noScaffold = {
  regex: scaffoldImport,
  message: 'The library does not import tests, examples, scripts or build output.',
};
const noTesting = {
  regex: '(?:^|/)testing/',
  message: 'Only state-handoff/testing and tests use test doubles; move what both need out of testing/.',
};
const noBinary = { regex: '\\.node$|/build/', message: 'lib/native/addon.ts is the only door to the .node file.' };
const noRandom = {
  group: ['node:crypto', 'crypto'],
  importNamePattern: '^random',
  message: 'Policy is replayed from a seed: take random values as input.',
};
const noWorld = {
  regex: worldImport,
  message: 'Policy is pure: no file, socket, thread, process or clock. Take it as input.',
};
const noNative = {
  regex: nativeImport,
  message: 'Policy is pure: it does not reach the addon. Take the mechanism as input.',
};
const noSystemClock = {
  regex: '(?:^|/)clock\\.js$',
  importNamePattern: '^systemClock$',
  message: 'Policy is handed its time; import the type Clock only.',
};
const restrictImports = (...patterns) => ['error', { patterns }];

const libraryImports = [noScaffold, noTesting, noBinary];
const noClock = {
  'no-restricted-globals': [
    'error',
    ...clockGlobals.map((name) => ({
      name,
      message: 'Policy reads no clock and starts no timer: take time and wake-ups as input.',
    })),
  ],
  'no-restricted-properties': [
    'error',
    { object: 'Math', property: 'random', message: 'Policy is replayed from a seed: take random values as input.' },
  ],
};

module.exports = defineConfig([
  { ignores: ['dist/', 'build/', 'coverage/', 'docs/', '.cache/', 'test/vectors/'] },
  { linterOptions: { reportUnusedDisableDirectives: 'error' } },
  {
    files: ['**/*.js'],
    languageOptions: {
      sourceType: 'commonjs',
      globals: Object.fromEntries(
        [
          'require',
          'module',
          '__dirname',
          '__filename',
          'process',
          'console',
          'Buffer',
          'performance',
          'setTimeout',
          'clearTimeout',
          'setInterval',
          'clearInterval',
          'setImmediate',
          'clearImmediate',
          'queueMicrotask',
          'structuredClone',
          'AbortController',
          'AbortSignal',
          'TextEncoder',
          'TextDecoder',
          'WeakRef',
          'FinalizationRegistry',
          'SharedArrayBuffer',
          'Atomics',
          'gc',
          'URL',
          'globalThis',
        ].map((name) => [name, 'readonly']),
      ),
    },
    rules: {
      'no-undef': 'error',
      'no-unused-vars': 'error',
      'prefer-const': 'error',
      'no-var': 'error',
      eqeqeq: 'error',
    },
  },
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.recommended],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: __dirname } },
    rules: {
      eqeqeq: 'error',
      'no-implicit-coercion': ['error', { allow: ['!!'] }],
      '@typescript-eslint/await-thenable': 'error',
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-misused-promises': 'error',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_' }],
      '@typescript-eslint/only-throw-error': 'error',
      '@typescript-eslint/prefer-promise-reject-errors': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
    },
  },
  {
    files: ['lib/**/*.ts'],
    rules: {
      'no-console': 'error',
      '@typescript-eslint/explicit-module-boundary-types': 'error',
      '@typescript-eslint/no-restricted-imports': restrictImports(...libraryImports),
      'no-restricted-properties': [
        'error',
        { object: 'Atomics', property: 'wait', message: 'Nothing blocks the event loop.' },
      ],
    },
  },
  { files: ['lib/cli/**/*.ts'], rules: { 'no-console': 'off' } },
  {
    files: ['lib/testing/**/*.ts'],
    rules: { '@typescript-eslint/no-restricted-imports': restrictImports(noScaffold, noBinary) },
  },
  {
    files: ['lib/native/addon.ts'],
    rules: { '@typescript-eslint/no-restricted-imports': restrictImports(noScaffold, noTesting) },
  },
  {
    files: pureFiles,
    rules: {
      '@typescript-eslint/no-restricted-imports': restrictImports(
        ...libraryImports,
        noWorld,
        noNative,
        noRandom,
        noSystemClock,
      ),
      ...noClock,
      'no-restricted-syntax': [
        'error',
        { selector: 'ImportExpression', message: 'Policy loads nothing at run time.' },
        { selector: 'CallExpression[callee.name="require"]', message: 'Policy loads nothing at run time.' },
        { selector: 'MemberExpression[object.name="globalThis"]', message: 'Policy reaches no global state.' },
      ],
    },
  },
  { files: ['lib/testing/{scripted,simulated}-*.ts'], rules: noClock },
  {
    files: ['examples/**/*.ts'],
    rules: {
      '@typescript-eslint/no-restricted-imports': restrictImports({
        regex: '(?:^|/)(?:lib|dist|test)/',
        message: 'Examples are what users copy: they import the package by its name.',
      }),
    },
  },
]);
