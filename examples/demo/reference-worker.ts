/**
 * The engine that knows of no handoff: computes each request alone, prompt and all, so that the router can compare what
 * came out of the two others bit for bit.
 */
import { Engine, type FinishedExtra } from '../engine/index.js';
import { digestOf, engineOptions } from './engine-setting.js';
import { referenceAnswers, referenceCommands, type Message } from './messages.js';
import { SignOfLife } from './sign-of-life.js';
import { openPort } from './worker-port.js';

let engine: Engine | null = null;
const life = new SignOfLife((tokens) => port.send({ kind: 'busy', tokens }));

async function run({
  id,
  prompt,
  sampling,
}: Extract<Message<typeof referenceCommands>, { kind: 'run' }>): Promise<void> {
  if (engine === null) return;
  // A salt of its own: nothing computed for another request is found in the cache.
  const samplingParams = { ...sampling, temperature: 0, return_log_probs: true, cache_salt: id };
  const result = engine.addRequest({ requestId: id, prompt, samplingParams });
  while (engine.hasWork) {
    engine.step();
    life.pass(engine.tokenCount);
    await new Promise(setImmediate);
  }
  const { generatedTokens, generatedLogProbs, finishReason, extra } = await result;
  port.send({
    kind: 'result',
    id,
    tokens: generatedTokens,
    reason: finishReason,
    logProbs: generatedLogProbs,
    logits: ((extra as FinishedExtra).logits ?? []).map((row) => digestOf(row!)),
  });
}

let queue = Promise.resolve();
const port = openPort('reference', referenceCommands, referenceAnswers, (command) => {
  switch (command.kind) {
    case 'start':
      engine = new Engine(engineOptions('both', command.engine));
      port.send({ kind: 'ready', processId: process.pid, card: null });
      return;
    case 'run':
      queue = queue.then(() => run(command)).catch(port.fail);
      return;
    case 'stop':
      process.disconnect();
  }
});
