'use strict';
// Runs an example from dist/, after compiling the library and the examples when a source is newer than what was compiled.
const { spawnSync } = require('node:child_process');
const { readdirSync, statSync } = require('node:fs');
const { dirname, join } = require('node:path');

const root = dirname(__dirname);

function modified(path) {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}

function isStale() {
  return ['lib', 'examples'].some((folder) =>
    readdirSync(join(root, folder), { recursive: true })
      .filter((name) => name.endsWith('.ts'))
      .some((name) => {
        const compiled = join(root, 'dist', folder, name.replace(/\.ts$/, '.js'));
        return modified(join(root, folder, name)) > modified(compiled);
      }),
  );
}

/** Standard output is the example's alone. Ends this process when the sources do not compile. */
function compileIfStale(title) {
  if (!isStale()) return;
  process.stderr.write(`${title}: compiling the library and the examples into dist/ (once, some seconds)\n`);
  const tsc = require.resolve('typescript/bin/tsc');
  const { status } = spawnSync(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json')], {
    cwd: root,
    stdio: ['ignore', process.stderr.fd, 'inherit'],
  });
  if (status !== 0) {
    process.stderr.write(`${title}: the sources do not compile\n`);
    process.exit(2);
  }
}

module.exports = { compileIfStale, root };
