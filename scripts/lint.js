'use strict';
// `npm run lint [-- --fix]`: ESLint, Prettier, clang-format and knip (dead files, exports and dependencies) over the whole tree, each run to its end so that one
// call shows everything. `--fix` writes what the tools can mend themselves.
const { spawnSync } = require('node:child_process');
const { readdirSync } = require('node:fs');
const { dirname, join } = require('node:path');

const root = dirname(__dirname);
const fix = process.argv.includes('--fix');

function nativeSources(folder) {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return entry.name === 'build' ? [] : nativeSources(path);
    return /\.(?:h|cc|cu|cuh)$/.test(entry.name) ? [path] : [];
  });
}

const tool = (...path) => join(root, 'node_modules', ...path);
const tools = [
  ['eslint', [tool('eslint', 'bin', 'eslint.js'), '.', '--max-warnings=0', ...(fix ? ['--fix'] : [])]],
  ['prettier', [tool('prettier', 'bin', 'prettier.cjs'), '.', '--log-level=warn', fix ? '--write' : '--check']],
  [
    'clang-format',
    [
      tool('clang-format', 'index.js'),
      ...(fix ? ['-i'] : ['--dry-run', '--Werror']),
      ...['cuda', 'examples'].flatMap(nativeSources),
    ],
  ],
  ['knip', [tool('knip', 'bin', 'knip.js'), '--no-progress', '--no-config-hints']],
];

const failed = tools.filter(([name, args]) => {
  const started = Date.now();
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  console.log(`${name}: ${status === 0 ? 'clean' : 'FAILED'} (${((Date.now() - started) / 1000).toFixed(1)} s)`);
  return status !== 0;
});
if (failed.length > 0) {
  console.log(
    `lint failed: ${failed.map(([name]) => name).join(', ')}; \`npm run lint -- --fix\` mends what a tool can mend`,
  );
  process.exitCode = 1;
}
