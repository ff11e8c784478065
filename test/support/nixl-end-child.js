'use strict';
// One end of the NIXL transport in a process of its own: exports a region filled from a seed, or pulls from one.
const { readdirSync } = require('node:fs');
const { allocateHostRegion } = require('../../dist/lib/memory/host-region.js');
const { NixlTransport } = require('../../dist/lib/transfer/transports/nixl.js');
const { answerRequests } = require('./answer-requests.js');

let end = null;

/** Word i of a region filled from `seed`. */
const word = (seed, i) => Math.imul(i + seed, 2654435761) >>> 0;

async function open({ bytes, seed, options = {} }) {
  const region = allocateHostRegion({ bytes });
  const words = new Uint32Array(region.buffer);
  if (seed !== null) for (let i = 0; i < words.length; i += 1) words[i] = word(seed, i);
  const transport = new NixlTransport(options);
  transport.register(region);
  await transport.open();
  end = { region, words, transport };
  return transport.grant();
}

async function close() {
  await end.transport.close();
  end.region.close();
}

/** Pulls the whole region in blocks, for ever; for being killed. */
async function pullForEver({ grant, blockBytes }) {
  const { region, transport } = end;
  const ids = Int32Array.from({ length: region.byteLength / blockBytes }, (_, i) => i);
  const strides = { sourceBlock: blockBytes, targetBlock: blockBytes, sourceSub: 0, targetSub: 0 };
  const rectangle = {
    ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: ids.length },
    ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: blockBytes, loops: [] },
  };
  const program = { rectangles: [rectangle], tables: [{ source: ids, target: ids, strides }] };
  const peer = transport.connect(grant);
  for (;;) {
    const handle = transport.begin({ programs: [program], generations: null, tag: 'pull' }, peer);
    while (['active', 'failed-active'].includes(handle.poll())) await new Promise((resolve) => setImmediate(resolve));
    transport.takeChanged();
    if (handle.error !== null) return;
  }
}

answerRequests({
  open,
  close,
  pullForEver: (values) => void pullForEver(values),
  counters: () => end.transport.counters,
  threads: () => readdirSync('/proc/self/task').length,
  exit: ({ code }) => void setImmediate(() => process.exit(code)),
});
