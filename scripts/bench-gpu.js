'use strict';
// `npm run bench:gpu [-- PART...]`: the tables of docs/performance.md, on standard output; the parts are the files of
// test/bench/gpu, by default all that this machine can run. `STATE_HANDOFF_GPUS=0,1` reads one GPU from another. Runs from
// a checkout and from what `npm run bundle:offline` packs.
const { existsSync } = require('node:fs');
const os = require('node:os');
const { dirname, join } = require('node:path');

const root = dirname(__dirname);
const folder = join(root, 'test', 'bench', 'gpu');
const isCompiled = existsSync(join(folder, 'cuda-ipc.js'));
if (!isCompiled) require('./load-typescript').loadTypescript();
const parts = {
  'cuda-ipc': null,
  device: null,
  nccl: process.env.STATE_HANDOFF_NCCL ? null : 'STATE_HANDOFF_NCCL names no library',
  nixl: process.env.STATE_HANDOFF_NIXL ? null : 'STATE_HANDOFF_NIXL names no library',
};
const run = (part) => require(join(folder, isCompiled ? `${part}.js` : `${part}.ts`)).run();
const { describeCuda } = require(join(root, 'dist', 'lib', 'memory', 'cuda-driver-path.js'));

const digits = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString());

async function main() {
  const { version, devices } = describeCuda();
  const asked = process.argv.slice(2);
  const unknown = asked.find((part) => !Object.hasOwn(parts, part));
  if (unknown !== undefined) throw new Error(`expected ${Object.keys(parts).join(', ')}, got ${unknown}`);
  const rows = [];
  for (const [part, missing] of Object.entries(parts)) {
    if (asked.length > 0 && !asked.includes(part)) continue;
    if (missing === null || asked.length > 0) rows.push(...(await run(part)));
    else console.error(`left out: ${part}: ${missing}`);
  }
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
