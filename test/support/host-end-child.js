'use strict';
// One end of the host transport in a process of its own: exports a region filled from a seed, or pulls from one.
const { readdirSync } = require('node:fs');
const { allocateHostRegion } = require('../../dist/lib/memory/host-region.js');
const { addon } = require('../../dist/lib/native/addon.js');
const { HostTransport } = require('../../dist/lib/transfer/transports/host.js');
const { answerRequests } = require('./answer-requests.js');

let end = null;

/** Word i of a region filled from `seed`. */
const word = (seed, i) => Math.imul(i + seed, 2654435761) >>> 0;

function open({ bytes, seed, options = {} }) {
  const region = allocateHostRegion({ bytes });
  const words = new Uint32Array(region.buffer);
  if (seed !== null) for (let i = 0; i < words.length; i += 1) words[i] = word(seed, i);
  const transport = new HostTransport({ handshakeMs: 60_000, ...options });
  transport.register(region);
  end = { region, words, transport };
  return transport.grant();
}

async function close() {
  await end.transport.close();
  end.region.close();
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Pulls the whole region and compares it with `seed`; resolves with how it ended. */
async function pull({ grant, seed }) {
  const { region, words, transport } = end;
  words.fill(0);
  const peer = transport.connect(grant);
  const one = Int32Array.of(0);
  const handle = transport.begin(
    {
      programs: [
        {
          rectangles: [
            {
              ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: 1 },
              ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: region.byteLength, loops: [] },
            },
          ],
          tables: [
            { source: one, target: one, strides: { sourceBlock: 0, targetBlock: 0, sourceSub: 0, targetSub: 0 } },
          ],
        },
      ],
      generations: null,
      tag: 'pull',
    },
    peer,
  );
  while (handle.poll() === 'active') await turn();
  transport.takeChanged();
  const error = handle.error?.code ?? null;
  let wrong = 0;
  if (error === null) for (let i = 0; i < words.length; i += 1) if (words[i] !== word(seed, i)) wrong += 1;
  peer.close();
  return { status: handle.poll(), error, wrong };
}

/** Pulls for ever; for being killed. */
async function pullForEver(values) {
  for (;;) await pull(values);
}

answerRequests({
  open,
  close,
  pull,
  pullForEver: (values) => void pullForEver(values),
  resources: () => ({
    descriptors: readdirSync('/proc/self/fd').length,
    threads: readdirSync('/proc/self/task').length,
    mappings: addon().debugCounters().mappings,
  }),
  exit: ({ code }) => void setImmediate(() => process.exit(code)),
});
