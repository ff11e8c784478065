'use strict';
// Builds the addon in place when it is missing or older than its sources. `npm install` builds it afresh
// (scripts/install.js); this keeps it in step while one works on cuda/.
const { spawnSync } = require('node:child_process');
const { existsSync, readdirSync, statSync, utimesSync } = require('node:fs');
const { availableParallelism } = require('node:os');
const { join } = require('node:path');
const { nodeHeadersRoot } = require('./node-headers');

/** Newest modification of any file below `path`, in ms; what was built there does not count. */
function newest(path) {
  const status = statSync(path);
  if (!status.isDirectory()) return status.mtimeMs;
  return readdirSync(path)
    .filter((name) => name !== 'build')
    .reduce((time, name) => Math.max(time, newest(join(path, name))), 0);
}

/** @throws Error when the addon does not build */
function buildAddonIfStale(root) {
  buildIfStale({ title: 'state-handoff: the native addon', folder: root, target: 'state_handoff', sources: 'cuda' });
}

/**
 * @param {object} options
 * @param {string} options.folder - where binding.gyp lies
 * @param {string} options.target - its target's name
 * @param {string} options.sources - folder of the sources, from there
 */
function buildIfStale({ title, folder, target, sources }) {
  const binary = join(folder, 'build', 'Release', `${target}.node`);
  const recipe = newest(join(folder, 'binding.gyp'));
  const built = existsSync(binary) ? statSync(binary).mtimeMs : 0;
  if (built >= Math.max(recipe, newest(join(folder, sources)))) return;
  process.stderr.write(`${title} is ${built === 0 ? 'missing' : 'older than its sources'}; building it\n`);
  const makefile = join(folder, 'build', 'Makefile');
  const configured = existsSync(makefile) && statSync(makefile).mtimeMs >= recipe;
  const headers = nodeHeadersRoot();
  const args = [
    require.resolve('node-gyp/bin/node-gyp.js'),
    configured ? 'build' : 'rebuild',
    '--silent',
    `--jobs=${availableParallelism()}`,
    ...(headers === null ? [] : [`--nodedir=${headers}`]),
  ];
  const started = new Date();
  const { status } = spawnSync(process.execPath, args, {
    cwd: folder,
    stdio: ['ignore', process.stderr.fd, 'inherit'],
  });
  if (status !== 0) throw new Error("the native addon did not build; the compiler's messages are above");
  // A header that no source includes leaves the binary as old as it was; it is up to date all the same.
  utimesSync(binary, started, started);
}

module.exports = { buildAddonIfStale, buildIfStale };
