/**
 * The router of the llama.cpp demo: starts a prefill and a decode process, carries the messages of each handoff between them,
 * and keeps what it saw. It never sees state, only tickets. When one of the two dies, it tells the other. Behind a
 * coordinator it carries nothing: it is the coordinator's client.
 */
import { checkCompatible, decodeTicket, parseInstanceCard, type HandoffRef, type InstanceCard } from 'state-handoff';
import type { Message } from '../demo/messages.js';
import type { CoordinatorLink } from '../demo/coordinator-link.js';
import { WorkerProcess } from '../demo/worker-process.js';
import {
  decodeAnswers,
  prefillAnswers,
  type decodeCommands,
  type EngineSetting,
  type prefillCommands,
  type RecordedOperation,
} from './messages.js';
import { Observation, type LlamaRequest, type Reply } from './observation.js';

export type Stopped = Extract<Message<typeof decodeAnswers>, { kind: 'stopped' }>;
/** Tokens that decode evaluated, and how many of them lay in a prompt: none when all is well. */
export type Evaluated = Omit<Extract<Message<typeof decodeAnswers>, { kind: 'evaluated' }>, 'kind'>;
type Role = 'prefill' | 'decode';

/** How long nothing at all may be heard while something is awaited. */
const silenceMs = 120_000;

export interface RouterOptions {
  readonly prefill: EngineSetting;
  readonly decode: EngineSetting;
  /** Requests go through the shipped coordinator; false by default: this router carries them itself. */
  readonly coordinator?: boolean;
  /** Where the compiled workers lie; beside this file by default. */
  readonly folder?: string;
  /** Gets each line of progress. */
  readonly say?: (line: string) => void;
  /** Told of each token of a request, the first one too. */
  readonly onToken?: (id: string, token: number) => void;
}

export class LlamaRouter {
  readonly observations = new Map<string, Observation>();
  /** Lanes in one cache only: what decode did to llama.cpp's memory. */
  readonly operations: RecordedOperation[] = [];
  /** By decode, once it was stopped. */
  evaluated: Evaluated = { tokens: 0, promptTokens: 0 };
  /** Behind a coordinator; null: this router relays. */
  private link: CoordinatorLink | null = null;
  private opening: Promise<CoordinatorLink> | null = null;
  private readonly aborts = new Map<string, () => void>();
  private readonly joined = new Set<Role>();
  private prefill!: WorkerProcess<typeof prefillCommands, typeof prefillAnswers>;
  private decode!: WorkerProcess<typeof decodeCommands, typeof decodeAnswers>;
  private readonly workers = new Set<WorkerProcess<never, never>>();
  private readonly cards: Partial<Record<Role, InstanceCard>> = {};
  private readonly ends: Partial<Record<Role, Stopped>> = {};
  private readonly residents: Partial<Record<Role, number>> = {};
  private readonly held = new Set<Observation>();
  private failure: Error | null = null;
  private heardAt = Date.now();
  private readonly checks = new Set<() => void>();

  constructor(private readonly options: RouterOptions) {}

  /** Starts both processes. @throws (rejects) Error when the two cannot work together, naming each difference */
  async open(): Promise<void> {
    await Promise.all([this.start('prefill'), this.start('decode')]);
    this.checkCards();
    if (this.options.coordinator === true) await this.join();
  }

  /** Process and address of the coordinator, for a reader; null when there is none. */
  get coordinator(): string | null {
    return this.link === null ? null : `${this.link.processId} at ${this.link.address}`;
  }

  /**
   * Submits a request; `settled` waits for its end.
   *
   * @param holds - keeps the ticket until `handOver`
   */
  submit(request: LlamaRequest, holds = false): Observation {
    const seen = new Observation(request);
    this.observations.set(request.id, seen);
    if (this.link !== null) {
      this.aborts.set(request.id, this.ask(this.link, seen));
      return seen;
    }
    if (holds) this.held.add(seen);
    const { instance, incarnation } = this.cards.decode!;
    const owner = `${instance}/${incarnation}`;
    this.prefill.send({ kind: 'prompt', id: request.id, prompt: Array.from(request.prompt), owner });
    return seen;
  }

  /** Gives decode the tickets that were held, all at once and in order. */
  handOver(seen: readonly Observation[]): void {
    for (const each of seen) {
      if (this.held.delete(each) && each.prefilled !== null) this.sendTicket(each, each.prefilled.ticket);
    }
  }

  /** Aborts a request wherever it is. */
  abort(id: string): void {
    this.of(id).isAborted = true;
    if (this.link !== null) return this.aborts.get(id)?.();
    this.prefill.send({ kind: 'abort', id });
    this.decode.send({ kind: 'abort', id });
  }

  /** Resolves when all have ended and their sources are free again. */
  async settled(seen: readonly Observation[] = [...this.observations.values()]): Promise<void> {
    await this.until(`${seen.length} requests`, () => seen.every(({ isOver }) => isOver));
  }

