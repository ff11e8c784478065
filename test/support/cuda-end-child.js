'use strict';
// One end of the cuda-ipc transport in a process of its own: exports a GPU region filled from a seed, or pulls from one.
const { allocateCudaRegion } = require('../../dist/lib/memory/cuda-region.js');
const { Generations } = require('../../dist/lib/memory/generations.js');
const { addon } = require('../../dist/lib/native/addon.js');
const { CudaIpcTransport } = require('../../dist/lib/transfer/transports/cuda-ipc.js');
const { answerRequests } = require('./answer-requests.js');

let end = null;

/** Word i of a region filled from `seed`. */
const word = (seed, i) => Math.imul(i + seed, 2654435761) >>> 0;

function content(bytes, seed) {
  const words = new Uint32Array(bytes / 4);
  for (let i = 0; i < words.length; i += 1) words[i] = word(seed, i);
  return new Uint8Array(words.buffer);
}

function open({ bytes, seed, device = 0, blocks = 0 }) {
  const region = allocateCudaRegion({ bytes, device });
  if (seed !== null) region.write(0, content(bytes, seed));
  const generations = blocks === 0 ? null : new Generations(blocks);
  const transport = new CudaIpcTransport(generations === null ? {} : { blockGenerations: generations });
  transport.register(region);
  end = { region, transport, generations };
  return transport.grant();
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

function begin({ grant, blockBytes, source, target, generations = null }) {
  const peer = end.transport.connect(grant);
  const table = {
    source: Int32Array.from(source),
    target: Int32Array.from(target),
    strides: { sourceBlock: blockBytes, targetBlock: blockBytes, sourceSub: 0, targetSub: 0 },
  };
  const rectangle = {
    ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: source.length },
    ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: blockBytes, loops: [] },
  };
  const claimed =
    generations === null
      ? null
      : {
          blocks: table.source,
          blockGenerations: BigUint64Array.from(generations.map(BigInt)),
          slots: new Int32Array(0),
          slotGenerations: new BigUint64Array(0),
        };
  const program = { rectangles: [rectangle], tables: [table] };
  return { peer, handle: end.transport.begin({ programs: [program], generations: claimed, tag: 'pull' }, peer) };
}

/** Pulls blocks and says how it ended, and how many words of the targets are not those of `seed`. */
async function pull(values) {
  const { peer, handle } = begin(values);
  if (values.cancel === true) handle.cancel();
  const started = Date.now();
  while (handle.poll() === 'active' && Date.now() - started < 60_000) await turn();
  end.transport.takeChanged();
  const result = { status: handle.poll(), error: handle.error?.code ?? null, message: handle.error?.message ?? null };
  peer.close();
  return { ...result, bytes: handle.bytesDone, wrong: values.seed === undefined ? null : wrongWords(values) };
}

function wrongWords({ blockBytes, source, target, seed }) {
  const bytes = new Uint8Array(end.region.byteLength);
  end.region.read(0, bytes);
  const words = new Uint32Array(bytes.buffer);
  const per = blockBytes / 4;
  let wrong = 0;
  for (let i = 0; i < source.length; i += 1) {
    for (let at = 0; at < per; at += 1) {
      if (words[target[i] * per + at] !== word(seed, source[i] * per + at)) wrong += 1;
    }
  }
  return wrong;
}

/** Pulls the same again until a pull fails; answers how many went well before. */
async function pullUntilFailure(values) {
  for (let pulls = 0; ; pulls += 1) {
    const result = await pull(values);
    if (result.status !== 'done') return { ...result, pulls };
    if (result.wrong !== 0) return { ...result, pulls };
  }
}

answerRequests({
  open,
  pull,
  pullUntilFailure,
  pullForEver: (values) => void pullUntilFailure(values),
  refill: ({ seed }) => end.region.write(0, content(end.region.byteLength, seed)),
  advance: ({ ids }) => end.generations.advance(Int32Array.from(ids)),
  counters: () => addon().debugCudaCounters(),
  async close() {
    try {
      await end.transport.close();
      end.region.close();
      return null;
    } catch (error) {
      return error.code;
    }
  },
  exit: ({ code }) => void setImmediate(() => process.exit(code)),
});
