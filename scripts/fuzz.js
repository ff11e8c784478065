'use strict';
// `npm run fuzz [-- INPUTS [SEED]]`: hostile frames against the control plane's codec, ten million unless told otherwise.
// Exit status 1 when one crashes it or memory grows.
const { loadTypescript } = require('./load-typescript');

const [inputs = '10000000', seed = '1', ...more] = process.argv.slice(2);
if (inputs === '--help') {
  console.log('usage: npm run fuzz -- [INPUTS [SEED]]');
  process.exit(0);
}
const isCount = (text) => /^\d+$/.test(text) && Number.isSafeInteger(Number(text));
if (!isCount(inputs) || Number(inputs) < 1 || !isCount(seed) || more.length > 0) {
  console.error(`fuzz: expected a number of inputs and a seed, got ${process.argv.slice(2).join(' ')}`);
  process.exit(1);
}
loadTypescript();
const { fuzzCodec } = require('../test/support/fuzz-codec.ts');
const result = fuzzCodec(Number(seed), Number(inputs));
console.log(
  `fuzz: ${result.inputs} inputs of seed ${seed}, ${result.accepted} taken, the others refused; slowest ${result.slowestMs.toFixed(1)} ms, memory ${result.growthMiB.toFixed(1)} MiB more`,
);
if (result.growthMiB > 16) {
  console.error('fuzz: memory grew');
  process.exitCode = 1;
}
