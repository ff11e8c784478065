/**
 * The router: starts the workers for one model, carries the messages of each handoff between them, and keeps what it
 * saw. It never sees state, only tickets.
 */
import { checkCompatible, parseInstanceCard, type HandoffRef } from 'state-handoff';
import { bytesOf } from '../engine/index.js';
import type { decodeCommands, prefillCommands, referenceCommands } from './messages.js';
import { decodeAnswers, prefillAnswers, referenceAnswers, type EngineSetting, type Message } from './messages.js';
import { demoModel, stateSizes, type StateSizes } from './engine-setting.js';
import type { DemoOptions } from './options.js';
import { Observation } from './observation.js';
import type { DemoRequest, Scenario, Stage } from './scenario.js';
import { WorkerProcess } from './worker-process.js';

type Stopped = Extract<Message<typeof decodeAnswers>, { kind: 'stopped' }>;

/** How long nothing at all may be heard while something is awaited. */
const silenceMs = 60_000;

export interface Outcome {
  readonly observations: readonly Observation[];
  readonly prefillEnd: Stopped;
  readonly decodeEnd: Stopped;
  readonly processIds: Readonly<Record<'router' | 'prefill' | 'decode', number>>;
}

export class Router {
  private readonly observations = new Map<string, Observation>();
  private readonly workers = new Set<WorkerProcess<never, never>>();
  private readonly cards: unknown[] = [];
  private readonly ends = new Map<string, Stopped>();
  private readonly pairSetting: Omit<EngineSetting, 'blocks' | 'corrupt'>;
  private readonly sizes: StateSizes;
  private prefill!: WorkerProcess<typeof prefillCommands, typeof prefillAnswers>;
  private decode!: WorkerProcess<typeof decodeCommands, typeof decodeAnswers>;
  private failure: Error | null = null;
  private stage: Stage | null = null;
  private heardAt = Date.now();
  /** Looks again whether what is awaited has come. */
  private check: () => void = () => undefined;

  /** @param say - gets each line of progress */
  constructor(
    private readonly scenario: Scenario,
    private readonly options: DemoOptions,
    private readonly say: (line: string) => void,
  ) {
    const { kind, proposals, chunk, maxRequests } = scenario;
    const { layers, seed, blockSize, transport } = options;
    this.sizes = stateSizes(demoModel(kind, layers, seed, proposals), blockSize);
    this.pairSetting = { kind, layers, proposals, seed, blockSize, chunk, maxRequests, transport };
  }

  /** Runs all stages, stops both workers, and then has everything computed once more without a handoff. */
  async run(): Promise<Outcome> {
    await this.open();
    for (const stage of this.scenario.stages) await this.runStage(stage);
    this.prefill.expectEnd();
    this.decode.expectEnd();
    this.decode.send({ kind: 'stop' });
    this.prefill.send({ kind: 'stop' });
    await this.until('both workers to stop', () => this.ends.size === 2);
    const processIds = {
      router: process.pid,
      prefill: this.prefill.processId ?? 0,
      decode: this.decode.processId ?? 0,
    };
    await this.compare();
    await this.end();
    return {
      observations: [...this.observations.values()],
      prefillEnd: this.ends.get('prefill')!,
      decodeEnd: this.ends.get('decode')!,
      processIds,
    };
  }

  /** Ends all workers, wherever they are; resolves when every process has gone. */
  async end(): Promise<void> {
    this.failure ??= new Error('the demo was stopped');
    await Promise.all([...this.workers].map((worker) => worker.end()));
    this.check();
  }

