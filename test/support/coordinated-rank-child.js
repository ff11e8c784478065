'use strict';
// One rank of the reference engine behind a coordinator, in a process of its own: in host memory, or in that of a GPU.
// A test can hold it back at several places, and have it die or tell at others. When another rank is lost, what runs here
// fails, and the SDK is polled until it knows.
const { StateHandoff } = require('../../dist/lib/index.js');
const { CoordinatedEngine } = require('../../dist/lib/coordinator.js');
const sdk = require('../../dist/examples/engine/index.js');
const { answerRequests } = require('./answer-requests.js');

const model = sdk.smallModel('hybrid');
const limits = { maxRequests: 4, maxSequenceLength: 160, prefillChunk: 16 };
const sizes = { model, blockSize: 4, poolSize: 96, maxRequests: 4 };

let rank = null;
/** `transfer`: none starts. `messages`: none is taken once a prompt is computed. `dies`: at `prompt`, or at a token's index. */
const held = { transfer: false, messages: false, dies: null };
let hasComputed = false;

const dieAt = (what) => held.dies === what && process.kill(process.pid, 'SIGKILL');
const holding = (Kind) =>
  class extends Kind {
    targetQuiescent(...target) {
      return held.transfer ? { isComplete: () => !held.transfer } : super.targetQuiescent(...target);
    }
  };

async function open({ role, backend, device, address, name, place: at, secret }) {
  const links = await sdk.openRankLinks(sdk.rankShape({ tp: at.tp }), at.rank, name, secret);
  const { place, peers, group, wakeUp } = links;
  const onToken = ({ requestId, token, index }) => {
    dieAt(index);
    rank.coordinated.partial(requestId, [token]);
  };
  const options = { ...limits, role, model, ranks: { place, peers }, onToken };
  const slice = sdk.rankSlice(model, place.parallelism);
  const engine =
    device === null
      ? new (holding(sdk.Engine))({ ...options, memory: sdk.nativeMemory({ ...sizes, slice }) })
      : new (holding(sdk.CudaEngine))(options, sdk.cudaMemory({ ...sizes, slice, device }));
  const handoff = new StateHandoff(engine, { instance: name, incarnation: 'boot-1' });
  engine.attachHandoff(handoff);
  const tickets = new Map();
  const loop = new sdk.RankLoop({
    ...{ engine, handoff, place, peers },
    onTurn: () => (held.messages && hasComputed) || rank.coordinated.drain(),
    onTicket: ({ requestId }, ticket) => tickets.get(requestId)(ticket),
  });
  const poke = () => {
    loop.wake();
    wakeUp.poke();
  };
  rank = { engine, handoff, coordinated: null, poke, failures: [], ready: 0 };
  handoff.on('wake', poke);
  handoff.on('kvTransferReady', () => (rank.ready += 1));
  handoff.on('engineFailed', ({ code }) => rank.failures.push(code));
  await handoff.setupKvTransfer(role, backend, { group });
  rank.coordinated = await CoordinatedEngine.connect({
    ...{ handoff, address, connectMs: 60_000, onMessage: poke },
    prefill: async ({ requestId, prompt, samplingParams }) => {
      dieAt('prompt');
      const ticket = new Promise((resolve) => tickets.set(requestId, resolve));
      await engine.addRequest({ requestId, prompt, samplingParams });
      hasComputed = true;
      return place.isLeader ? ticket : null;
    },
  });
  sdk.runTurns(loop, handoff, wakeUp, place.isLeader).catch(stop);
}

/** The ranks cannot go on together: nothing is computed any more. The SDK has its turns until it knows that, too. */
function stop(error) {
  const { handoff, engine, coordinated } = rank;
  for (const { attemptId, state } of handoff.inspect().imports)
    if (state === 'admitted') handoff.failRequest(attemptId, error);
  const turn = () => {
    coordinated.drain();
    if (engine.role === 'decode') handoff.pollPendingKvImports();
    else handoff.pollPendingKvPushes();
    if (!handoff.stepReady) return;
    if (engine.role === 'decode') handoff.scheduleWaitingRequests(0);
    else handoff.beginStep();
  };
  setInterval(() => {
    try {
      turn();
    } catch (thrown) {
      if (thrown.code !== 'RANK_LOST') throw thrown;
    }
  }, 5);
}

async function alone({ prompt, count }) {
  const engine = new sdk.Engine({ ...limits, role: 'both', model, memory: sdk.nativeMemory(sizes) });
  const samplingParams = { num_tokens_to_generate: count, temperature: 0 };
  const done = engine.addRequest({ requestId: 'alone', prompt: Int32Array.from(prompt), samplingParams });
  while (engine.hasWork) engine.step();
  return [...(await done).generatedTokens];
}

answerRequests({
  ...{ open, alone },
  set: (flags) => {
    Object.assign(held, flags);
    rank.poke();
  },
  state: () => {
    const { handoff, coordinated, failures, ready } = rank;
    const { pins, imports, quarantine } = handoff.inspect();
    const { blocksUsable, blocksFree, blocksEvictable } = handoff.load();
    return {
      ...{ failures, ready, isRegistered: coordinated.isRegistered, pushes: handoff.pendingKvPushCount },
      ...{ pins: pins.length, imports: imports.map(({ state }) => state), quarantine: quarantine.length },
      blocksHeld: blocksUsable - blocksFree - blocksEvictable,
    };
  },
});
