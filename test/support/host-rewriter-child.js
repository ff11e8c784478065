'use strict';
// A source that lets go of its blocks all the time: advances a block's generation, rewrites the block, and so on for
// ever. Between two rewrites it answers requests for tickets, as a prefill engine does.
const { allocateHostRegion } = require('../../dist/lib/memory/host-region.js');
const { addon } = require('../../dist/lib/native/addon.js');
const { HostTransport } = require('../../dist/lib/transfer/transports/host.js');
const { answerRequests } = require('./answer-requests.js');

const { NativeGenerations } = addon();
let blocks = null;

const pattern = (id, generation) => Math.imul(Number(generation) * 1000 + id + 1, 2654435761) >>> 0;

function write(id) {
  const { words, wordsPerBlock, generations } = blocks;
  words.fill(pattern(id, generations.get(id)), id * wordsPerBlock, (id + 1) * wordsPerBlock);
}

function rewriteForEver() {
  for (let each = 0; each < blocks.rewritesPerTurn; each += 1) {
    const id = Math.floor(Math.random() * blocks.count);
    blocks.generations.advance(Int32Array.of(id));
    write(id);
  }
  setImmediate(rewriteForEver);
}

answerRequests({
  open({ count, blockBytes, rewritesPerTurn }) {
    const region = allocateHostRegion({ bytes: count * blockBytes });
    const generations = new NativeGenerations(count);
    const slots = new NativeGenerations(2);
    const words = new Uint32Array(region.buffer);
    blocks = { count, words, wordsPerBlock: blockBytes / 4, generations, slots, rewritesPerTurn };
    for (let id = 0; id < count; id += 1) write(id);
    const transport = new HostTransport({
      handshakeMs: 60_000,
      blockGenerations: { native: generations, count },
      slotGenerations: { native: slots, count: 2 },
    });
    transport.register(region);
    if (rewritesPerTurn > 0) setImmediate(rewriteForEver);
    return { grant: transport.grant(), detectsLateReads: transport.capabilities.detectsLateReads };
  },
  /** The generations of `ids` now, and the word that fills each block. */
  ticket({ ids }) {
    const generations = BigUint64Array.from(ids, (id) => blocks.generations.get(id));
    return { generations, words: Array.from(ids, (id, at) => pattern(id, generations[at])) };
  },
  advance({ ids }) {
    blocks.generations.advance(Int32Array.from(ids));
    for (const id of ids) write(id);
  },
  advanceSlot({ slot }) {
    blocks.slots.advance(Int32Array.of(slot));
  },
});