  private async open(): Promise<void> {
    const { blocks } = this.scenario;
    const fail = (error: Error): void => this.fail(error);
    this.prefill = new WorkerProcess('prefill', prefillAnswers, (answer) => this.onPrefill(answer), fail);
    this.decode = new WorkerProcess('decode', decodeAnswers, (answer) => this.onDecode(answer), fail);
    for (const worker of [this.prefill, this.decode]) this.workers.add(worker as never);
    this.say(`processes: router ${process.pid}, prefill ${this.prefill.processId}, decode ${this.decode.processId}`);
    // Prefill holds what decode has no room for yet.
    this.prefill.send({ kind: 'start', engine: { ...this.pairSetting, blocks: 3 * blocks, corrupt: false } });
    this.decode.send({ kind: 'start', engine: { ...this.pairSetting, blocks, corrupt: this.options.corrupt } });
    await this.until('both workers to be ready', () => this.cards.length === 2);
    const [a, b] = this.cards.map((card) => parseInstanceCard(card));
    const [source, target] = a!.role === 'prefill' ? [a!, b!] : [b!, a!];
    const differences = checkCompatible(source, target);
    if (differences.length > 0) {
      throw new Error(
        `the two engines cannot work together: ${differences.map(({ field, why }) => `${field}, so ${why}`).join('; ')}`,
      );
    }
  }

  private async runStage(stage: Stage): Promise<void> {
    this.stage = stage;
    this.say('');
    this.say(`-- ${stage.title} --`);
    const seen = stage.requests.map((request) => this.submit(request));
    await this.until(`the stage "${stage.title}"`, () => seen.every((each) => each.isOver));
  }

  private submit(request: DemoRequest): Observation {
    const { id, shows, prompt, tokens, stopsLike } = request;
    const first = stopsLike === null ? -1 : (this.observations.get(stopsLike)?.tokens[0] ?? -1);
    const sampling = { num_tokens_to_generate: tokens, termination_id: first };
    const observation = new Observation(request, sampling, this.sizes);
    this.observations.set(id, observation);
    this.say(`${id.padEnd(10)} ${prompt.length} tokens: ${shows}`);
    this.prefill.send({ kind: 'prompt', id, prompt: Array.from(prompt), sampling });
    return observation;
  }

  private onPrefill(answer: Message<typeof prefillAnswers>): void {
    this.heardAt = Date.now();
    switch (answer.kind) {
      case 'prefilled': {
        const { id, ticket, logits, blocks, computedTokens } = answer;
        const seen = this.of(id);
        seen.ticket = ticket;
        seen.firstLogits = logits;
        this.say(
          `${id.padEnd(10)} prefilled: ${computedTokens} tokens computed, ${blocks} blocks pinned, ticket of ${ticket.length} bytes`,
        );
        this.handOver(seen);
        break;
      }
      case 'released':
        this.of(answer.id).isReleased = true;
        break;
      case 'failed':
        this.of(answer.id).fail(answer.code, answer.message);
        break;
      case 'ready':
        this.cards.push(answer.card);
        break;
      case 'stopped':
        this.ends.set('prefill', answer);
        break;
      case 'busy':
        this.say(`prefill    at work: ${answer.tokens} tokens computed so far`);
        break;
      case 'failure':
        break;
    }
    this.check();
  }

  private handOver(ready: Observation): void {
    const requests = this.stage!.requests.map(({ id }) => this.of(id));
    if (this.stage!.together && requests.some(({ ticket, isSettled }) => ticket === null && !isSettled)) return;
    for (const seen of this.stage!.together ? requests : [ready]) {
      const { request, sampling, ticket } = seen;
      if (ticket === null) continue;
      const prompt = Array.from(request.prompt);
      this.decode.send({ kind: 'handoff', id: request.id, prompt, sampling, ticket, holdTransfer: request.aborts });
    }
  }

