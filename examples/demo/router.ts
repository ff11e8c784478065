/**
 * The router: starts the engines for one model, carries the messages of each handoff between them, and keeps what it
 * saw. It never sees state, only tickets.
 */
import { checkCompatible, parseInstanceCard } from 'state-handoff';
import { bytesOf, rankShape } from '../engine/index.js';
import type { decodeCommands, prefillCommands, referenceCommands } from './messages.js';
import { decodeAnswers, prefillAnswers, referenceAnswers, type EngineSetting, type Message } from './messages.js';
import { demoModel, stateSizes } from './engine-setting.js';
import { EngineWorld, type EngineInstance, type RankWorker, type Side } from './engine-world.js';
import type { DemoOptions } from './options.js';
import { Observation } from './observation.js';
import type { DemoRequest, Scenario, Stage } from './scenario.js';
import { WorkerProcess } from './worker-process.js';

type Stopped = Extract<Message<typeof decodeAnswers>, { kind: 'stopped' }>;

/** How long nothing at all may be heard while something is awaited. */
const silenceMs = 60_000;

/** How long the end of a process may be behind what others say because of it. */
const causeMs = 5_000;

type Prefill = EngineWorld<typeof prefillCommands, typeof prefillAnswers>;
type Decode = EngineWorld<typeof decodeCommands, typeof decodeAnswers>;

/** The last word of one rank. */
export interface RankEnd {
  readonly name: string;
  readonly side: Side;
  readonly isLeader: boolean;
  readonly end: Stopped;
}

export interface Outcome {
  readonly observations: readonly Observation[];
  readonly ends: readonly RankEnd[];
  readonly processIds: {
    readonly router: number;
    readonly prefill: readonly number[];
    readonly decode: readonly number[];
  };
}

