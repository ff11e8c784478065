'use strict';
// One rank of an engine with StateHandoff over the host transport and a socket rank group, in a process of its own, moved
// step by step by a test. Each (layer, head, token) of the prompt fills its own words, so every rank can tell whether its
// part came right. Time is the test's: deadlines pass when it says so.
const { isDeepStrictEqual } = require('node:util');
const sdk = require('../../dist/lib/index.js');
const { answerRequests } = require('./answer-requests.js');

const blockSize = 4;
const poolSize = 24;
const words = 64;
const model = { layers: 2, heads: 2 };

let rank = null;
let clockMs = 0;

const word = (token, position, layer, head) =>
  (Math.imul(token + 1, 2654435761) ^ Math.imul(position + 1, 40503) ^ (layer * 64 + head * 8)) >>> 0;

class RankEngine {
  dtype = 'int32';
  blockSize = blockSize;
  maxRequests = 8;
  maxSequenceLength = 64;
  numSpeculativeTokens = 0;
  hasSsmSnapshotCache = false;
  ssm = null;
  slots = null;
  model = 'ranks';
  blocks = new sdk.BlockPool({ poolSize, generations: new sdk.Generations(poolSize) });
  running = new Map();
  /** What a test may change: the batch is full, transfers wait for earlier work, reads fail, pins fail. */
  isFull = false;
  isHeld = false;
  failsToRead = false;
  failsToPin = false;

  constructor({ tpSize, tpRank, ppSize, ppRank }) {
    this.layerStart = (model.layers / ppSize) * ppRank;
    this.layers = model.layers / ppSize;
    this.heads = model.heads / tpSize;
    this.headStart = this.heads * tpRank;
    this.strides = { dim: 1, head: words, token: words * this.heads, block: words * this.heads * blockSize };
    this.strides.layer = this.strides.block * poolSize;
    this.regions = [sdk.allocateHostRegion({ bytes: this.strides.layer * this.layers * 4 })];
    const axis = (name, size) => ({ name, size, strideBytes: this.strides[name] * 4 });
    this.kv = {
      layout: {
        ...{ numLayersGlobal: model.layers, numKvHeadsGlobal: model.heads, headDim: words, tpSize, tpRank, ppSize },
        ...{ ppRank, globalRank: ppRank * tpSize + tpRank },
        ...{ layerStart: this.layerStart, layerEnd: this.layerStart + this.layers },
      },
      layerStarts: [this.layerStart],
      buffers: [
        {
          ...{ region: 0, offsetBytes: 0, elementBytes: 4 },
          axes: [
            ...[axis('layer', this.layers), axis('block', poolSize), axis('token', blockSize)],
            ...[axis('head', this.heads), axis('dim', words)],
          ],
        },
      ],
    };
    this.memory = new Uint32Array(this.regions[0].buffer);
  }

  /** Every place of a prompt on this rank, with the word that belongs there. */
  *places(table, prompt) {
    for (const [position, token] of prompt.entries()) {
      const block = table[Math.floor(position / blockSize)];
      for (let layer = 0; layer < this.layers; layer += 1) {
        for (let head = 0; head < this.heads; head += 1) {
          const { strides } = this;
          const from =
            layer * strides.layer +
            block * strides.block +
            (position % blockSize) * strides.token +
            head * strides.head;
          const expected = word(token, position, this.layerStart + layer, this.headStart + head);
          yield { place: this.memory.subarray(from, from + words), expected };
        }
      }
    }
  }

  fill(table, prompt) {
    for (const { place, expected } of this.places(table, prompt)) place.fill(expected);
  }

  wrongWords(table, prompt) {
    let wrong = 0;
    for (const { place, expected } of this.places(table, prompt))
      for (const got of place) if (got !== expected) wrong += 1;
    return wrong;
  }

  canAdmitPrefilledDecode = () => !this.isFull && this.running.size < this.maxRequests;
  admitPrefilledDecode = (request) => void this.running.set(request.attemptId, request);
  abortRequest = (id) => void this.running.delete(id);
  isComplete = () => 'no';
  growthReserve = () => 0;
  targetQuiescent = () => (this.isHeld ? { isComplete: () => !this.isHeld } : null);
}

/** A host transport whose reads fail when the engine says so. */
class Failing extends sdk.HostTransport {
  begin(request, peer) {
    if (rank.engine.failsToRead) throw new sdk.HandoffError('TRANSFER_FAILED', 'this rank cannot read');
    return super.begin(request, peer);
  }
}

async function open({ role, instance, place, group, deadlines }) {
  const engine = new RankEngine(place);
  const clock = { now: () => clockMs };
  const handoff = new sdk.StateHandoff(engine, { instance, incarnation: 'boot-1', clock, deadlines });
  rank = { role, engine, handoff, group: null, results: {}, failures: [], read: [], errors: [] };
  handoff.on('kvReadDone', ({ source }) => rank.read.push(source));
  handoff.on('requestError', ({ requestId, error, sourceSafe }) =>
    rank.errors.push({ requestId, code: error.code, sourceSafe }),
  );
  handoff.on('engineFailed', ({ code, details }) => {
    rank.failures.push({ code, rank: details.rank });
    // The engine stops: what ran here ends with it.
    for (const attemptId of engine.running.keys()) handoff.failRequest(attemptId, new Error('the engine stopped'));
    engine.running.clear();
  });
  if (group !== null) rank.group = await sdk.SocketRankGroup.create(group);
  const transport = new Failing({ blockGenerations: engine.blocks.generations, handshakeMs: 60_000 });
  await handoff.setupKvTransfer(role, transport, { group: rank.group });
}

