'use strict';
// Sources run through swc without type checks; `npm run typecheck` does those.
/** @type {import('jest').Config} */
module.exports = {
  rootDir: __dirname,
  testEnvironment: 'node',
  globalSetup: '<rootDir>/test/support/global-setup.ts',
  testMatch: ['<rootDir>/test/**/*.test.ts'],
  transform: {
    '^.+\\.ts$': [
      '@swc/jest',
      {
        jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
        module: { type: 'commonjs' },
        sourceMaps: 'inline',
      },
    ],
  },
  moduleNameMapper: {
    '^state-handoff$': '<rootDir>/lib/index.ts',
    '^state-handoff/coordinator$': '<rootDir>/lib/coordinator.ts',
    '^state-handoff/metrics$': '<rootDir>/lib/metrics.ts',
    '^state-handoff/testing$': '<rootDir>/lib/testing/index.ts',
    '^(\\.{1,2}/.*)\\.js$': '$1',
  },
  modulePathIgnorePatterns: ['<rootDir>/dist/', '<rootDir>/build/'],
  testTimeout: 60000,
};
