'use strict';
// `npm run simulate -- [--worlds N] [--seed S] [--jobs J] [--fresh]`: runs the simulated worlds of seeds S … S + N - 1 and
// ends with the line `simulate: N worlds, N failed`, status 1 when one failed. An interrupted run goes on where it was
// when the same is asked of the same sources. A failing seed prints what was wrong, what happened last, and how to
// replay it.
const { fork } = require('node:child_process');
const { createHash } = require('node:crypto');
const { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } = require('node:fs');
const { availableParallelism } = require('node:os');
const { join } = require('node:path');
const { loadTypescript, root } = require('./load-typescript');

const worldsDefault = 2000;
/** Worlds that a worker gets at a time. */
const chunkSize = 25;
/** A world that takes longer than this, on a machine however busy, will never end. */
const hungMs = 600_000;
const progressFolder = join(root, '.cache', 'simulate');

function parseArguments(args) {
  if (args.includes('--help')) {
    console.log('usage: npm run simulate -- [--worlds N] [--seed S] [--jobs J] [--fresh]');
    process.exit(0);
  }
  const options = { worlds: worldsDefault, seed: 1, jobs: availableParallelism(), fresh: false };
  for (let index = 0; index < args.length; index += 1) {
    const name = args[index].replace(/^--/, '');
    if (name === 'fresh') {
      options.fresh = true;
      continue;
    }
    const value = Number(args[(index += 1)]);
    const isKnown = ['worlds', 'seed', 'jobs'].includes(name) && args[index - 1].startsWith('--');
    if (!isKnown)
      throw new Error(`simulate: expected --worlds N, --seed S, --jobs J or --fresh, got ${args[index - 1]}`);
    if (!Number.isSafeInteger(value) || value < (name === 'seed' ? 0 : 1)) {
      throw new Error(
        `simulate: --${name}: expected an integer of at least ${name === 'seed' ? 0 : 1}, got ${args[index]}`,
      );
    }
    options[name] = value;
  }
  return options;
}

/** What the sources say, so that progress under other sources is not taken for progress under these. */
function sourceDigest() {
  const hash = createHash('sha256');
  for (const folder of ['lib', 'test/simulation']) {
    const files = readdirSync(join(root, folder), { recursive: true }).filter((file) => file.endsWith('.ts'));
    for (const file of files.sort()) hash.update(file).update(readFileSync(join(root, folder, file)));
  }
  return hash.digest('hex').slice(0, 16);
}

class Progress {
  constructor({ seed, worlds, fresh }) {
    mkdirSync(progressFolder, { recursive: true });
    this.path = join(progressFolder, `seed-${seed}-worlds-${worlds}.json`);
    this.digest = sourceDigest();
    this.done = { chunks: [], failures: [] };
    if (fresh) return;
    try {
      const kept = JSON.parse(readFileSync(this.path, 'utf8'));
      if (kept.digest === this.digest) this.done = kept.done;
    } catch {
      // Nothing was kept, or not whole: the run starts from its first world.
    }
  }

  note(chunk, failures) {
    this.done.chunks.push(chunk);
    this.done.failures.push(...failures);
    writeFileSync(`${this.path}.new`, JSON.stringify({ digest: this.digest, done: this.done }));
    renameSync(`${this.path}.new`, this.path);
  }

  finish() {
    rmSync(this.path, { force: true });
  }
}

function printFailure({ seed, failure, trace }) {
  console.log(`\nseed ${seed}: ${failure}`);
  if (trace !== '') console.log(trace.replace(/^/gm, '  '));
  console.log(`replay: npm run simulate -- --seed ${seed} --worlds 1 --fresh`);
}

/** One worker process; resolves with the failures of the chunk it was given. */
class Worker {
  constructor() {
    this.start();
  }

  start() {
    this.child = fork(__filename, ['--worker'], { cwd: root });
    this.child.on('message', (message) => this.hear(message));
    this.child.on('exit', (code, signal) => this.lose(`its process ended with ${code ?? signal}`));
  }

  run(seeds) {
    return new Promise((resolve) => {
      this.resolve = resolve;
      this.left = [...seeds];
      this.failures = [];
      this.child.send(this.left);
      this.watch();
    });
  }

  hear({ seed, failure, trace }) {
    if (failure !== null) this.failures.push({ seed, failure, trace });
    this.left.shift();
    this.watch();
    if (this.left.length === 0) this.end();
  }

  watch() {
    clearTimeout(this.timer);
    if (this.left.length > 0) this.timer = setTimeout(() => this.child.kill('SIGKILL'), hungMs);
  }

  /** The world that ran when the process went is the one to blame; the rest of the chunk goes on in a new process. */
  lose(why) {
    if (this.isClosed) return;
    const [seed, ...rest] = this.left ?? [];
    this.start();
    if (seed === undefined) return;
    this.failures.push({ seed, failure: `the world never ended: ${why}`, trace: '' });
    this.left = rest;
    this.watch();
    if (rest.length === 0) this.end();
    else this.child.send(rest);
  }

  end() {
    this.resolve(this.failures);
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.child.kill();
  }
}

async function main() {
  const options = parseArguments(process.argv.slice(2));
  const progress = new Progress(options);
  const chunks = Array.from({ length: Math.ceil(options.worlds / chunkSize) }, (_, index) => index);
  const open = chunks.filter((chunk) => !progress.done.chunks.includes(chunk));
  if (open.length < chunks.length)
    console.log(`going on after ${chunks.length - open.length} of ${chunks.length} parts`);
  for (const failure of progress.done.failures) printFailure(failure);
  const workers = Array.from({ length: Math.min(options.jobs, open.length) }, () => new Worker());
  let lastWord = Date.now();
  await Promise.all(
    workers.map(async (worker) => {
      for (let chunk = open.shift(); chunk !== undefined; chunk = open.shift()) {
        const from = options.seed + chunk * chunkSize;
        const to = Math.min(from + chunkSize, options.seed + options.worlds);
        const failures = await worker.run(Array.from({ length: to - from }, (_, index) => from + index));
        progress.note(chunk, failures);
        failures.forEach(printFailure);
        if (Date.now() - lastWord > 10_000) {
          lastWord = Date.now();
          console.log(
            `${Math.min(progress.done.chunks.length * chunkSize, options.worlds)} of ${options.worlds} worlds`,
          );
        }
      }
      worker.close();
    }),
  );
  const failed = progress.done.failures.length;
  progress.finish();
  console.log(`simulate: ${options.worlds} worlds, ${failed} failed`);
  if (failed > 0) process.exitCode = 1;
}

function work() {
  // Without its parent nobody hears what it finds.
  process.on('disconnect', () => process.exit());
  loadTypescript();
  const { simulate } = require('../test/simulation/world.ts');
  process.on('message', async (seeds) => {
    for (const seed of seeds) {
      const { failure, trace } = await simulate(seed).catch((error) => ({
        failure: `threw ${error.stack}`,
        trace: '',
      }));
      process.send({ seed, failure, trace }, () => undefined);
    }
  });
}

if (process.argv[2] === '--worker') work();
else {
  main().catch((error) => {
    console.error(error.message.startsWith('simulate') ? error.message : error);
    process.exitCode = 1;
  });
}
