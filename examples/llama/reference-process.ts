/**
 * The router's end of the engine that compares: it computes requests alone, or does again what decode did. Knows of no
 * handoff.
 */
import type { Message } from '../demo/messages.js';
import { WorkerProcess } from '../demo/worker-process.js';
import { referenceAnswers, type EngineSetting, type RecordedOperation, type referenceCommands } from './messages.js';
import type { LlamaRequest } from './observation.js';

/** The engine that knows of no handoff, in a process of its own. */
export class ReferenceProcess {
  private readonly worker: WorkerProcess<typeof referenceCommands, typeof referenceAnswers>;
  private readonly waiting: { resolve: (answer: never) => void; reject: (error: Error) => void }[] = [];
  private failure: Error | null = null;

  constructor(setting: EngineSetting, folder: string = __dirname) {
    this.worker = new WorkerProcess<typeof referenceCommands, typeof referenceAnswers>(
      'reference',
      referenceAnswers,
      (answer) => {
        if (answer.kind === 'result' || answer.kind === 'replayed') this.waiting.shift()?.resolve(answer as never);
      },
      (error) => {
        this.failure = error;
        for (const { reject } of this.waiting.splice(0)) reject(error);
      },
      folder,
    );
    this.worker.send({ kind: 'start', engine: setting });
  }

  /** Computes a request alone; answers come in the order of the calls. */
  run({ id, prompt, limit }: LlamaRequest): Promise<Extract<Message<typeof referenceAnswers>, { kind: 'result' }>> {
    this.worker.send({ kind: 'run', id, prompt: Array.from(prompt), limit });
    return this.answer();
  }

  /** Does again what decode did. */
  replay(
    requests: readonly LlamaRequest[],
    operations: readonly RecordedOperation[],
  ): Promise<Extract<Message<typeof referenceAnswers>, { kind: 'replayed' }>> {
    const prompts = requests.map(({ id, prompt }) => ({ id, tokens: Array.from(prompt) }));
    this.worker.send({ kind: 'replay', prompts, operations });
    return this.answer();
  }

  end(): Promise<void> {
    return this.worker.end();
  }

  private answer<Answer>(): Promise<Answer> {
    if (this.failure !== null) return Promise.reject(this.failure);
    return new Promise((resolve, reject) => this.waiting.push({ resolve: resolve as never, reject }));
  }
}
