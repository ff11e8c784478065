'use strict';
// A process whose worker threads make pools and hash prompts and are ended with hashing under way. Its exit status says
// whether it survived; run by test/lifecycle/memory-workers.test.ts with a scenario's name and with --expose-gc.
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');
const { computeBlockHashesAsync } = require('../../dist/lib/memory/block-hash.js');
const { BlockPool } = require('../../dist/lib/memory/block-pool.js');
const { Generations } = require('../../dist/lib/memory/generations.js');
const { SsmSlotPool } = require('../../dist/lib/memory/ssm-slot-pool.js');
const { addon } = require('../../dist/lib/native/addon.js');

const tokens = Int32Array.from({ length: 1_000_000 }, (_, i) => i);

/** Pools in use, and more prompts at once than there are threads to hash them. */
function work(onFirst) {
  const generations = new Generations(1000);
  const pool = new BlockPool({ poolSize: 1000, generations });
  const slots = new SsmSlotPool({ maxRequests: 16, generations: new Generations(16) });
  pool.allocate(500);
  slots.allocate();
  const jobs = Array.from({ length: 12 }, () => computeBlockHashesAsync(tokens, 256));
  void jobs[0].then(onFirst);
  return { generations, pool, slots, jobs };
}

async function settled() {
  for (let round = 0; round < 200; round += 1) {
    globalThis.gc();
    await new Promise((resolve) => setTimeout(resolve, 10));
    if (Object.values(addon().memoryCounters()).every((count) => count === 0)) break;
  }
  return addon().memoryCounters();
}

const scenarios = {
  async terminate() {
    for (let round = 0; round < 8; round += 1) {
      const worker = new Worker(__filename, { workerData: 'stay' });
      await new Promise((resolve) => worker.once('message', resolve));
      await worker.terminate();
    }
    console.log(JSON.stringify(await settled()));
  },
  async workerExit() {
    for (let round = 0; round < 6; round += 1) {
      const workers = [1, 2].map(() => new Worker(__filename, { workerData: 'leave' }));
      await Promise.all(workers.map((worker) => new Promise((resolve) => worker.once('exit', resolve))));
    }
    console.log(JSON.stringify(await settled()));
  },
  exit() {
    work(() => undefined);
    process.exit(7);
  },
  async dropped() {
    for (let round = 0; round < 20; round += 1) await Promise.all(work(() => undefined).jobs.slice(0, 1));
    console.log(JSON.stringify(await settled()));
  },
  async agree() {
    const answers = [1, 2].map(
      () => new Promise((resolve) => new Worker(__filename, { workerData: 'answer' }).once('message', resolve)),
    );
    const own = String(await computeBlockHashesAsync(tokens, 256));
    console.log(JSON.stringify((await Promise.all(answers)).map((answer) => answer === own)));
  },
};

const workerScenarios = {
  stay: () => void work(() => parentPort.postMessage('hashed')),
  leave: () => void work(() => process.exit(0)),
  answer: async () => parentPort.postMessage(String(await computeBlockHashesAsync(tokens, 256))),
};

if (isMainThread) scenarios[process.argv[2]]();
else workerScenarios[workerData]();
