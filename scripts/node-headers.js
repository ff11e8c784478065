'use strict';
// Where Node's headers lie beside its binary, so that node-gyp need not download them; null when they do not.
const { existsSync, readFileSync, realpathSync } = require('node:fs');
const { dirname, join } = require('node:path');

function nodeHeadersRoot() {
  const root = dirname(dirname(realpathSync(process.execPath)));
  const header = join(root, 'include', 'node', 'node_version.h');
  if (!existsSync(header)) return null;
  const text = readFileSync(header, 'utf8');
  const number = (name) => new RegExp(`#define NODE_${name}_VERSION (\\d+)`).exec(text)?.[1];
  const version = `v${number('MAJOR')}.${number('MINOR')}.${number('PATCH')}`;
  return version === process.version ? root : null;
}

module.exports = { nodeHeadersRoot };
