'use strict';
// `npm run bench:gpu`: the table of docs/performance.md, on standard output. `STATE_HANDOFF_GPUS=0,1` reads one GPU from
// another. Runs from a checkout and from what `npm run bundle:offline` packs.
const { existsSync } = require('node:fs');
const os = require('node:os');
const { dirname, join } = require('node:path');

const root = dirname(__dirname);
const compiled = join(root, 'test', 'bench', 'gpu', 'cuda-ipc.js');
if (!existsSync(compiled)) require('./load-typescript').loadTypescript();
const { run } = require(existsSync(compiled) ? compiled : compiled.replace(/\.js$/, '.ts'));
const { describeCuda } = require(join(root, 'dist', 'lib', 'memory', 'cuda-driver-path.js'));

const digits = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString());

async function main() {
  const { version, devices } = describeCuda();
  const rows = await run();
  const gpus = devices.map(({ name }) => name).join(' + ');
  const gpuNote = process.env.STATE_HANDOFF_GPUS ? `, GPUs ${process.env.STATE_HANDOFF_GPUS}` : ', one GPU';
  console.log(
    `${gpus}, CUDA driver ${version / 1000}, ${os.availableParallelism()} cores, Linux ${os.release()}, Node ${process.version}${gpuNote}\n`,
  );
  const cells = [
    ['what', 'measured', 'against', 'ratio', 'target', 'met'],
    ['---', '---', '---', '---', '---', '---'],
    ...rows.map(({ name, value, unit, against, ratio, target, ok }) => [
      name,
      `${digits(value)} ${unit}`,
      against ?? '',
      ratio === null ? '' : digits(ratio),
      target ?? '',
      ok ? 'yes' : '**no**',
    ]),
  ];
  for (const row of cells) console.log(`| ${row.join(' | ')} |`);
  const missed = rows.filter(({ ok }) => !ok).map(({ name }) => name);
  if (missed.length > 0) console.error(`targets missed: ${missed.join('; ')}`);
  process.exitCode = missed.length > 0 ? 1 : 0;
}

main().catch((error) => {
  console.error(`bench: ${error.message}`);
  process.exitCode = 1;
});
