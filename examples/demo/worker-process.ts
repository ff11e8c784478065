/**
 * The router's end of one worker: starts it, checks what it says, and sees it end. A worker that ends uncalled, that
 * cannot go on or that breaks the schema is an error of the whole demo.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { parseMessage, type Message } from './messages.js';

type Schema = Parameters<typeof parseMessage>[0];

/** How long a worker may take to end after its channel was closed. */
const endGraceMs = 2_000;

export class WorkerProcess<Commands extends Schema, Answers extends Schema> {
  private readonly child: ChildProcess;
  private readonly ended: Promise<void>;
  private isEnding = false;
  /** It has said why it cannot go on, and ends. */
  private hasFailed = false;

  /**
   * @param name - what the worker is called
   * @param receive - gets each checked answer
   * @param fail - told why the worker cannot go on, and whether that is only because another one is gone
   * @param folder - absolute; the folder of this file by default
   * @param program - `PROGRAM-worker.js` lies in `folder`; the worker's name by default
   */
  constructor(
    readonly name: string,
    answers: Answers,
    receive: (answer: Message<Answers>) => void,
    fail: (error: Error, isConsequence?: boolean) => void,
    folder: string = __dirname,
    program = name,
  ) {
    this.child = fork(join(folder, `${program}-worker.js`), { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    this.child.on('message', (value) => {
      try {
        const answer = parseMessage(answers, value, name);
        if (answer.kind !== 'failure') return receive(answer);
        this.hasFailed = true;
        const { message, isConsequence } = answer as unknown as { message: string; isConsequence: boolean };
        fail(new Error(`the ${name} process cannot go on: ${message}`), isConsequence);
      } catch (error) {
        fail(error as Error);
      }
    });
    this.child.on('error', (error) => fail(new Error(`the ${name} process: ${error.message}`)));
    this.ended = new Promise((resolve) => {
      this.child.once('exit', (code, signal) => {
        // What it said last may still be on its way, and says more than its end.
        const tell = (): void => {
          if (!this.isEnding && !this.hasFailed)
            fail(new Error(`the ${name} process ended uncalled with ${signal ?? code}`));
        };
        if (this.child.connected) this.child.once('disconnect', tell);
        else tell();
        resolve();
      });
    });
  }

  get processId(): number | undefined {
    return this.child.pid;
  }

  send(command: Message<Commands>): void {
    this.child.send(command, () => undefined);
  }

  /** From now on its end is no error. */
  expectEnd(): void {
    this.isEnding = true;
  }

  /** Ends it as a crash would; resolves when the process has gone. */
  async kill(): Promise<void> {
    this.isEnding = true;
    this.child.kill('SIGKILL');
    await this.ended;
  }

  /** Closes the channel, which ends the worker; resolves when the process has gone. */
  async end(): Promise<void> {
    this.isEnding = true;
    if (this.child.connected) this.child.disconnect();
    const impatience = setTimeout(() => this.child.kill('SIGKILL'), endGraceMs);
    await this.ended;
    clearTimeout(impatience);
  }
}
