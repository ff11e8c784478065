'use strict';
// `npm run demo:llama [-- flags]`: builds the example's own addon where it is stale and runs the compiled demo
// (examples/llama) in this process.
const { join } = require('node:path');
const { buildIfStale } = require('./addon-build');
const { compileIfStale, root } = require('./compiled-example');
const { llamaAddon } = require('./llama-addon');

compileIfStale('demo:llama');
buildIfStale(llamaAddon);
require(join(root, 'dist', 'examples', 'llama', 'demo.js'));
