'use strict';
// One rank of an engine over GPU memory in a process of its own, with its links to the other ranks. The rank that leads
// its instance takes prompts or handoffs; `alone` computes in host memory without any handoff, for comparison.
const { createHash } = require('node:crypto');
const { encodeTicket, NcclTransport, StateHandoff } = require('../../dist/lib/index.js');
const sdk = require('../../dist/examples/engine/index.js');
const { answerRequests } = require('./answer-requests.js');

const limits = { maxRequests: 4, maxSequenceLength: 200, recordLogits: true, prefillChunk: 16 };
const modelOf = ({ kind, proposals = 0 }) => sdk.smallModel(kind, { numSpeculativeTokens: proposals });
const memoryOf = ({ layout = {}, blockSize = 4 }) => ({ ...layout, blockSize, poolSize: 96, maxRequests: 4 });

let end = null;

async function open({ role, ranks, device, backend, instance, ...setting }) {
  const model = modelOf(setting);
  const links = await sdk.openRankLinks(sdk.rankShape(ranks.shape), ranks.rank, ranks.world, ranks.secret);
  const { place, peers, group } = links;
  const slice = sdk.rankSlice(model, place.parallelism);
  const memory = sdk.cudaMemory({ ...memoryOf(setting), model, device, slice });
  const engine = new sdk.CudaEngine({ ...limits, role, model, ranks: { place, peers } }, memory);
  const handoff = new StateHandoff(engine, { instance, incarnation: ranks.world });
  engine.attachHandoff(handoff);
  const tickets = new Map();
  const onTicket = ({ requestId }, ticket) =>
    tickets.get(requestId)({ text: encodeTicket(ticket), ref: ticket.handoff });
  const loop = new sdk.RankLoop({ engine, handoff, place, peers, onTicket });
  end = { engine, handoff, loop, links, setting, tickets, handoffs: new Map(), failures: [] };
  handoff.on('warning', ({ message, error }) => end.failures.push(`${message}: ${error}`));
  handoff.on('wake', () => poke());
  handoff.on('engineFailed', ({ code }) => end.failures.push(code));
  handoff.on('requestError', ({ error }) => end.failures.push(error.code));
  handoff.on('kvTransferReady', (notice) => end.handoffs.get(notice.requestId).onReady(notice));
  const unpacked = () => new NcclTransport({ pushes: role === 'prefill', packed: false });
  await handoff.setupKvTransfer(role, backend === 'nccl, unpacked' ? unpacked() : backend, { group });
  sdk.runTurns(loop, handoff, links.wakeUp, place.isLeader).catch(({ code }) => end.failures.push(code));
}

function poke() {
  end.loop.wake();
  end.links.wakeUp.poke();
}

const samplingOf = (count) => ({ num_tokens_to_generate: count });
const digest = (row) =>
  createHash('sha256')
    .update(new Uint8Array(row.buffer, row.byteOffset, row.byteLength))
    .digest('hex');
const outcome = ({ generatedTokens, extra }) => ({
  tokens: [...generatedTokens],
  logits: extra.logits.filter((row) => row !== null).map(digest),
});

/** Computes a prompt up to its ticket. */
async function prefill({ requestId, text, count }) {
  const ticket = new Promise((resolve) => end.tickets.set(requestId, resolve));
  const samplingParams = { ...samplingOf(count), do_kv_handoff: true };
  void end.loop.submit({ requestId, prompt: sdk.encode(text), samplingParams });
  poke();
  return ticket;
}

/** Begins to take a handoff over; `ready` and `ended` tell the rest. */
function take({ requestId, text, count, ticket }) {
  const handoff = { onReady: null, ready: null, ended: null };
  handoff.ready = new Promise((resolve) => (handoff.onReady = resolve));
  end.handoffs.set(requestId, handoff);
  const request = { requestId, prompt: sdk.encode(text), samplingParams: samplingOf(count), ticket };
  handoff.ended = end.loop.takeOver(request).then(outcome, ({ code, message }) => ({ error: code, message }));
  poke();
}

/** What the source must be told; null when it need not be told anything. */
async function ready({ requestId }) {
  const { ready: told, ended } = end.handoffs.get(requestId);
  const notice = await Promise.race([told, ended.then(() => null)]);
  return notice === null ? null : { cachedPrefixBlocks: notice.cachedPrefixBlocks };
}

function push({ ref, target, cachedPrefixBlocks }) {
  const { metas, ...decode } = target;
  end.handoff.pushHandoffKv(ref, metas, cachedPrefixBlocks, decode);
  poke();
}

function identity() {
  const { instance, incarnation } = end.handoff.inspect();
  return { instance, incarnation, metas: end.handoff.instanceMeta };
}

function settled() {
  const { pins, quarantine, imports } = end.handoff.inspect();
  const { blocksUsable, blocksFree, blocksEvictable } = end.handoff.load();
  return pins.length + quarantine.length + imports.length + (blocksUsable - blocksFree - blocksEvictable) === 0;
}

async function alone({ text, count }) {
  const { setting } = end;
  const model = modelOf(setting);
  const memory = sdk.nativeMemory({ ...memoryOf({ blockSize: setting.blockSize }), model });
  const engine = new sdk.Engine({ ...limits, role: 'both', model, memory });
  const prompt = Int32Array.from(sdk.encode(text));
  const done = engine.addRequest({ requestId: 'alone', prompt, samplingParams: samplingOf(count) });
  while (engine.hasWork) engine.step();
  return outcome(await done);
}

answerRequests({
  ...{ open, prefill, take, ready, push, identity, alone },
  ended: ({ requestId }) => end.handoffs.get(requestId).ended,
  release: ({ ref }) => {
    end.loop.release(ref);
    poke();
  },
  attestDead: ({ instance, incarnation }) => {
    end.handoff.attestInstanceDead(instance, incarnation);
    poke();
  },
  /** Resolves when nothing of any handoff is left on this rank. */
  untilSettled: async () => {
    while (!settled()) {
      poke();
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
  },
  failures: () => end.failures.splice(0),
});
