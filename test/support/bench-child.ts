/** The other process of a benchmark: a `test/support/NAME-child.js`, asked as in the tests and without Jest. */
import { fork, type ChildProcess } from 'node:child_process';
import { dirname, join } from 'node:path';
import type { JsonObject, JsonValue } from '../../lib/json.js';

interface Reply {
  readonly id: number;
  readonly answer?: JsonValue;
  readonly error?: string;
}

const packageRoot = dirname(require.resolve('state-handoff/package.json'));

export class BenchChild {
  private lastId = 0;
  private readonly waiting = new Map<number, (reply: Omit<Reply, 'id'>) => void>();
  private readonly child: ChildProcess;

  constructor(
    readonly name: string,
    env: Readonly<Record<string, string>> = {},
  ) {
    this.child = fork(join(packageRoot, 'test', 'support', `${name}-child.js`), {
      serialization: 'advanced',
      env: { ...process.env, ...env },
    });
    this.child.on('message', ({ id, ...reply }: Reply) => this.waiting.get(id)?.(reply));
    this.child.once('exit', () => {
      for (const answer of this.waiting.values()) answer({ error: `the ${name} process ended` });
    });
  }

  /** Rejects with what the process says of a failure, or when it ends first. */
  ask<Answer extends JsonValue = JsonObject>(command: string, values: object = {}): Promise<Answer> {
    const id = (this.lastId += 1);
    this.child.send({ id, command, ...values });
    return new Promise((resolve, reject) =>
      this.waiting.set(id, ({ answer, error }) => {
        this.waiting.delete(id);
        if (error === undefined) resolve((answer ?? null) as Answer);
        else reject(new Error(error));
      }),
    );
  }

  end(): void {
    this.child.kill();
  }
}
