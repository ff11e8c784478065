'use strict';
// One end of the cuda-ipc or the nixl transport in a process of its own, over GPU memory, or host memory for a mixed pair:
// exports regions filled from a seed, or pulls from one and says what is wrong.
const { allocateCudaRegion } = require('../../dist/lib/memory/cuda-region.js');
const { Generations } = require('../../dist/lib/memory/generations.js');
const { allocateHostRegion } = require('../../dist/lib/memory/host-region.js');
const { addon } = require('../../dist/lib/native/addon.js');
const { CudaIpcTransport } = require('../../dist/lib/transfer/transports/cuda-ipc.js');
const { NixlTransport } = require('../../dist/lib/transfer/transports/nixl.js');
const { answerRequests } = require('./answer-requests.js');

const kinds = {
  'cuda-ipc': {
    make: (options) => new CudaIpcTransport(options),
    counters: () => addon().debugCudaCounters(),
    keepsPeers: false,
  },
  nixl: { make: (options) => new NixlTransport(options), counters: () => end.transport.counters, keepsPeers: true },
};
const filler = 0xee;
let end = null;

function contentOf(bytes, seed, index) {
  const words = new Uint32Array(bytes / 4);
  const from = seed + index * 7919;
  for (let i = 0; i < words.length; i += 1) words[i] = Math.imul(i + from, 2654435761);
  return new Uint8Array(words.buffer);
}

function hostRegion(bytes) {
  const region = allocateHostRegion({ bytes });
  const all = new Uint8Array(region.buffer);
  return Object.assign(region, {
    write: (at, from) => all.set(from, at),
    read: (at, to) => to.set(all.subarray(at, at + to.length)),
  });
}

/** `devices`: of each region; null for host memory. `blocks`: how many have generations. */
async function open({ transport: name, bytes, seed, devices, blocks = 0, options = {} }) {
  const regions = devices.map((device) =>
    device === null ? hostRegion(bytes) : allocateCudaRegion({ bytes, device }),
  );
  const generations = blocks === 0 ? null : new Generations(blocks);
  const claims = generations === null ? {} : { blockGenerations: generations };
  const transport = kinds[name].make({ ...options, ...claims });
  end = { kind: kinds[name], regions, transport, generations, peers: new Map(), failure: null };
  if (seed !== null) regions.forEach((region, index) => region.write(0, contentOf(bytes, seed, index)));
  for (const region of regions) transport.register(region);
  await transport.open?.();
  return transport.grant();
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

async function peerOf(grant) {
  const key = JSON.stringify(grant);
  let peer = end.peers.get(key);
  if (peer === undefined || peer.status() === 'failed') {
    peer = end.transport.connect(grant);
    if (end.kind.keepsPeers) end.peers.set(key, peer);
  }
  while (peer.status() === 'connecting') await turn();
  return peer;
}

/** Bytes that are not as the program would leave a target of `filler`s. */
function countWrong(fragments, seed) {
  const sources = end.regions.map(({ byteLength }, index) => contentOf(byteLength, seed, index));
  const expected = end.regions.map(({ byteLength }) => new Uint8Array(byteLength).fill(filler));
  for (let at = 0; at < fragments.length; at += 5) {
    const [from, source, to, target, bytes] = fragments.subarray(at, at + 5);
    expected[to].set(sources[from].subarray(source, source + bytes), target);
  }
  let wrong = 0;
  for (const [index, region] of end.regions.entries()) {
    const found = new Uint8Array(region.byteLength);
    region.read(0, found);
    if (Buffer.compare(found, expected[index]) === 0) continue;
    for (let i = 0; i < found.length; i += 1) if (found[i] !== expected[index][i]) wrong += 1;
  }
  return wrong;
}

const claimOf = (program, generations) => ({
  blocks: program.tables[0].source,
  blockGenerations: BigUint64Array.from(generations.map(BigInt)),
  slots: new Int32Array(0),
  slotGenerations: new BigUint64Array(0),
});

/**
 * Ends when the pull is quiet, or with `atDoubt` when it has failed and may still write.
 *
 * `fragments`: source region, source, target region, target and bytes of each piece of the program, for the comparison;
 * null: nothing is compared.
 */
async function pull({ grant, program, seed, fragments = null, generations = null, cancel = false, atDoubt = false }) {
  if (fragments !== null) {
    for (const region of end.regions) region.write(0, new Uint8Array(region.byteLength).fill(filler));
  }
  const peer = await peerOf(grant);
  const claims = generations === null ? null : claimOf(program, generations);
  const handle = end.transport.begin({ programs: [program], generations: claims, tag: 'pull' }, peer);
  if (cancel) handle.cancel();
  const goesOn = atDoubt ? ['active'] : ['active', 'failed-active'];
  while (goesOn.includes(handle.poll())) {
    end.transport.takeChanged();
    await turn();
  }
  end.transport.takeChanged();
  const { error } = handle;
  const result = { status: handle.poll(), error: error?.code ?? null, message: error?.message ?? null };
  if (!end.kind.keepsPeers) peer.close();
  return { ...result, bytes: handle.bytesDone, wrong: fragments === null ? null : countWrong(fragments, seed) };
}

/** Answers when one pull went well, and goes on until one fails; `failure` tells how that ended. */
async function pullOn({ fragments, seed, ...values }) {
  const first = await pull({ ...values, fragments, seed });
  const untilFailure = async () => {
    for (;;) {
      const result = await pull(values);
      // All brought the same, so that is what is there however the last one ended.
      if (result.status !== 'done') return { ...result, wrong: countWrong(fragments, seed) };
    }
  };
  end.failure = untilFailure();
  return first;
}

answerRequests({
  ...{ open, pull, pullOn },
  failure: () => end.failure,
  advance: ({ ids }) => end.generations.advance(Int32Array.from(ids)),
  counters: () => end.kind.counters(),
  async close() {
    try {
      await end.transport.close();
      for (const region of end.regions) region.close();
      return null;
    } catch (error) {
      return error.code;
    }
  },
});
