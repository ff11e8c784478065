'use strict';
// One engine with StateHandoff over the host transport, in a process of its own, moved step by step by a test: each token
// fills a mebibyte of paged memory with its own words, so a transfer takes long enough to be killed in the middle.
const sdk = require('../../dist/lib/index.js');
const { answerRequests } = require('./answer-requests.js');

const blockSize = 4;
const poolSize = 40;
const tokenBytes = 1 << 20;
const tokenWords = tokenBytes / 4;
const blockBytes = blockSize * tokenBytes;
const axis = (name, size, strideBytes) => ({ name, size, strideBytes });

let end = null;

const word = (token, position) => Math.imul(token + 1, 2654435761) ^ position;

class BigTokens {
  dtype = 'int32';
  blockSize = blockSize;
  maxRequests = 8;
  maxSequenceLength = 144;
  numSpeculativeTokens = 0;
  hasSsmSnapshotCache = false;
  ssm = null;
  slots = null;
  model = 'big-tokens';
  blocks = new sdk.BlockPool({ poolSize, generations: new sdk.Generations(poolSize) });
  regions = [sdk.allocateHostRegion({ bytes: poolSize * blockBytes })];
  kv = {
    layout: {
      ...{ numLayersGlobal: 1, numKvHeadsGlobal: 1, headDim: tokenWords },
      ...{ tpSize: 1, tpRank: 0, ppSize: 1, ppRank: 0, globalRank: 0, layerStart: 0, layerEnd: 1 },
    },
    layerStarts: [0],
    buffers: [
      {
        ...{ region: 0, offsetBytes: 0, elementBytes: 4 },
        axes: [axis('block', poolSize, blockBytes), axis('token', blockSize, tokenBytes), axis('dim', tokenWords, 4)],
      },
    ],
  };
  words = new Uint32Array(this.regions[0].buffer);
  running = new Map();

  tokenAt(table, position) {
    const from = (table[Math.floor(position / blockSize)] * blockSize + (position % blockSize)) * tokenWords;
    return this.words.subarray(from, from + tokenWords);
  }
  canAdmitPrefilledDecode = () => this.running.size < this.maxRequests;
  admitPrefilledDecode = (request) => void this.running.set(request.attemptId, request);
  abortRequest = (id) => void this.running.delete(id);
  isComplete = () => 'no';
  growthReserve = () => 0;
  targetQuiescent = () => null;
}

async function open({ role, instance, deadlines, transport = 'host' }) {
  const engine = new BigTokens();
  const handoff = new sdk.StateHandoff(engine, { instance, deadlines });
  await handoff.setupKvTransfer(role, transport);
  end = { engine, handoff, results: new Map(), added: 0, notices: [] };
  handoff.on('kvReadDone', ({ source }) => end.notices.push(source));
  return { instance: handoff.inspect().instance, incarnation: handoff.inspect().incarnation };
}

/** Computes a prompt and pins it; the ticket as text. */
function prefill({ requestId, prompt }) {
  const { engine, handoff } = end;
  const blocks = engine.blocks.allocate(Math.ceil(prompt.length / blockSize));
  if (blocks === null) return null;
  prompt.forEach((token, position) => engine.tokenAt(blocks, position).fill(word(token, position)));
  const finished = {
    ...{ requestId, promptTokens: prompt.length, blocks, slot: null, resumeTokens: [7] },
    ...{ doKvHandoff: true, returnLogProbs: false, resumeLogProbs: null },
  };
  const ticket = handoff.captureHandoffMeta(requestId, handoff.prepareHandoffMetadataBatch([finished]));
  engine.blocks.release(blocks);
  return sdk.encodeTicket(ticket);
}

function add({ requestId, prompt, ticket }) {
  const { handoff, results } = end;
  end.added += 1;
  const { kvMeta, blockIds } = sdk.decodeTicket(ticket);
  handoff.addRequestWithKvHandoff(requestId, prompt, { num_tokens_to_generate: 4 }, kvMeta, blockIds).then(
    ({ generatedTokens }) => results.set(requestId, { wrong: generatedTokens[0] }),
    ({ code }) => results.set(requestId, { code }),
  );
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

function view() {
  const { handoff, results } = end;
  handoff.pollPendingKvImports();
  const { imports, quarantine } = handoff.inspect();
  return {
    imports: imports.map(({ requestId, state, bytesDone }) => ({ requestId, state, bytesDone })),
    quarantine: quarantine.length,
    admittable: handoff.hasAdmittableKvImport,
    results: Object.fromEntries(results),
    free: handoff.load().blocksFree + handoff.load().blocksEvictable,
  };
}

/** Polls until bytes move, or until nothing is left to wait for. */
async function untilMoving() {
  for (;;) {
    const seen = view();
    if (seen.admittable || seen.imports.length === 0 || seen.imports.some(({ bytesDone }) => bytesDone > 0))
      return seen;
    await turn();
  }
}

/** Polls, without scheduling, until an import can be admitted or none is left. */
async function untilLanded() {
  for (;;) {
    const seen = view();
    if (seen.admittable || seen.imports.length === 0) return seen;
    await turn();
  }
}

function admit() {
  end.handoff.scheduleWaitingRequests(0);
  return [...end.engine.running.values()].map(({ requestId }) => requestId);
}

/** Ends what runs; a result counts the words of its prompt that are wrong in memory. */
function finishRunning() {
  const { engine, handoff } = end;
  for (const [attemptId, request] of engine.running) {
    let wrong = 0;
    request.prompt.forEach((token, position) => {
      for (const got of engine.tokenAt(request.blocks, position)) if (got !== word(token, position) >>> 0) wrong += 1;
    });
    engine.running.delete(attemptId);
    engine.blocks.release(Int32Array.from([...request.blocks, ...request.continuationBlocks]));
    const ended = { generatedLogProbs: null, cachedTokens: request.prompt.length, finishReason: 'length' };
    handoff.finishRequest(attemptId, { ...ended, generatedTokens: [wrong] });
  }
}

/** Steps until no import is left and every request has ended. */
async function settle() {
  for (;;) {
    admit();
    finishRunning();
    await turn();
    const seen = view();
    if (seen.imports.length === 0 && end.results.size === end.added) return view();
  }
}

answerRequests({
  ...{ open, prefill, add, view, untilMoving, untilLanded, admit, settle },
  takeNotices: () => end.notices.splice(0),
  claim: ({ ticket, owner }) => end.handoff.claimHandoff(sdk.decodeTicket(ticket).handoff, owner),
  release: ({ ref }) => end.handoff.releaseHandoffBlocks(ref),
  attestDead: ({ instance, incarnation }) => end.handoff.attestInstanceDead(instance, incarnation),
  source: () => ({
    pins: end.handoff.inspect().pins.map(({ state, owner }) => ({ state, owner })),
    free: end.handoff.load().blocksFree + end.handoff.load().blocksEvictable,
  }),
});
