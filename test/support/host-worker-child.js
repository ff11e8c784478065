'use strict';
// A process whose worker threads run host transports and are terminated, or whose own end comes, with transfers under
// way. Its exit status says whether it survived; run by test/lifecycle/host-workers.test.ts with a scenario's name.
const { readdirSync } = require('node:fs');
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');
const { allocateHostRegion } = require('../../dist/lib/memory/host-region.js');
const { addon } = require('../../dist/lib/native/addon.js');
const { HostTransport } = require('../../dist/lib/transfer/transports/host.js');

const bytes = 32 << 20;
const ids = Int32Array.from({ length: 512 }, (_, i) => i);
const blockBytes = bytes / ids.length;

function request() {
  return {
    programs: [
      {
        rectangles: [
          {
            ...{ sourceRegion: 0, targetRegion: 1, table: 0, tableFrom: 0, tableCount: ids.length },
            ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: blockBytes, loops: [] },
          },
        ],
        tables: [
          {
            ...{ source: ids, target: ids },
            strides: { sourceBlock: blockBytes, targetBlock: blockBytes, sourceSub: 0, targetSub: 0 },
          },
        ],
      },
    ],
    generations: null,
    tag: 'worker',
  };
}

/** Two regions, a transport that is connected to itself, and transfers that follow each other for ever. */
function pullForEver(onFirst) {
  const transport = new HostTransport({ threads: 2, handshakeMs: 60_000 });
  for (let i = 0; i < 2; i += 1) transport.register(allocateHostRegion({ bytes }));
  const peer = transport.connect(transport.grant());
  let first = true;
  const begin = () => transport.begin(request(), peer);
  transport.onWake = () => {
    for (const handle of transport.takeChanged()) {
      if (handle.poll() !== 'done') throw handle.error;
      if (first) onFirst();
      first = false;
      begin();
    }
  };
  for (let i = 0; i < 3; i += 1) begin();
  setInterval(() => {}, 1_000); // transfers do not hold an environment open
  return transport;
}

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const threads = () => readdirSync('/proc/self/task').length;
const mapped = () => addon().debugCounters();

async function terminateLoop() {
  const before = { threads: threads(), native: mapped().threads };
  for (let round = 0; round < 8; round += 1) {
    const workers = Array.from({ length: 3 }, () => new Worker(__filename, { workerData: 'pull' }));
    await Promise.all(
      workers.map(
        (worker) =>
          new Promise((resolve, reject) => {
            worker.once('message', resolve);
            worker.once('error', reject);
          }),
      ),
    );
    await wait(round * 2);
    await Promise.all(workers.map((worker) => worker.terminate()));
    // Also one that is terminated as it starts.
    await new Worker(__filename, { workerData: 'pull' }).terminate();
  }
  const after = { threads: threads(), native: mapped().threads };
  const { mappings, regions } = mapped();
  process.stdout.write(JSON.stringify({ before, after, mappings, regions }));
}

const scenarios = {
  /** Workers come and go; the process must be as it was. */
  terminate: terminateLoop,
  /** A worker ends by itself with transfers under way. */
  workerExit: async () => {
    const worker = new Worker(__filename, { workerData: 'pullAndExit' });
    await new Promise((resolve) => worker.once('exit', resolve));
    process.stdout.write(JSON.stringify({ native: mapped().threads }));
  },
  /** The process exits with transfers under way. */
  exit: () => void pullForEver(() => process.exit(7)),
  /** An uncaught error ends the process with transfers under way. */
  crash: () =>
    void pullForEver(() => {
      throw new Error('the expected end');
    }),
  /** Nothing but an open transport: it must not hold the process. */
  idle: () => {
    const transport = new HostTransport({ handshakeMs: 60_000 });
    transport.register(allocateHostRegion({ bytes: 4096 }));
    transport.connect(transport.grant());
  },
  /** Transports that are dropped without being closed are collected, threads and all. */
  dropped: async () => {
    const { setFlagsFromString } = require('node:v8');
    setFlagsFromString('--expose-gc');
    const collect = require('node:vm').runInNewContext('gc');
    const before = threads();
    for (let round = 0; round < 5; round += 1) {
      allocateHostRegion({ bytes: 1 << 20 });
      addon().hostOpen(null, null, 2, 8);
    }
    for (let round = 0; round < 10; round += 1) {
      collect();
      await wait(5);
    }
    process.stdout.write(JSON.stringify({ threads: threads() - before, regions: mapped().regions }));
  },
};

if (isMainThread) {
  void scenarios[process.argv[2]]();
} else if (workerData === 'pull') {
  pullForEver(() => parentPort.postMessage('pulling'));
} else {
  pullForEver(() => process.exit(0));
}
