'use strict';
// A whole engine over GPU memory in a process of its own: prefill gives tickets, decode continues from them, and `alone`
// computes in host memory without any handoff, for comparison.
const { createHash } = require('node:crypto');
const { decodeTicket, encodeTicket, StateHandoff } = require('../../dist/lib/index.js');
const {
  CudaEngine,
  cudaMemory,
  Engine,
  encode,
  nativeMemory,
  smallModel,
} = require('../../dist/examples/engine/index.js');
const { answerRequests } = require('./answer-requests.js');

const tick = () => new Promise((resolve) => setImmediate(resolve));
const patienceMs = 60_000;
let end = null;

function modelOf({ kind, proposals = 0 }) {
  return smallModel(kind, { numSpeculativeTokens: proposals });
}

const limits = { maxRequests: 4, maxSequenceLength: 200, recordLogits: true, prefillChunk: 16 };
const sizes = ({ layout = {}, blockSize = 4 }) => ({ ...layout, blockSize, poolSize: 96, maxRequests: 4 });

async function open({ role, device = 0, backend = 'cuda-ipc', ...setting }) {
  const model = modelOf(setting);
  const engine = new CudaEngine({ ...limits, role, model }, cudaMemory({ ...sizes(setting), model, device }));
  const handoff = new StateHandoff(engine);
  engine.attachHandoff(handoff);
  await handoff.setupKvTransfer(role, backend);
  end = { engine, handoff, setting };
}

async function prefill({ requestId, text, count }) {
  const { engine, handoff } = end;
  const prompt = Int32Array.from(encode(text));
  const samplingParams = { do_kv_handoff: true, num_tokens_to_generate: count };
  void engine.addRequest({ requestId, prompt, samplingParams });
  let ticket = '';
  while (engine.hasWork) {
    engine.step();
    const finished = engine.takeFinishedPrefills();
    const prepared = handoff.prepareHandoffMetadataBatch(
      finished.map((each) => ({ ...each, promptTokens: each.prompt.length, doKvHandoff: true, returnLogProbs: false })),
    );
    for (const each of finished) ticket = encodeTicket(handoff.captureHandoffMeta(each, prepared));
    engine.cleanupFinished();
    await tick();
  }
  return ticket;
}

const digest = (logits) =>
  logits.map((row) =>
    createHash('sha256')
      .update(new Uint8Array(row.buffer, row.byteOffset, row.byteLength))
      .digest('hex'),
  );
const outcome = ({ generatedTokens, extra }) => ({
  tokens: [...generatedTokens],
  logits: digest(extra.logits.filter((row) => row !== null)),
});

async function decode({ requestId, text, count, ticket }) {
  const { engine, handoff } = end;
  const { kvMeta, blockIds } = decodeTicket(ticket);
  const parameters = { num_tokens_to_generate: count };
  const prompt = encode(text);
  let settled = null;
  void handoff.addRequestWithKvHandoff(requestId, prompt, parameters, kvMeta, blockIds).then(
    (value) => (settled = { value }),
    (error) => (settled = { error }),
  );
  const started = Date.now();
  while (settled === null && Date.now() - started < patienceMs) {
    handoff.pollPendingKvImports();
    handoff.scheduleWaitingRequests(0);
    engine.step();
    await tick();
  }
  if (settled === null) return { error: 'NOT_SETTLED' };
  if (settled.error !== undefined) return { error: settled.error.code, message: settled.error.message };
  return outcome(settled.value);
}

async function alone({ text, count }) {
  const { setting } = end;
  const model = modelOf(setting);
  const engine = new Engine({
    ...limits,
    role: 'both',
    model,
    memory: nativeMemory({ ...sizes({ blockSize: setting.blockSize }), model }),
  });
  const done = engine.addRequest({
    requestId: 'alone',
    prompt: Int32Array.from(encode(text)),
    samplingParams: { num_tokens_to_generate: count },
  });
  while (engine.hasWork) engine.step();
  return outcome(await done);
}

answerRequests({
  open,
  prefill,
  decode,
  alone,
  release: ({ requestId }) => end.handoff.releaseHandoffBlocks(requestId),
  exit: ({ code }) => void setImmediate(() => process.exit(code)),
});