export class Router {
  private readonly observations = new Map<string, Observation>();
  private readonly workers = new Set<WorkerProcess<never, never>>();
  private readonly cards: { readonly side: Side; readonly card: unknown }[] = [];
  private readonly ends: RankEnd[] = [];
  private readonly pairSetting: Omit<EngineSetting, 'blocks' | 'corrupt' | 'ranks'>;
  private prefills: readonly Prefill[] = [];
  private decodes: readonly Decode[] = [];
  /** Where prompts that begin alike go. */
  private readonly routes = new Map<string, number>();
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
    const { layers, seed, blockSize, transport, ssmGroups } = options;
    this.pairSetting = { kind, layers, proposals, seed, blockSize, chunk, maxRequests, transport, ssmGroups };
  }

  /** Runs all stages, stops both sides, and then has everything computed once more without a handoff. */
  async run(): Promise<Outcome> {
    await this.open();
    for (const stage of this.scenario.stages) await this.runStage(stage);
    const ranks = [...this.prefills, ...this.decodes].flatMap(
      (world) => world.workers as readonly RankWorker<never, never>[],
    );
    for (const { process } of ranks) process.expectEnd();
    for (const { leader } of this.decodeInstances) leader.process.send({ kind: 'stop' });
    for (const { leader } of this.prefillInstances) leader.process.send({ kind: 'stop' });
    await this.until('all workers to stop', () => this.ends.length === ranks.length);
    const idsOf = (side: Side): number[] =>
      ranks.filter((rank) => rank.side === side).map((rank) => rank.process.processId ?? 0);
    const processIds = { router: process.pid, prefill: idsOf('prefill'), decode: idsOf('decode') };
    await this.compare();
    await this.end();
    return { observations: [...this.observations.values()], ends: this.ends, processIds };
  }

  /** Ends all workers, wherever they are; resolves when every process has gone. */
  async end(): Promise<void> {
    this.failure ??= new Error('the demo was stopped');
    await Promise.all([...this.workers].map((worker) => worker.end()));
    this.check();
  }

  private get prefillInstances(): readonly EngineInstance<typeof prefillCommands, typeof prefillAnswers>[] {
    return this.prefills.flatMap(({ instances }) => instances);
  }

  private get decodeInstances(): readonly EngineInstance<typeof decodeCommands, typeof decodeAnswers>[] {
    return this.decodes.flatMap(({ instances }) => instances);
  }

  private async open(): Promise<void> {
    const { blocks } = this.scenario;
    const { prefill, decode, corrupt } = this.options;
    const fail = (error: Error, isConsequence = false): void => this.fail(error, isConsequence);
    const label = (shapes: readonly unknown[], index: number): string => (shapes.length === 1 ? '' : String(index + 1));
    this.prefills = prefill.map((shape, index) => {
      const receive = (answer: Message<typeof prefillAnswers>, from: RankWorker<never, never>): void =>
        this.onPrefill(answer, from);
      return new EngineWorld(
        'prefill',
        label(prefill, index),
        shape,
        prefillAnswers,
        receive as never,
        fail,
      ) as Prefill;
    });
    this.decodes = decode.map((shape, index) => {
      const receive = (answer: Message<typeof decodeAnswers>, from: RankWorker<never, never>): void =>
        this.onDecode(answer, from);
      return new EngineWorld('decode', label(decode, index), shape, decodeAnswers, receive as never, fail) as Decode;
    });
    const worlds = [...this.prefills, ...this.decodes];
    const workers = worlds.flatMap((world) => world.workers as readonly RankWorker<never, never>[]);
    for (const worker of workers) this.workers.add(worker.process);
    const ids = (side: Side): string =>
      workers
        .filter((worker) => worker.side === side)
        .map(({ process }) => process.processId)
        .join(' ');
    this.say(`processes: router ${process.pid}, prefill ${ids('prefill')}, decode ${ids('decode')}`);
    // Prefill holds what decode has no room for yet.
    for (const world of this.prefills) world.start({ ...this.pairSetting, blocks: 3 * blocks, corrupt: false });
    for (const world of this.decodes) world.start({ ...this.pairSetting, blocks, corrupt });
    await this.until('all workers to be ready', () => this.cards.length === workers.length);
    this.checkCards();
  }

  private checkCards(): void {
    const cardsOf = (side: Side) =>
      this.cards.filter((each) => each.side === side && each.card !== null).map(({ card }) => parseInstanceCard(card));
    const differences = cardsOf('prefill').flatMap((source) =>
      cardsOf('decode').flatMap((target) => checkCompatible(source, target)),
    );
    if (differences.length > 0) {
      throw new Error(
        `the engines cannot work together: ${differences.map(({ field, why }) => `${field}, so ${why}`).join('; ')}`,
      );
    }
  }

  private async runStage(stage: Stage): Promise<void> {
    this.stage = stage;
    this.say('');
    this.say(`-- ${stage.title} --`);
    const seen = stage.requests.map((request) => this.submit(request, this.routeOf(request, stage)));
    await this.until(`the stage "${stage.title}"`, () => seen.every((each) => each.isOver));
  }

  /**
   * Prompts that begin alike go to the same instances, which may have the beginning; others by turns. Those that are to
   * wait in line need one line.
   */
  private routeOf({ prompt }: DemoRequest, { title, waitingMin }: Stage): Observation['route'] {
    const key = waitingMin > 0 ? title : Array.from(prompt.subarray(0, this.options.blockSize)).join(' ');
    const turn = this.routes.get(key) ?? this.routes.size;
    this.routes.set(key, turn);
    return { prefill: turn % this.prefillInstances.length, decode: turn % this.decodeInstances.length };
  }

  private submit(request: DemoRequest, route: Observation['route']): Observation {
    const { id, shows, prompt, tokens, stopsLike } = request;
    const first = stopsLike === null ? -1 : (this.observations.get(stopsLike)?.tokens[0] ?? -1);
    const sampling = { num_tokens_to_generate: tokens, termination_id: first };
    const { shape } = this.decodeInstances[route.decode]!;
    const sizes = stateSizes(demoModel(this.pairSetting), this.options.blockSize, shape);
    const observation = new Observation(request, sampling, route, sizes, shape.tp * shape.pp);
    this.observations.set(id, observation);
    this.say(`${id.padEnd(10)} ${prompt.length} tokens: ${shows}`);
    const { leader } = this.prefillInstances[route.prefill]!;
    leader.process.send({ kind: 'prompt', id, prompt: Array.from(prompt), sampling });
    return observation;
  }

  private onPrefill(answer: Message<typeof prefillAnswers>, from: RankWorker<never, never>): void {
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
        this.cards.push({ side: from.side, card: answer.card });
        break;
      case 'stopped':
        this.stopped(answer, from);
        break;
      case 'busy':
        this.say(`${from.name.padEnd(10)} at work: ${answer.tokens} tokens computed so far`);
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
      const { leader } = this.decodeInstances[seen.route.decode]!;
      leader.process.send({ kind: 'handoff', id: request.id, prompt, sampling, ticket, holdTransfer: request.aborts });
    }
  }

  private onDecode(answer: Message<typeof decodeAnswers>, from: RankWorker<never, never>): void {
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
          this.decodeInstances[seen.route.decode]!.leader.process.send({ kind: 'abort', id: answer.id });
        }
        break;
      }
      case 'landed': {
        const seen = this.of(answer.id);
        seen.land(answer);
        if (seen.landed === null) break;
        const { bytes, milliseconds } = seen.landed;
        const { blocks, cachedBlocks } = seen.reserved ?? { blocks: 0, cachedBlocks: 0 };
        this.say(
          `${answer.id.padEnd(10)} moved ${blocks - cachedBlocks} blocks, ${bytes} bytes, in ${milliseconds.toFixed(2)} ms` +
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
        this.prefillInstances[this.of(answer.id).route.prefill]!.leader.process.send({
          kind: 'release',
          handoff: answer.handoff,
        });
        break;
      case 'ready':
        this.cards.push({ side: from.side, card: answer.card });
        break;
      case 'stopped':
        this.stopped(answer, from);
        break;
      case 'busy':
      case 'failure':
        break;
    }
    this.check();
  }

  private stopped(end: Stopped, { name, side, place }: RankWorker<never, never>): void {
    this.ends.push({ name, side, isLeader: place.isLeader, end });
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
    const ranks = { ...rankShape({}), rank: 0, world: 'none', secret: '' };
    const engine = { ...this.pairSetting, blocks: this.scenario.blocks, corrupt: false, ranks };
    worker.send({ kind: 'start', engine });
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

  /** @param isConsequence - what caused it may still come, and says more */
  private fail(error: Error, isConsequence = false): void {
    if (isConsequence && this.failure === null) {
      // And then once around the loop: a process whose end is known already is told of first.
      setTimeout(() => setImmediate(() => setImmediate(() => this.fail(error))), causeMs).unref();
      return;
    }
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
