'use strict';
// A process whose worker threads read over NIXL and are terminated, or whose own end comes, with reads under way. Its
// exit status says whether it survived; run by test/lifecycle/nixl-workers.test.ts with a scenario's name.
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');
const { allocateHostRegion } = require('../../dist/lib/memory/host-region.js');
const { NixlTransport } = require('../../dist/lib/transfer/transports/nixl.js');

const bytes = 32 << 20;
const ids = Int32Array.from({ length: 1024 }, (_, i) => (i * 101) % 1024);
const blockBytes = bytes / ids.length;

function request() {
  const strides = { sourceBlock: blockBytes, targetBlock: blockBytes, sourceSub: 0, targetSub: 0 };
  const rectangle = {
    ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: ids.length },
    ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: blockBytes, loops: [] },
  };
  const program = { rectangles: [rectangle], tables: [{ source: ids, target: ids, strides }] };
  return { programs: [program], generations: null, tag: 'worker' };
}

async function opened(exports) {
  const transport = new NixlTransport({ exports });
  transport.register(allocateHostRegion({ bytes }));
  await transport.open();
  return transport;
}

/** Transfers that follow each other for ever. */
async function pullForEver(grant, onFirst) {
  const transport = await opened(false);
  const peer = transport.connect(grant);
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
}

function workerPulling(grant, how) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(__filename, { workerData: { grant, how } });
    worker.once('message', () => resolve(worker));
    worker.once('exit', () => resolve(worker));
    worker.once('error', reject);
  });
}

const scenarios = {
  /** Workers come and go; the agents that are left are the exporter's one. */
  terminate: async () => {
    const exporter = await opened(true);
    const grant = exporter.grant();
    for (let round = 0; round < 3; round += 1) {
      const workers = await Promise.all([workerPulling(grant, 'pull'), workerPulling(grant, 'pull')]);
      await Promise.all(workers.map((worker) => worker.terminate()));
      // Also one that is terminated as it starts.
      await new Worker(__filename, { workerData: { grant, how: 'pull' } }).terminate();
    }
    const { agents } = exporter.counters;
    await exporter.close();
    process.stdout.write(JSON.stringify({ agents }));
  },
  /** A worker ends by itself with reads under way. */
  workerExit: async () => {
    const exporter = await opened(true);
    await workerPulling(exporter.grant(), 'exit');
    await exporter.close();
    process.stdout.write('over');
  },
  /** The process exits with reads under way. */
  exit: async () => {
    const exporter = await opened(true);
    await pullForEver(exporter.grant(), () => process.exit(7));
  },
  /** Nothing but an open transport: it must not hold the process. */
  idle: async () => {
    await opened(true);
  },
};

if (isMainThread) {
  void scenarios[process.argv[2]]();
} else {
  const { grant, how } = workerData;
  void pullForEver(grant, how === 'pull' ? () => parentPort.postMessage('pulling') : () => process.exit(0));
}
