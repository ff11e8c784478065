'use strict';
// The source's end of the NCCL transport in a process of its own: pushes a GPU region, filled from a seed.
const { allocateCudaRegion } = require('../../dist/lib/memory/cuda-region.js');
const { NcclTransport } = require('../../dist/lib/transfer/transports/nccl.js');
const { answerRequests } = require('./answer-requests.js');

let end = null;
const pushes = new Map();

/** Word i of a region filled from `seed`. */
const word = (seed, i) => Math.imul(i + seed, 2654435761) >>> 0;
const turn = () => new Promise((resolve) => setTimeout(resolve, 1));

async function open({ bytes, seed, device = 0, options = {} }) {
  const region = allocateCudaRegion({ bytes, device });
  if (seed !== null) {
    const words = Uint32Array.from({ length: bytes / 4 }, (_, i) => word(seed, i));
    region.write(0, new Uint8Array(words.buffer));
  }
  const transport = new NcclTransport({ pushes: true, ...options });
  transport.register(region);
  await transport.open();
  // As an engine polls its pushes when it is woken.
  transport.onWake = () => void transport.takeChanged();
  end = { region, transport, peer: null };
  return transport.grant();
}

async function connect({ grant }) {
  end.peer?.close();
  end.peer = end.transport.connect(grant);
  while (end.peer.status() === 'connecting') await turn();
  return end.peer.error?.code ?? null;
}

answerRequests({
  open,
  connect,
  /** Begins a push; `ended` tells how it went. */
  push: ({ tag, programs }) => {
    pushes.set(tag, end.transport.beginPush({ programs, generations: null, tag }, end.peer));
  },
  cancel: ({ tag }) => pushes.get(tag).cancel(),
  ended: async ({ tag }) => {
    const handle = pushes.get(tag);
    while (['active', 'failed-active'].includes(handle.poll())) {
      end.transport.takeChanged();
      await turn();
    }
    end.transport.takeChanged();
    return { status: handle.poll(), error: handle.error?.code ?? null, bytes: handle.bytesDone };
  },
  peer: () => end.peer.status(),
  close: async () => {
    await end.transport.close();
    end.region.close();
  },
});
