'use strict';
// `node scripts/simulate-coordinator.js [--worlds N] [--seed S] [--fault I]`: runs simulated control planes around the
// coordinator's core, seeds S … S + N - 1, and ends with `simulate-coordinator: N worlds, N failed`, status 1 when one
// failed. With `--fault I` the I-th planted fault of test/simulation/coordinator/planted-faults.ts is in the sources, and
// the first seed that finds it ends the run.
const { loadTypescript } = require('./load-typescript');

const options = { worlds: 2000, seed: 1, fault: -1 };
if (process.argv.includes('--help')) {
  console.log('usage: npm run simulate:coordinator -- [--worlds N] [--seed S] [--fault I]');
  process.exit(0);
}
for (let index = 2; index < process.argv.length; index += 2) {
  const name = process.argv[index].replace(/^--/, '');
  const value = Number(process.argv[index + 1]);
  const isKnown = process.argv[index].startsWith('--') && Object.hasOwn(options, name);
  if (!isKnown || !Number.isSafeInteger(value) || value < (name === 'worlds' ? 1 : 0)) {
    console.error(
      `simulate-coordinator: expected --worlds N, --seed S or --fault I, got ${process.argv.slice(index).join(' ')}`,
    );
    process.exit(1);
  }
  options[name] = value;
}

let fault = null;
loadTypescript((path, text) =>
  fault !== null && path === fault.file ? text.replace(fault.from, () => fault.to) : text,
);
if (options.fault >= 0)
  fault = require('../test/simulation/coordinator/planted-faults.ts').plantedFaults[options.fault];
const { simulateControl } = require('../test/simulation/coordinator/world.ts');

let failed = 0;
let worlds = 0;
for (let seed = options.seed; seed < options.seed + options.worlds; seed += 1) {
  let failure;
  try {
    failure = simulateControl(seed);
  } catch (error) {
    failure = `threw ${error.stack}`;
  }
  worlds += 1;
  if (failure === null) continue;
  failed += 1;
  console.log(`seed ${seed}: ${failure}\nreplay: node scripts/simulate-coordinator.js --worlds 1 --seed ${seed}\n`);
  if (fault !== null || failed >= 5) break;
}
console.log(`simulate-coordinator: ${worlds} worlds, ${failed} failed`);
if (failed > 0) process.exitCode = 1;
