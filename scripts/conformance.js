'use strict';
// `npm run conformance -- DIR`: runs the compiled runner, after compiling the library when a source is newer than it.
// Ends with the runner's status.
const { spawnSync } = require('node:child_process');
const { readdirSync, statSync } = require('node:fs');
const { dirname, join } = require('node:path');

const root = dirname(__dirname);
const runner = join(root, 'dist', 'lib', 'cli', 'conformance.js');

function modified(path) {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}

function isStale() {
  const compiledAt = modified(runner);
  return readdirSync(join(root, 'lib'), { recursive: true })
    .filter((name) => name.endsWith('.ts'))
    .some((name) => modified(join(root, 'lib', name)) > compiledAt);
}

/** Standard output is the runner's alone, so the compiler's goes to standard error. */
function compile() {
  const tsc = require.resolve('typescript/bin/tsc');
  const { status } = spawnSync(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json')], {
    cwd: root,
    stdio: ['ignore', process.stderr.fd, 'inherit'],
  });
  if (status !== 0) {
    process.stderr.write('conformance: the sources do not compile\n');
    process.exit(2);
  }
}

if (isStale()) compile();
const { status } = spawnSync(process.execPath, [runner, ...process.argv.slice(2)], { stdio: 'inherit' });
process.exitCode = status ?? 2;
