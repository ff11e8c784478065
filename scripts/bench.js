'use strict';
// `npm run bench [-- --only NAME] [-- --write]`: compiles the library with test/bench, runs every file there that
// exports `run` in a process of its own, and prints one table with the machine it was measured on. `--write` puts the
// table into README.md. Ends with status 1 when a bench throws or misses its target.
const { fork, spawnSync } = require('node:child_process');
const { readdirSync } = require('node:fs');
const { dirname, join } = require('node:path');
const { buildAddonIfStale } = require('./addon-build');
const { hardwareLine, markdownTable, replaceBetween } = require('./bench-table');

const root = dirname(__dirname);
const benches = join('test', 'bench');

function parseArguments(args) {
  if (args.includes('--help')) {
    console.log('usage: npm run bench -- [--only NAME] [--write]');
    process.exit(0);
  }
  const options = { only: null, write: false };
  for (let index = 0; index < args.length; index += 1) {
    if (args[index] === '--write') options.write = true;
    else if (args[index] === '--only' && args[index + 1] !== undefined) options.only = args[(index += 1)];
    else throw new Error(`bench: expected --only NAME or --write, got ${args[index]}`);
  }
  if (options.write && options.only !== null)
    throw new Error('bench: --write takes the whole table, so it goes without --only');
  return options;
}

function compile() {
  const tsc = require.resolve('typescript/bin/tsc');
  const { status } = spawnSync(process.execPath, [tsc, '-p', join(benches, 'tsconfig.json')], {
    cwd: root,
    stdio: 'inherit',
  });
  if (status !== 0) throw new Error('bench: the sources do not compile');
}

/** Runs one compiled bench in a fresh process; resolves with its rows, or with null when the file is no bench. */
function runBench(name) {
  return new Promise((resolve, reject) => {
    const child = fork(__filename, ['--child', join(root, 'dist', benches, `${name}.js`)], {
      cwd: root,
      execArgv: ['--expose-gc'],
      serialization: 'advanced',
    });
    let answer;
    child.on('message', (message) => (answer = message));
    child.on('close', (code, signal) => {
      if (answer === undefined || code !== 0) reject(new Error(`bench ${name} ended with ${code ?? signal}`));
      else resolve(answer.rows);
    });
  });
}

async function runAsChild(path) {
  const bench = require(path);
  process.send({ rows: typeof bench.run === 'function' ? await bench.run() : null }, () => process.disconnect());
}

const rowFields = ['name', 'value', 'unit', 'against', 'ratio', 'target', 'ok'];

/** @throws Error for a row whose fields are not those of test/support/bench-row.ts */
function checkRow(bench, row) {
  const types = {
    name: 'string',
    value: 'number',
    unit: 'string',
    against: 'string',
    ratio: 'number',
    target: 'string',
    ok: 'boolean',
  };
  for (const field of rowFields) {
    const nullable = field === 'ratio' || field === 'against' || field === 'target';
    if (!(nullable && row[field] === null) && typeof row[field] !== types[field]) {
      throw new Error(`bench ${bench}: row.${field}: expected a ${types[field]}, got ${row[field]}`);
    }
  }
}

async function main() {
  const options = parseArguments(process.argv.slice(2));
  const names = readdirSync(join(root, benches))
    .filter((file) => file.endsWith('.ts') && !file.endsWith('.d.ts'))
    .map((file) => file.slice(0, -3))
    .filter((name) => options.only === null || name === options.only);
  if (names.length === 0) throw new Error(`bench: expected --only to name a file of ${benches}, got ${options.only}`);
  buildAddonIfStale(root);
  compile();
  const rows = [];
  let failed = 0;
  for (const name of names) {
    try {
      const found = await runBench(name);
      if (found === null) continue;
      console.error(`bench ${name}: ${found.length} rows`);
      found.forEach((row) => checkRow(name, row));
      rows.push(...found);
    } catch (error) {
      failed += 1;
      console.error(error.message);
    }
  }
  const table = `${hardwareLine()}\n\n${markdownTable(rows)}`;
  console.log(table);
  const missed = rows.filter(({ ok }) => !ok).map(({ name }) => name);
  if (missed.length > 0) console.error(`targets missed: ${missed.join('; ')}`);
  if (options.write && failed === 0) replaceBetween(join(root, 'README.md'), 'bench', table);
  if (failed > 0 || missed.length > 0 || rows.length === 0) process.exitCode = 1;
}

const [, , first, second] = process.argv;
const work = first === '--child' && second !== undefined ? runAsChild(second) : main();
work.catch((error) => {
  console.error(error.message.startsWith('bench') ? error.message : error);
  process.exitCode = 1;
});
