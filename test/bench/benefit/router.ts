/**
 * The router of `bench:benefit`, in the bench's own process: sends each request to the engine with the fewest, carries
 * tickets from prefill to decode and releases back, and notes when what happened. Every setting goes through this same
 * router, so that the control plane is no part of the difference.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { nowMs, type EngineSize, type FromEngine, type Role, type ToEngine } from './engine-setting.js';

/** How many engines of each role. */
export interface Split {
  readonly both: number;
  readonly prefill: number;
  readonly decode: number;
}

/** `2 aggregated`, `1 prefill + 1 decode`. */
export function splitName({ both, prefill, decode }: Split): string {
  return both > 0 ? `${both} aggregated` : `${prefill} prefill + ${decode} decode`;
}

/** One request and what was seen of it; times in ms where they happened, NaN until then. */
export interface Seen {
  readonly id: number;
  readonly prompt: readonly number[];
  readonly tokens: number;
  readonly submittedAt: number;
  prefilledAt: number;
  admittedAt: number;
  /** Of every generated token. */
  readonly tokenTimes: number[];
  finishedAt: number;
}

interface EngineProcess {
  readonly role: Role;
  readonly child: ChildProcess;
  /** Requests it has. */
  load: number;
  isReady: boolean;
}

export class Router {
  private readonly engines: EngineProcess[] = [];
  private readonly requests = new Map<number, Seen & { at: EngineProcess; prefill: EngineProcess | null }>();
  private failure: Error | null = null;
  private check: () => void = () => undefined;
  private isEnding = false;
  private nextId = 0;

  private constructor() {}

  /** Starts the engines; resolves when all of them are ready. */
  static async open(split: Split, size: EngineSize): Promise<Router> {
    const router = new Router();
    const roles: Role[] = (['both', 'prefill', 'decode'] as const).flatMap((role) =>
      Array.from({ length: split[role] }, () => role),
    );
    roles.forEach((role, index) => router.start(role, `${role}-${index}-${process.pid}`, size));
    try {
      await router.until(() => router.engines.every(({ isReady }) => isReady));
      return router;
    } catch (error) {
      await router.close();
      throw error;
    }
  }

  /** A request enters now. */
  submit(prompt: readonly number[], tokens: number): Seen {
    const id = this.nextId++;
    const first = this.least('both') ?? this.least('prefill')!;
    const seen = {
      ...{ id, prompt, tokens, submittedAt: nowMs() },
      ...{ prefilledAt: NaN, admittedAt: NaN, tokenTimes: [], finishedAt: NaN },
      ...{ at: first, prefill: first.role === 'prefill' ? first : null },
    };
    this.requests.set(id, seen);
    first.load++;
    this.tell(first, { kind: first.role === 'both' ? 'whole' : 'prefill', id, prompt, tokens });
    return seen;
  }

  /** Resolves when `isTrue`, which is asked after every message. @throws when an engine fails */
  until(isTrue: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      this.check = () => {
        if (this.failure === null && !isTrue()) return;
        this.check = () => undefined;
        if (this.failure === null) resolve();
        else reject(this.failure);
      };
      this.check();
    });
  }

  /** Ends all engines. */
  async close(): Promise<void> {
    this.isEnding = true;
    await Promise.all(
      this.engines.map(async ({ child }) => {
        if (child.exitCode !== null || child.signalCode !== null) return;
        const exited = new Promise((resolve) => child.once('exit', resolve));
        child.kill('SIGKILL');
        await exited;
      }),
    );
  }

  private start(role: Role, name: string, size: EngineSize): void {
    const root = join(__dirname, '..', '..', '..');
    const child = fork(join(__dirname, 'engine-process.ts'), [], {
      execArgv: ['-r', join(root, 'scripts', 'typescript-hook.js')],
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    const engine: EngineProcess = { role, child, load: 0, isReady: false };
    this.engines.push(engine);
    child.on('message', (message: FromEngine) => {
      this.hear(engine, message);
      this.check();
    });
    child.once('exit', (code, signal) => {
      if (!this.isEnding) this.fail(`the ${role} engine ended with ${signal ?? code}`);
    });
    this.tell(engine, { kind: 'start', role, name, size });
  }

  private hear(engine: EngineProcess, message: FromEngine): void {
    switch (message.kind) {
      case 'ready':
        engine.isReady = true;
        return;
      case 'failed':
        return this.fail(`the ${engine.role} engine: ${message.reason}`);
      case 'readDone':
        // Pins are told apart by their reference; each prefill engine drops what is not its own.
        for (const each of this.engines) {
          const { instance } = message.handoff as { readonly instance: string };
          if (each.role === 'prefill' && instance.startsWith(`prefill-${this.engines.indexOf(each)}-`))
            this.tell(each, { kind: 'release', handoff: message.handoff });
        }
        return;
      default:
        this.progress(engine, message);
    }
  }

  private progress(
    engine: EngineProcess,
    message: Extract<FromEngine, { readonly kind: 'prefilled' | 'admitted' | 'token' | 'finished' }>,
  ): void {
    const seen = this.requests.get(message.id);
    // A prefill engine's own first token is decode's to tell.
    if (seen === undefined || (engine.role === 'prefill' && message.kind === 'token')) return;
    switch (message.kind) {
      case 'prefilled': {
        seen.prefilledAt = message.at;
        engine.load--;
        const decode = this.least('decode')!;
        seen.at = decode;
        decode.load++;
        const { id, prompt, tokens } = seen;
        return this.tell(decode, { kind: 'handoff', id, prompt, tokens, ticket: message.ticket });
      }
      case 'admitted':
        seen.admittedAt = message.at;
        return;
      case 'token':
        seen.tokenTimes.push(message.at);
        return;
      case 'finished':
        seen.finishedAt = message.at;
        engine.load--;
        this.requests.delete(message.id);
    }
  }

  private least(role: Role): EngineProcess | undefined {
    return this.engines.filter((engine) => engine.role === role).sort((a, b) => a.load - b.load)[0];
  }

  private tell({ child }: EngineProcess, message: ToEngine): void {
    child.send(message, () => undefined);
  }

  private fail(reason: string): void {
    this.failure ??= new Error(`bench benefit: ${reason}`);
    this.check();
  }
}
