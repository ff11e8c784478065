'use strict';
// Where the addon of examples/llama comes from; it is no part of the package.
const { dirname, join } = require('node:path');

const llamaAddon = {
  title: "examples/llama: the example's addon",
  folder: join(dirname(__dirname), 'examples', 'llama', 'native'),
  target: 'llama_state',
  sources: '.',
};

module.exports = { llamaAddon };
