'use strict';
// `npm test [-- jest arguments]`: builds the addon where it is missing or older than its sources, runs the suite in
// phases and ends with the line `tests: N passed, N failed, N skipped`. Fails when a test failed or none ran.
// `npm run test:llama` is this with `--llama`: the tests of examples/llama alone, which fetch an engine and a model first.
const { spawn } = require('node:child_process');
const { existsSync, mkdtempSync, readFileSync, rmSync } = require('node:fs');
const { availableParallelism, tmpdir } = require('node:os');
const { dirname, join } = require('node:path');
const { buildAddonIfStale, buildIfStale } = require('./addon-build');
const { compileIfStale } = require('./compiled-example');
const { llamaAddon } = require('./llama-addon');

const root = dirname(__dirname);
const jestBin = require.resolve('jest/bin/jest');

/** How long Jest may take to exit once its tests have ended; a handle left open holds it for ever. */
const exitGraceMs = 20_000;

// Tests that wait for other processes run one file at a time, so that neither they nor what they start are starved;
// everything else shares the processors.
const processFolders = ['cross-process', 'interop', 'lifecycle', 'gpu', 'examples'];
const packageFolders = ['package'];
/** They download; nothing else here does. */
const llamaFolders = ['llama'];
const folders = (names) => `<rootDir>/test/(${names.join('|')})/`;
const phases = [
  {
    name: 'computation',
    args: [
      `--maxWorkers=${availableParallelism()}`,
      '--testPathIgnorePatterns',
      folders([...processFolders, ...packageFolders, ...llamaFolders]),
    ],
  },
  {
    name: 'processes',
    args: ['--runInBand', '--testPathIgnorePatterns', `<rootDir>/test/(?!(${processFolders.join('|')})/)`],
  },
  {
    name: 'package',
    args: ['--runInBand', '--testPathIgnorePatterns', `<rootDir>/test/(?!(${packageFolders.join('|')})/)`],
  },
];

const llamaPhases = [
  {
    name: 'llama',
    args: [
      '--runInBand',
      '--testTimeout=300000',
      '--testPathIgnorePatterns',
      `<rootDir>/test/(?!(${llamaFolders.join('|')})/)`,
    ],
  },
];

/** @throws Error that says what could not be had, and why */
async function prepareLlama() {
  compileIfStale('test:llama');
  buildIfStale(llamaAddon);
  const { provideAssets } = require(join(root, 'dist', 'examples', 'llama', 'assets.js'));
  await provideAssets(null, (line) => console.log(line));
}

async function main() {
  const isLlama = process.argv[2] === '--llama';
  const patterns = process.argv.slice(isLlama ? 3 : 2);
  const total = { passed: 0, failed: 0, skipped: 0, failures: [], leftOut: {} };
  try {
    buildAddonIfStale(root);
    if (isLlama) await prepareLlama();
    const scratch = mkdtempSync(join(tmpdir(), 'state-handoff-test-'));
    try {
      for (const phase of isLlama ? llamaPhases : phases)
        add(total, await runPhase(phase, patterns, join(scratch, `${phase.name}.json`)));
    } finally {
      rmSync(scratch, { recursive: true, force: true });
    }
  } catch (error) {
    total.failed += 1;
    total.failures.push(error.message);
  }
  report(total);
}

function add(total, count) {
  for (const key of ['passed', 'failed', 'skipped']) total[key] += count[key];
  total.failures.push(...count.failures);
  for (const [part, { reason, tests }] of Object.entries(count.leftOut)) {
    (total.leftOut[part] ??= { reason, tests: 0 }).tests += tests;
  }
}

/** Runs one phase; a Jest that leaves no count, does not exit, or disagrees with its count is itself a failure. */
async function runPhase({ name, args }, patterns, countFile) {
  console.log(`\n== ${name}`);
  const started = Date.now();
  const jest = spawn(
    process.execPath,
    [
      '--expose-gc',
      jestBin,
      '--passWithNoTests',
      '--reporters=default',
      `--reporters=${join(root, 'test', 'support', 'reporter.js')}`,
      ...args,
      ...(patterns.length === 0 ? [] : ['--', ...patterns]),
    ],
    {
      cwd: root,
      stdio: ['ignore', 'inherit', 'inherit'],
      env: { ...process.env, STATE_HANDOFF_TEST_COUNT: countFile },
    },
  );
  const { status, hung } = await ended(jest, countFile);
  console.log(`== ${name}: ${((Date.now() - started) / 1000).toFixed(0)} s`);
  const count = existsSync(countFile)
    ? JSON.parse(readFileSync(countFile, 'utf8'))
    : { passed: 0, failed: 0, skipped: 0, failures: [], leftOut: {} };
  const fail = (what) => {
    count.failed += 1;
    count.failures.push(`${name}: ${what}`);
  };
  if (hung) fail('jest did not exit after its tests: something holds the process open');
  else if (status !== 0 && count.failed === 0) fail(`jest ended with ${status}`);
  return count;
}

function ended(child, countFile) {
  return new Promise((resolve) => {
    let hung = false;
    let countedAt = null;
    const watch = setInterval(() => {
      if (countedAt === null) countedAt = existsSync(countFile) ? Date.now() : null;
      else if (Date.now() - countedAt > exitGraceMs) {
        hung = true;
        child.kill('SIGKILL');
      }
    }, 1_000);
    child.on('close', (code, signal) => {
      clearInterval(watch);
      resolve({ status: code ?? signal, hung });
    });
  });
}

function report(total) {
  if (total.failures.length > 0) console.log(`\nfailed:\n${total.failures.map((line) => `  ${line}`).join('\n')}`);
  const parts = Object.entries(total.leftOut);
  if (parts.length > 0) {
    console.log('\nleft out on this machine:');
    for (const [part, { reason, tests }] of parts) console.log(`  ${part}: ${reason} (${tests} tests)`);
  }
  const ran = total.passed + total.failed;
  if (ran === 0) console.log('\nno test ran');
  process.exitCode = ran === 0 || total.failed > 0 ? 1 : 0;
  console.log(`\ntests: ${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
}

void main();