  private onDecode(answer: Message<typeof decodeAnswers>): void {
    this.heardAt = Date.now();
    switch (answer.kind) {
      case 'deferred':
        this.of(answer.id).isDeferred = true;
        this.say(`${answer.id.padEnd(10)} waits: decode has no room`);
        break;
      case 'reserved': {
        const seen = this.of(answer.id);
        seen.reserved = answer;
        if (seen.request.aborts) {
          this.say(`${answer.id.padEnd(10)} target reserved, transfer not over: abort`);
          this.decode.send({ kind: 'abort', id: answer.id });
        }
        break;
      }
      case 'landed': {
        const seen = this.of(answer.id);
        seen.landed = answer;
        const { blocks, cachedBlocks } = seen.reserved ?? { blocks: 0, cachedBlocks: 0 };
        this.say(
          `${answer.id.padEnd(10)} moved ${blocks - cachedBlocks} blocks, ${answer.bytes} bytes, in ${answer.milliseconds.toFixed(2)} ms` +
            (cachedBlocks === 0 ? '' : `; ${cachedBlocks} blocks were here already`),
        );
        break;
      }
      case 'admitted':
        this.of(answer.id).isAdmitted = true;
        break;
      case 'token':
        this.stream(this.of(answer.id), answer.token);
        break;
      case 'finished': {
        const seen = this.of(answer.id);
        seen.finish(answer);
        this.flush(seen);
        this.say(`${answer.id.padEnd(10)} done: ${answer.tokens.length} tokens (${answer.reason})`);
        break;
      }
      case 'failed': {
        this.of(answer.id).fail(answer.code, answer.message);
        this.say(`${answer.id.padEnd(10)} ended without a result: ${answer.message} (${answer.code})`);
        break;
      }
      case 'readDone':
        this.of(answer.id).isRead = true;
        this.release(answer.handoff);
        break;
      case 'ready':
        this.cards.push(answer.card);
        break;
      case 'stopped':
        this.ends.set('decode', answer);
        break;
      case 'busy':
      case 'failure':
        break;
    }
    this.check();
  }

  private release(handoff: HandoffRef): void {
    this.prefill.send({ kind: 'release', handoff });
  }

  private stream(seen: Observation, token: number): void {
    seen.note(token);
    if (seen.unsaid.length >= 16) this.flush(seen);
  }

  private flush(seen: Observation): void {
    if (seen.unsaid.length === 0) return;
    const text = Buffer.from(bytesOf(seen.unsaid.splice(0))).toString('latin1');
    this.say(`${seen.request.id.padEnd(10)} > ${JSON.stringify(text)}`);
  }

  /** One engine, each request alone. */
  private async compare(): Promise<void> {
    const due = [...this.observations.values()].filter(({ finished }) => finished !== null);
    this.say('');
    this.say(`-- comparing ${due.length} results with those of one engine without a handoff --`);
    let ready = false;
    const worker = new WorkerProcess<typeof referenceCommands, typeof referenceAnswers>(
      'reference',
      referenceAnswers,
      (answer) => {
        this.heardAt = Date.now();
        if (answer.kind === 'ready') ready = true;
        if (answer.kind === 'result') this.of(answer.id).reference = answer;
        if (answer.kind === 'busy') {
          const done = due.filter(({ reference }) => reference !== null).length;
          this.say(`compared ${done} of ${due.length}: ${answer.tokens} tokens computed so far`);
        }
        this.check();
      },
      (error) => this.fail(error),
    );
    this.workers.add(worker as never);
    worker.send({ kind: 'start', engine: { ...this.pairSetting, blocks: this.scenario.blocks, corrupt: false } });
    await this.until('the comparing engine to be ready', () => ready);
    for (const { request, sampling } of due) {
      worker.send({ kind: 'run', id: request.id, prompt: Array.from(request.prompt), sampling });
    }
    await this.until('the comparison', () => due.every(({ reference }) => reference !== null));
    await worker.end();
  }

  private of(id: string): Observation {
    const seen = this.observations.get(id);
    if (seen === undefined)
      throw new Error(`a worker speaks of the request ${JSON.stringify(id)}, which nobody submitted`);
    return seen;
  }

  private fail(error: Error): void {
    this.failure ??= error;
    this.check();
  }

  private until(what: string, isSo: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      this.heardAt = Date.now();
      const watch = setInterval(() => this.check(), 1_000);
      this.check = () => {
        if (this.failure === null && Date.now() - this.heardAt > silenceMs) {
          this.failure = new Error(`nothing was heard for ${silenceMs / 1000} s while waiting for ${what}`);
        }
        if (this.failure === null && !isSo()) return;
        clearInterval(watch);
        this.check = () => undefined;
        if (this.failure === null) resolve();
        else reject(this.failure);
      };
      this.check();
    });
  }
}
