'use strict';
// One end of the NIXL transport over GPU memory in a process of its own, or over host memory for a mixed pair: exports a
// region filled from a seed, or pulls from one and says what is wrong.
const { allocateCudaRegion } = require('../../dist/lib/memory/cuda-region.js');
const { allocateHostRegion } = require('../../dist/lib/memory/host-region.js');
const { NixlTransport } = require('../../dist/lib/transfer/transports/nixl.js');
const { answerRequests } = require('./answer-requests.js');

let end = null;
const filler = 0xee;

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

const fill = (seed) =>
  end.regions.forEach((region, index) => region.write(0, contentOf(region.byteLength, seed, index)));

/** `devices`: of each region; null for host memory. */
async function open({ bytes, seed, devices, options = {} }) {
  const regions = devices.map((device) =>
    device === null ? hostRegion(bytes) : allocateCudaRegion({ bytes, device }),
  );
  const transport = new NixlTransport(options);
  end = { regions, transport, peers: new Map() };
  if (seed !== null) fill(seed);
  for (const region of regions) transport.register(region);
  await transport.open();
  return transport.grant();
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

async function peerOf(grant) {
  const key = JSON.stringify(grant);
  let peer = end.peers.get(key);
  if (peer === undefined || peer.status() === 'failed') {
    peer = end.transport.connect(grant);
    end.peers.set(key, peer);
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

/**
 * Ends when the pull is quiet, or with `atDoubt` when it has failed and may still write.
 *
 * `fragments`: source region, source, target region, target and bytes of each piece of the program, for the comparison;
 * null: nothing is compared.
 */
async function pull({ grant, program, seed, fragments = null, cancel = false, atDoubt = false }) {
  if (fragments !== null) {
    for (const region of end.regions) region.write(0, new Uint8Array(region.byteLength).fill(filler));
  }
  const peer = await peerOf(grant);
  const handle = end.transport.begin({ programs: [program], generations: null, tag: 'pull' }, peer);
  if (cancel) handle.cancel();
  const goesOn = atDoubt ? ['active'] : ['active', 'failed-active'];
  while (goesOn.includes(handle.poll())) {
    end.transport.takeChanged();
    await turn();
  }
  end.transport.takeChanged();
  const { error } = handle;
  const result = { status: handle.poll(), error: error?.code ?? null, message: error?.message ?? null };
  return { ...result, bytes: handle.bytesDone, wrong: fragments === null ? null : countWrong(fragments, seed) };
}

/** Pulls until one fails; answers how that ended, and how many went well before. */
async function pullUntilFailure(values) {
  for (let pulls = 0; ; pulls += 1) {
    const result = await pull(values);
    if (result.status !== 'done') return { ...result, pulls };
  }
}

/** Seconds of each of `rounds` pulls, after one that is not counted. */
async function time({ grant, program, rounds }) {
  const peer = await peerOf(grant);
  const seconds = [];
  for (let round = -1; round < rounds; round += 1) {
    const started = process.hrtime.bigint();
    const handle = end.transport.begin({ programs: [program], generations: null, tag: 'bench' }, peer);
    while (handle.poll() === 'active') await turn();
    if (handle.error !== null) throw handle.error;
    if (round >= 0) seconds.push(Number(process.hrtime.bigint() - started) / 1e9);
    end.transport.takeChanged();
  }
  return seconds;
}

answerRequests({
  open,
  pull,
  pullUntilFailure,
  pullForEver: (values) => void pullUntilFailure(values),
  time,
  counters: () => end.transport.counters,
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
