'use strict';
// `npm run simulate:planted [-- --worlds N] [--only TEXT]`: plants each fault of test/simulation/planted-faults.ts on its
// own and prints the first of seeds 1 … N (default 2,000) that finds it, and how. A find counts when the same seed passes
// without the fault. Status 1 when a fault is not found or no longer fits its file.
const { fork } = require('node:child_process');
const { readFileSync } = require('node:fs');
const { availableParallelism } = require('node:os');
const { join } = require('node:path');
const { loadTypescript, root } = require('./load-typescript');

const worldsDefault = 2000;
/** A fault may make a world run for ever; that is a find too. */
const hungMs = 60_000;
const list = '../test/simulation/planted-faults.ts';

function parseArguments(args) {
  if (args.includes('--help')) {
    console.log('usage: npm run simulate:planted -- [--worlds N] [--only TEXT]');
    process.exit(0);
  }
  const options = { worlds: worldsDefault, only: '' };
  for (let index = 0; index < args.length; index += 2) {
    const [name, value] = [args[index], args[index + 1]];
    if (name === '--only' && value !== undefined) options.only = value;
    else if (name === '--worlds' && Number.isSafeInteger(Number(value)) && Number(value) > 0)
      options.worlds = Number(value);
    else throw new Error(`simulate: expected --worlds N or --only TEXT, got ${args.slice(index).join(' ')}`);
  }
  return options;
}

/** How often the text to replace occurs; once is what it takes. */
function occurrences({ file, from }) {
  return readFileSync(join(root, file), 'utf8').split(from).length - 1;
}

/** Runs seeds `from` … `to` in a process of its own, with a fault or without; resolves with the first that fails. */
function firstFailure(faultIndex, from, to) {
  return new Promise((resolve) => {
    const child = fork(__filename, ['--worker', String(faultIndex), String(from), String(to)], {
      cwd: root,
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    });
    let seed = from;
    let timer;
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => child.kill('SIGKILL'), hungMs);
    };
    const end = (result) => {
      clearTimeout(timer);
      child.removeAllListeners();
      child.kill();
      resolve(result);
    };
    watch();
    child.on('message', (message) => {
      if (message.failure !== null) return end(message);
      seed = message.seed + 1;
      if (message.seed === to) return end(null);
      watch();
    });
    child.on('exit', () => end({ seed, failure: 'the world never ended, or its process did' }));
  });
}

async function find(fault, index, worlds) {
  const count = occurrences(fault);
  if (count !== 1) return { ...fault, found: null, how: `its text occurs ${count} times in ${fault.file}` };
  for (let from = 1; from <= worlds;) {
    const hit = await firstFailure(index, from, worlds);
    if (hit === null) break;
    if ((await firstFailure(-1, hit.seed, hit.seed)) === null) return { ...fault, found: hit.seed, how: hit.failure };
    from = hit.seed + 1;
  }
  return { ...fault, found: null, how: `not found in ${worlds} worlds` };
}

async function main() {
  const options = parseArguments(process.argv.slice(2));
  loadTypescript();
  const { plantedFaults } = require(list);
  const wanted = [...plantedFaults.entries()].filter(([, { name }]) => name.includes(options.only));
  const results = [];
  const waiting = [...wanted];
  await Promise.all(
    Array.from({ length: availableParallelism() }, async () => {
      for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
        const [index, fault] = next;
        results[index] = await find(fault, index, options.worlds);
      }
    }),
  );
  const done = results.filter((result) => result !== undefined);
  for (const { name, file, found, how } of done) {
    console.log(
      `${found === null ? '     missed' : String(found).padStart(11)}  ${name} (${file})\n${' '.repeat(13)}${how.split('\n')[0].slice(0, 160)}`,
    );
  }
  const missed = done.filter(({ found }) => found === null).length;
  console.log(`simulate:planted: ${done.length} faults, ${done.length - missed} found, ${missed} missed`);
  if (missed > 0 || done.length === 0) process.exitCode = 1;
}

async function work([faultIndex, from, to]) {
  // Without its parent nobody hears what it finds.
  process.on('disconnect', () => process.exit());
  let fault = null;
  loadTypescript((path, text) =>
    fault !== null && path === fault.file ? text.replace(fault.from, () => fault.to) : text,
  );
  fault = require(list).plantedFaults[faultIndex] ?? null;
  const { simulate } = require('../test/simulation/world.ts');
  for (let seed = from; seed <= to; seed += 1) {
    const { failure } = await simulate(seed).catch((error) => ({ failure: `threw ${error.message}` }));
    await new Promise((resolve) => process.send({ seed, failure }, resolve));
  }
}

if (process.argv[2] === '--worker') void work(process.argv.slice(3).map(Number));
else {
  main().catch((error) => {
    console.error(error.message.startsWith('simulate') ? error.message : error);
    process.exitCode = 1;
  });
}