  /** Resolves when `isSo`; looks at every message that comes. @throws (rejects) what ended a worker */
  until(what: string, isSo: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      this.heardAt = Date.now();
      const check = (): void => {
        if (this.failure === null && Date.now() - this.heardAt > silenceMs) {
          this.failure = new Error(`nothing was heard for ${silenceMs / 1000} s while waiting for ${what}`);
        }
        if (this.failure === null && !isSo()) return;
        clearInterval(watch);
        this.checks.delete(check);
        if (this.failure === null) resolve();
        else reject(this.failure);
      };
      const watch = setInterval(check, 1_000);
      this.checks.add(check);
      check();
    });
  }

  processIdOf(role: Role): number {
    return this[role].processId ?? 0;
  }

  /** Resident bytes of both processes now. */
  async measure(): Promise<Record<Role, number>> {
    delete this.residents.prefill;
    delete this.residents.decode;
    this.prefill.send({ kind: 'measure' });
    this.decode.send({ kind: 'measure' });
    await this.until('the size of both processes', () => Object.keys(this.residents).length === 2);
    return { prefill: this.residents.prefill!, decode: this.residents.decode! };
  }

  /** Kills a process and, once it has gone, attests its death to the other and starts another. */
  async replace(role: Role): Promise<void> {
    const { instance, incarnation } = this.cards[role]!;
    this[role].expectEnd();
    process.kill(this.processIdOf(role), 'SIGKILL');
    await this[role].end();
    this.workers.delete(this[role] as never);
    this.loseRequests(role);
    const survivor = role === 'prefill' ? this.decode : this.prefill;
    survivor.send({ kind: 'attestDead', instance, incarnation });
    await this.start(role);
    this.checkCards();
  }

  /** Stops both processes; resolves with what each still held. */
  async stop(): Promise<Record<Role, Stopped>> {
    for (const role of ['prefill', 'decode'] as const) {
      this[role].expectEnd();
      this[role].send({ kind: 'stop' });
    }
    await this.until('both workers to stop', () => Object.keys(this.ends).length === 2);
    await this.end();
    return { prefill: this.ends.prefill!, decode: this.ends.decode! };
  }

  /** Ends all workers, wherever they are; resolves when every process has gone. */
  async end(): Promise<void> {
    this.failure ??= new Error('the router was ended');
    await Promise.all([...this.workers].map((worker) => worker.end()));
    await this.opening?.then(
      (link) => link.close(),
      () => undefined,
    );
    this.look();
  }

  private async start(role: Role): Promise<void> {
    delete this.cards[role];
    const fail = (error: Error): void => {
      this.failure ??= error;
      this.look();
    };
    const { folder = __dirname } = this.options;
    if (role === 'prefill') {
      this.prefill = new WorkerProcess('prefill', prefillAnswers, (answer) => this.onPrefill(answer), fail, folder);
      this.prefill.send({ kind: 'start', engine: this.options.prefill });
    } else {
      this.decode = new WorkerProcess('decode', decodeAnswers, (answer) => this.onDecode(answer), fail, folder);
      this.decode.send({ kind: 'start', engine: this.options.decode });
    }
    this.workers.add(this[role] as never);
    await this.until(`the ${role} process to be ready`, () => this.cards[role] !== undefined);
  }

  private async join(): Promise<void> {
    // What only this mode needs is loaded in this mode.
    const { CoordinatorLink: Link } = await import('../demo/coordinator-link.js');
    // Ended in the meantime.
    if (this.failure !== null) throw this.failure;
    this.opening = Link.start({}, this.options.prefill.blockTokens, (error) => {
      this.failure ??= error;
      this.look();
    });
    this.link = await this.opening;
    const { address } = this.link;
    this.prefill.send({ kind: 'join', address });
    this.decode.send({ kind: 'join', address });
    await this.until('both engines to be registered', () => this.joined.size === 2);
    await this.link.connect();
  }

  private ask(link: CoordinatorLink, seen: Observation): () => void {
    const { id, prompt, limit } = seen.request;
    const end = (reply: Reply): void => {
      seen.reply = reply;
      seen.settle();
      this.look();
    };
    return link.ask(
      id,
      prompt,
      { num_tokens_to_generate: limit },
      {
        token: (token) => this.onToken(seen, token),
        finished: ({ tokens, reason }) => end({ tokens, reason }),
        failed: (code, message) => end({ code, message }),
      },
    );
  }

  private checkCards(): void {
    const differences = checkCompatible(this.cards.prefill!, this.cards.decode!);
    if (differences.length === 0) return;
    throw new Error(
      `the two engines cannot work together: ${differences
        .map(({ field, ours, theirs, why }) => `${field} is ${String(ours)} and ${String(theirs)}, and ${why}`)
        .join('; ')}`,
    );
  }

  /** What a process that is gone had, ends here; what the other one has, ends by its own word. */
  private loseRequests(role: Role): void {
    for (const seen of this.observations.values()) {
      if (seen.isOver) continue;
      const isAtDecode = seen.prefilled !== null;
      if (role === 'decode' ? isAtDecode && !seen.isSettled : !isAtDecode) {
        seen.failure ??= { code: 'PROCESS_DIED', message: `the ${role} process died` };
      }
      // Its pins went with it.
      if (role === 'prefill') seen.isReleased = true;
    }
  }

  private onPrefill(answer: Message<typeof prefillAnswers>): void {
    switch (answer.kind) {
      case 'prefilled': {
        const seen = this.of(answer.id);
        seen.prefilled = answer;
        const { id, prompt } = seen.request;
        this.onToken(seen, answer.firstToken);
        this.say(
          `${id.padEnd(10)} prefilled: ${answer.computedTokens} of ${prompt.length} tokens computed in ${answer.evaluateMs.toFixed(0)} ms, ` +
            `${answer.savedBlocks} blocks saved in ${answer.saveMs.toFixed(1)} ms, ticket of ${answer.ticket.length} bytes`,
        );
        if (this.link === null && !this.held.has(seen)) this.sendTicket(seen, answer.ticket);
        break;
      }
      case 'released':
        this.of(answer.id).isReleased = true;
        break;
      case 'failed':
        this.of(answer.id).failure = answer;
        break;
      default:
        this.onAny('prefill', answer);
    }
    this.look();
  }

  private onDecode(answer: Message<typeof decodeAnswers>): void {
    switch (answer.kind) {
      case 'deferred':
        this.of(answer.id).isDeferred = true;
        this.say(`${answer.id.padEnd(10)} waits: decode has no room`);
        break;
      case 'reserved':
        this.of(answer.id).reserved = answer;
        break;
      case 'landed': {
        const seen = this.of(answer.id);
        seen.landed = answer;
        const { cachedBlocks } = seen.reserved ?? { cachedBlocks: 0 };
        this.say(
          `${answer.id.padEnd(10)} moved ${seen.movedBlocks} blocks, ${answer.bytes} bytes, in ${answer.milliseconds.toFixed(2)} ms` +
            (cachedBlocks === 0 ? '' : `; ${cachedBlocks} blocks were here already`),
        );
        break;
      }
      case 'admitted':
        break;
      case 'token':
        this.onToken(this.of(answer.id), answer.token);
        break;
      case 'finished': {
        const seen = this.of(answer.id);
        if (this.link === null) seen.finished = answer;
        else seen.computed = answer;
        seen.settle();
        break;
      }
      case 'evaluated': {
        const { tokens, promptTokens } = answer;
        this.evaluated = { tokens, promptTokens };
        break;
      }
      case 'failed':
        this.of(answer.id).failure = answer;
        this.say(`${answer.id.padEnd(10)} ended without a result: ${answer.message} (${answer.code})`);
        break;
      case 'readDone':
        this.release(answer.handoff);
        break;
      case 'operations':
        this.operations.push(...answer.operations);
        break;
      default:
        this.onAny('decode', answer);
    }
    this.look();
  }

  /** What both say. */
  private onAny(
    role: Role,
    answer: Extract<
      Message<typeof prefillAnswers> | Message<typeof decodeAnswers>,
      { kind: 'ready' | 'joined' | 'stopped' | 'memory' | 'busy' | 'failure' }
    >,
  ): void {
    if (answer.kind === 'ready') this.cards[role] = parseInstanceCard(answer.card);
    else if (answer.kind === 'joined') this.joined.add(role);
    else if (answer.kind === 'stopped') this.ends[role] = answer;
    else if (answer.kind === 'memory') this.residents[role] = answer.residentBytes;
  }

  private onToken(seen: Observation, token: number): void {
    seen.tokenTimes.push(performance.now());
    this.options.onToken?.(seen.request.id, token);
    this.look();
  }

  private sendTicket(seen: Observation, ticket: string): void {
    const { id, prompt, limit } = seen.request;
    if (seen.isAborted) {
      seen.failure = { code: 'ABORTED', message: 'the request was aborted before decode had its ticket' };
      this.release(decodeTicket(ticket).handoff!);
      return;
    }
    this.decode.send({ kind: 'handoff', id, prompt: Array.from(prompt), limit, ticket });
  }

  private release(handoff: HandoffRef): void {
    // A handoff of a prefill process that is gone has nothing to release.
    if (handoff.incarnation === this.cards.prefill?.incarnation) this.prefill.send({ kind: 'release', handoff });
  }

  private of(id: string): Observation {
    const seen = this.observations.get(id);
    if (seen === undefined) throw new Error(`a worker speaks of the request ${JSON.stringify(id)}, which nobody made`);
    return seen;
  }

  private say(line: string): void {
    this.options.say?.(line);
  }

  private look(): void {
    this.heardAt = Date.now();
    for (const check of [...this.checks]) check();
  }
}
