'use strict';
// `npm run fuzz [-- INPUTS [SEED]]`: hostile frames against the control plane's codec, ten million unless told otherwise.
// Exit status 1 when one crashes it or memory grows.
const { loadTypescript } = require('./load-typescript');

loadTypescript();
const { fuzzCodec } = require('../test/support/fuzz-codec.ts');

const [inputs = '10000000', seed = '1'] = process.argv.slice(2);
const result = fuzzCodec(Number(seed), Number(inputs));
console.log(
  `fuzz: ${result.inputs} inputs of seed ${seed}, ${result.accepted} taken, the others refused; slowest ${result.slowestMs.toFixed(1)} ms, memory ${result.growthMiB.toFixed(1)} MiB more`,
);
if (result.growthMiB > 16) {
  console.error('fuzz: memory grew');
  process.exitCode = 1;
}
