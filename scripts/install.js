'use strict';
// `npm install` of this package: builds the native addon from source and says what it is doing.
const { spawnSync } = require('node:child_process');
const { cpus } = require('node:os');
const { dirname, join } = require('node:path');
const { nodeHeadersRoot } = require('./node-headers');

const root = dirname(__dirname);
const headers = nodeHeadersRoot();
const gyp = require.resolve('node-gyp/bin/node-gyp.js', { paths: [root] });
const args = [gyp, 'rebuild', '--silent', `--jobs=${Math.max(1, cpus().length)}`];
if (headers !== null) args.push(`--nodedir=${headers}`);

const say = (line) => process.stdout.write(`state-handoff: ${line}\n`);
say(
  `building the native addon (C++20, ${headers === null ? 'Node headers from the download cache' : `Node headers in ${headers}`}); about half a minute`,
);
const started = Date.now();
const result = spawnSync(process.execPath, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
if (result.status !== 0) {
  say('the native addon did not build. It needs Python 3, make and a C++20 compiler (g++ 11 or clang 14, or newer).');
  say("The compiler's messages are above; `npm rebuild state-handoff` tries again.");
  process.exit(1);
}
say(
  `native addon built in ${((Date.now() - started) / 1000).toFixed(1)} s: ${join('build', 'Release', 'state_handoff.node')}`,
);
