/** The process of the llama.cpp demo that knows of no handoff: what it computes is what the others are compared with. */
import { openPort } from '../demo/worker-port.js';
import { digestOf, engineOptions } from './engine-setting.js';
import { referenceAnswers, referenceCommands, type RecordedOperation } from './messages.js';
import { SingleEngine } from './single-engine.js';

let engine: SingleEngine | null = null;

async function run(id: string, prompt: readonly number[], limit: number): Promise<void> {
  const logits: string[] = [];
  const result = await engine!.run(Int32Array.from(prompt), limit, (row) => logits.push(digestOf(row)));
  port.send({ kind: 'result', id, logits, ...result });
}

async function replay(
  prompts: readonly { readonly id: string; readonly tokens: readonly number[] }[],
  operations: readonly RecordedOperation[],
): Promise<void> {
  const byId = new Map(prompts.map(({ id, tokens }) => [id, Int32Array.from(tokens)]));
  const counts = await engine!.replay(byId, operations);
  port.send({ kind: 'replayed', requests: [...counts].map(([id, count]) => ({ id, ...count })) });
}

let queue: Promise<void> = Promise.resolve();
const port = openPort('reference', referenceCommands, referenceAnswers, (command) => {
  switch (command.kind) {
    case 'start':
      engine = new SingleEngine(engineOptions(command.engine));
      port.send({ kind: 'ready', processId: process.pid, card: null });
      return;
    case 'run':
      queue = queue.then(() => run(command.id, command.prompt, command.limit)).catch(port.fail);
      return;
    case 'replay':
      queue = queue.then(() => replay(command.prompts, command.operations)).catch(port.fail);
      return;
    case 'stop':
      process.disconnect();
  }
});
