/** Has one engine compute each request alone, prompt and all, in a process of its own, and keeps what came of it. */
import { rankShape } from '../engine/index.js';
import { referenceAnswers, type EngineSetting, type referenceCommands } from './messages.js';
import type { Observation } from './observation.js';
import type { Vigil } from './vigil.js';
import { WorkerProcess } from './worker-process.js';

export type ReferenceProcess = WorkerProcess<typeof referenceCommands, typeof referenceAnswers>;

/**
 * @param due - gets its `reference`
 * @param begun - told of the process at once, so that it can be ended
 * @throws (rejects) when it cannot go on
 */
export async function compare(
  setting: Omit<EngineSetting, 'coordinator' | 'corrupt' | 'identity' | 'ranks'>,
  due: readonly Observation[],
  vigil: Vigil,
  say: (line: string) => void,
  begun: (worker: ReferenceProcess) => void,
): Promise<void> {
  let ready = false;
  const worker: ReferenceProcess = new WorkerProcess(
    'reference',
    referenceAnswers,
    (answer) => {
      if (answer.kind === 'ready') ready = true;
      if (answer.kind === 'result') due.find(({ request }) => request.id === answer.id)!.reference = answer;
      if (answer.kind === 'busy') {
        const done = due.filter(({ reference }) => reference !== null).length;
        say(`compared ${done} of ${due.length}: ${answer.tokens} tokens computed so far`);
      }
      vigil.heard();
    },
    (error) => vigil.fail(error),
  );
  begun(worker);
  const ranks = { ...rankShape({}), stages: null, rank: 0, world: 'none', secret: '' };
  worker.send({ kind: 'start', engine: { ...setting, coordinator: null, identity: '', corrupt: false, ranks } });
  await vigil.until('the comparing engine to be ready', () => ready);
  for (const { request, sampling } of due) {
    worker.send({ kind: 'run', id: request.id, prompt: Array.from(request.prompt), sampling });
  }
  await vigil.until('the comparison', () => due.every(({ reference }) => reference !== null));
  await worker.end();
}