/** Prefill: computes a prompt and pins it; the ticket as text. Rank 0 claims it for `owner`. */
function prefill({ requestId, prompt, owner }) {
  const { engine, handoff } = rank;
  const blocks = engine.blocks.allocate(Math.ceil(prompt.length / blockSize));
  if (blocks === null) throw new Error('no room for the prompt');
  engine.fill(blocks, prompt);
  const finished = {
    ...{ requestId, promptTokens: prompt.length, blocks, slot: null, resumeTokens: [7] },
    ...{ doKvHandoff: true, returnLogProbs: false, resumeLogProbs: null },
  };
  if (engine.failsToPin) {
    engine.blocks.release(blocks);
    return null;
  }
  const ticket = handoff.captureHandoffMeta(requestId, handoff.prepareHandoffMetadataBatch([finished]));
  engine.blocks.release(blocks);
  if (owner !== null) handoff.claimHandoff(ticket.handoff, owner);
  return sdk.encodeTicket(ticket);
}

function add({ requestId, prompt, ticket }) {
  const { kvMeta, blockIds } = sdk.decodeTicket(ticket);
  rank.results[requestId] = null;
  rank.handoff.addRequestWithKvHandoff(requestId, prompt, { num_tokens_to_generate: 2 }, kvMeta, blockIds).then(
    ({ generatedTokens }) => (rank.results[requestId] = { wrong: generatedTokens[0] }),
    ({ code }) => (rank.results[requestId] = { code }),
  );
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** One step of the engine, once its frame is there. What it throws is part of the answer. */
async function step() {
  const { handoff } = rank;
  try {
    if (rank.role === 'decode') handoff.pollPendingKvImports();
    else handoff.pollPendingKvPushes();
    while (!handoff.stepReady) await turn();
    if (rank.role === 'decode') handoff.scheduleWaitingRequests(0);
    else handoff.beginStep();
    return { code: null };
  } catch ({ code, details }) {
    return { code, rank: details?.rank };
  }
}

/** Polls until `states` says where each of this rank's imports stands, or an instance failure is known. */
async function untilStates({ states }) {
  for (;;) {
    rank.handoff.pollPendingKvImports();
    const seen = Object.fromEntries(rank.handoff.inspect().imports.map(({ requestId, state }) => [requestId, state]));
    if (isDeepStrictEqual(seen, states)) return;
    await turn();
  }
}

/** Waits until the group knows that a rank is gone. */
async function untilLoss() {
  while (rank.group.failure === null) await turn();
  return rank.group.failure.details.rank;
}

/** Prefill: gives every free block to other work, which writes into it. */
function overwriteFree() {
  const { blocks, memory, strides, layers } = rank.engine;
  for (let taken = blocks.allocate(1); taken !== null; taken = blocks.allocate(1)) {
    for (let layer = 0; layer < layers; layer += 1) {
      const from = layer * strides.layer + taken[0] * strides.block;
      memory.fill(0xffffffff, from, from + strides.block);
    }
  }
}

/** Ends what runs; a result counts the words of its prompt that are wrong in this rank's memory. */
function finish() {
  const { engine, handoff } = rank;
  const wrong = {};
  for (const [attemptId, request] of engine.running) {
    wrong[request.requestId] = engine.wrongWords(request.blocks, request.prompt);
    engine.running.delete(attemptId);
    engine.blocks.release(Int32Array.from([...request.blocks, ...request.continuationBlocks]));
    const ended = { generatedLogProbs: null, cachedTokens: request.prompt.length, finishReason: 'length' };
    handoff.finishRequest(attemptId, { ...ended, generatedTokens: [wrong[request.requestId]] });
  }
  return wrong;
}

/** What must be equal on all ranks at equal log index, and what only this rank knows. */
function view() {
  const { engine, handoff, results, failures, read, errors } = rank;
  const { imports, quarantine, logIndex, step: stepIndex, pins } = handoff.inspect();
  const named = ({ requestId, blocks, continuationBlocks }) => ({ requestId, blocks, continuationBlocks });
  return {
    shared: {
      ...{ logIndex, stepIndex, imports: imports.map(named), quarantine: quarantine.map(named) },
      running: [...engine.running.values()].map(({ requestId }) => requestId),
      pool: engine.blocks.snapshot(),
    },
    states: Object.fromEntries(imports.map(({ requestId, state }) => [requestId, state])),
    free: handoff.load().blocksFree + handoff.load().blocksEvictable,
    ...{ results, failures, read, errors, pins: pins.length },
  };
}

answerRequests({
  ...{ open, prefill, add, step, untilStates, untilLoss, overwriteFree, finish, view },
  poll: () => void (rank.role === 'decode' ? rank.handoff.pollPendingKvImports() : rank.handoff.pollPendingKvPushes()),
  advance: ({ ms }) => void (clockMs += ms),
  set: (flags) => void Object.assign(rank.engine, flags),
  release: ({ refs }) => {
    for (const ref of refs) rank.handoff.releaseHandoffBlocks(ref);
  },
  attestDead: ({ instance }) => rank.handoff.attestInstanceDead(instance, 'boot-1'),
});
