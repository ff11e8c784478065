'use strict';
// `npm run bench:benefit [-- flags]`: the reference engines on the same cores, aggregated and split into prefill and decode,
// under two mixes at several rates. Prints a table and what splitting loses; `--write` puts both and the drawing into docs.
const { writeFileSync } = require('node:fs');
const { join } = require('node:path');
const { alignedTable, hardwareLine, replaceBetween } = require('./bench-table');
const { compileIfStale, root } = require('./compiled-example');
const { loadTypescript } = require('./load-typescript');

const usage = `usage: npm run bench:benefit [-- flags]

  --engines N   engine processes of each setting, 2 to 8 (default 2)
  --seconds N   how long requests arrive at each point, 1 to 600 (default 12)
  --quick       one rate, one second: to see that it works
  --svg FILE    where the drawing goes (default: nowhere)
  --write       table, lines and drawing into docs/benefit.md and docs/benefit.svg
  --help        this`;

function parseArguments(args) {
  const options = { engines: null, seconds: null, svg: null, quick: false, write: false, help: false };
  for (let at = 0; at < args.length; at += 1) {
    const name = args[at].slice(2);
    if (!args[at].startsWith('--') || !Object.hasOwn(options, name))
      throw new Error(`bench:benefit: expected one of the flags of --help, got ${args[at]}`);
    if (options[name] !== null) options[name] = true;
    else if ((options[name] = args[(at += 1)] ?? null) === null)
      throw new Error(`bench:benefit: --${name}: expected a value, got nothing`);
  }
  for (const [name, least, most] of [
    ['engines', 2, 8],
    ['seconds', 1, 600],
  ]) {
    if (options[name] === null) continue;
    const value = Number(options[name]);
    if (!Number.isInteger(value) || value < least || value > most)
      throw new Error(`bench:benefit: --${name}: expected an integer in [${least}, ${most}], got ${options[name]}`);
    options[name] = value;
  }
  return options;
}

async function main() {
  const { engines, seconds, svg, quick, write, help } = parseArguments(process.argv.slice(2));
  if (help) return void console.log(usage);
  compileIfStale('bench:benefit');
  loadTypescript();
  const benefit = require(join(root, 'test', 'bench', 'benefit', 'bench.ts'));
  const base = quick ? benefit.quickRun : benefit.wholeRun;
  const begun = performance.now();
  const note = (what) => console.error(`${((performance.now() - begun) / 1000).toFixed(0).padStart(4)} s  ${what}`);
  const points = await benefit.run(
    { ...base, engines: engines ?? base.engines, seconds: seconds ?? base.seconds },
    note,
  );
  const lines = benefit.lossLines(points).map((line) => `- ${line}\n`);
  const text = `${hardwareLine()}\n\n${alignedTable(benefit.resultTable(points))}\nAgainst the aggregated engines:\n\n${lines.join('')}`;
  console.log(text);
  if (svg !== null) writeFileSync(svg, benefit.drawing(points));
  if (!write) return;
  replaceBetween(join(root, 'docs', 'benefit.md'), 'bench-benefit', text);
  writeFileSync(join(root, 'docs', 'benefit.svg'), benefit.drawing(points));
}

main()
  .catch((error) => {
    console.error(error.message.startsWith('bench') ? error.message : error);
    process.exitCode = 2;
  })
  .finally(() => process.exit());
