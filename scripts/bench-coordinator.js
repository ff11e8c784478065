'use strict';
// `npm run bench:coordinator [-- --quick] [-- --write]`: what a request costs the coordinator's process, and its router's
// memory, as a table with the machine it was measured on. `--write` puts the table into docs/coordinator.md. Ends with
// status 1 when a target is missed.
const { dirname, join } = require('node:path');
const { loadTypescript } = require('./load-typescript');
const { hardwareLine, markdownTable, replaceBetween } = require('./bench-table');

const root = dirname(__dirname);
const usage = `usage: npm run bench:coordinator [-- flags]

  --quick   fewer requests and no routing figures: some seconds
  --write   put the table into docs/coordinator.md
  --help    this`;

function parseArguments(args) {
  const options = { quick: false, write: false, help: false };
  for (const arg of args) {
    const name = arg.slice(2);
    if (!arg.startsWith('--') || !Object.hasOwn(options, name))
      throw new Error(`bench:coordinator: expected --quick, --write or --help, got ${arg}`);
    options[name] = true;
  }
  if (options.quick && options.write) throw new Error('bench:coordinator: --write takes the whole table, not --quick');
  return options;
}

async function main() {
  const options = parseArguments(process.argv.slice(2));
  if (options.help) return void console.log(usage);
  loadTypescript();
  const { run } = require(join(root, 'test', 'bench', 'coordinator', 'bench.ts'));
  const begun = performance.now();
  const note = (what) => console.error(`${((performance.now() - begun) / 1000).toFixed(0).padStart(4)} s  ${what}`);
  const rows = await run(options.quick ? 'quick' : 'whole', note);
  const table = `${hardwareLine()}\n\n${markdownTable(rows)}`;
  console.log(table);
  if (options.write) replaceBetween(join(root, 'docs', 'coordinator.md'), 'bench-coordinator', table);
  const missed = rows.filter(({ ok }) => !ok).map(({ name }) => name);
  if (missed.length > 0) console.error(`targets missed: ${missed.join('; ')}`);
  process.exitCode = missed.length > 0 ? 1 : 0;
}

main()
  .catch((error) => {
    console.error(error.message.startsWith('bench') ? error.message : error);
    process.exitCode = 2;
  })
  .finally(() => process.exit());
