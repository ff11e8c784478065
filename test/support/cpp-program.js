'use strict';
// Builds the plain C++ test program of test/cpp with the compiler that built the addon: cuda/core, the host transport
// and the llama.cpp example's bytes, without Node. Built again only when a source is newer; used by the native tests and scripts/sanitize.js.
const { spawnSync } = require('node:child_process');
const { existsSync, mkdirSync, readdirSync, statSync } = require('node:fs');
const { join } = require('node:path');

const root = join(__dirname, '..', '..');

function filesIn(folder, pattern) {
  return readdirSync(join(root, folder))
    .filter((name) => pattern.test(name))
    .map((name) => join(root, folder, name));
}

/** Sources of the host data plane, as the addon builds them, and what examples/llama makes of an engine's state. */
function testedSources() {
  return [
    ...filesIn('cuda/core', /\.cc$/),
    ...filesIn('cuda/transport', /^(?:host_.*|nixl_pack_message)\.cc$/),
    ...filesIn('examples/llama/native', /^sequence_state\.cc$/),
  ];
}

/**
 * @param {string} name - of the build, for its folder
 * @param {string[]} flags - beyond language and warnings
 * @returns {string} path of the program
 * @throws Error with the compiler's words
 */
function buildCppProgram(name, flags) {
  const folder = join(root, 'build', 'cpp', name);
  mkdirSync(folder, { recursive: true });
  const headers = ['cuda/core', 'cuda/transport', 'examples/llama/native', 'test/cpp'].flatMap((each) =>
    filesIn(each, /\.h$/),
  );
  const newestHeader = Math.max(...headers.map((path) => statSync(path).mtimeMs), statSync(__filename).mtimeMs);
  const compiler = process.env.CXX || 'g++';
  const options = ['-std=gnu++20', '-Wall', '-Wextra', '-g', '-pthread', ...flags];
  const run = (args) => {
    const { status, stderr, error } = spawnSync(compiler, args, { encoding: 'utf8' });
    if (status !== 0) throw new Error(`${compiler} ${args.join(' ')} failed: ${error?.message ?? stderr}`);
  };
  const objects = [];
  for (const source of [...testedSources(), ...filesIn('test/cpp', /\.cc$/)]) {
    const object = join(folder, `${source.slice(root.length + 1).replace(/\W/g, '_')}.o`);
    objects.push(object);
    const built = existsSync(object) ? statSync(object).mtimeMs : 0;
    if (built < Math.max(newestHeader, statSync(source).mtimeMs)) run([...options, '-c', source, '-o', object]);
  }
  const program = join(folder, 'core-tests');
  const built = existsSync(program) ? statSync(program).mtimeMs : 0;
  if (objects.some((object) => statSync(object).mtimeMs > built)) run([...options, ...objects, '-o', program]);
  return program;
}

module.exports = { buildCppProgram };
