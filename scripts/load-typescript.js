'use strict';
// Lets `require` load the project's TypeScript as it lies there, compiled in memory by swc without type checks. A caller
// can change the text of a file on its way in: that is how planted faults are tried without touching the tree.
const { existsSync, readFileSync } = require('node:fs');
const Module = require('node:module');
const { dirname, join, relative } = require('node:path');
const { transformSync } = require('@swc/core');

const root = dirname(__dirname);

/** @param {(path: string, text: string) => string} [edit] - gets a path relative to the project and the source text */
function loadTypescript(edit = (_path, text) => text) {
  const resolve = Module._resolveFilename;
  // Sources import `./noun.js`, as the compiled files will; beside them lies `noun.ts`.
  Module._resolveFilename = function (request, parent, ...rest) {
    if (/^\.{1,2}\/.*\.js$/.test(request) && parent?.filename !== undefined) {
      const source = join(dirname(parent.filename), `${request.slice(0, -3)}.ts`);
      if (existsSync(source)) return source;
    }
    return resolve.call(this, request, parent, ...rest);
  };
  Module._extensions['.ts'] = function (module, filename) {
    const text = edit(relative(root, filename), readFileSync(filename, 'utf8'));
    const { code } = transformSync(text, {
      filename,
      jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
      module: { type: 'commonjs' },
      sourceMaps: 'inline',
    });
    module._compile(code, filename);
  };
  process.setSourceMapsEnabled(true);
}

module.exports = { loadTypescript, root };
