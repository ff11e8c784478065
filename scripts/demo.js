'use strict';
// `npm run demo [-- flags]`: runs the compiled demo (examples/demo) in this process.
const { join } = require('node:path');
const { compileIfStale, root } = require('./compiled-example');

compileIfStale('demo');
require(join(root, 'dist', 'examples', 'demo', 'demo.js'));
