/**
 * The router: starts the engines for one model, submits the requests, and keeps what it saw. Who carries the messages of
 * each handoff, itself or a coordinator, is its control plane's matter. It never sees state, only tickets.
 */
import { randomBytes } from 'node:crypto';
import { checkCompatible, parseInstanceCard } from 'state-handoff';
import { bytesOf } from '../engine/index.js';
import { accountOf, pinsInDoubt, victimBeside, type ChaosAccount, type Killed } from './chaos.js';
import { compare } from './comparison.js';
import { RelayPlane, type ControlPlane, type DecodeInstance, type PrefillInstance } from './control-plane.js';
import type { decodeCommands, prefillCommands } from './messages.js';
import { decodeAnswers, prefillAnswers, type EngineSetting, type Message, type Schema } from './messages.js';
import { demoModel, stateSizes } from './engine-setting.js';
import { EngineWorld, type RankWorker, type Side } from './engine-world.js';
import type { DemoOptions } from './options.js';
import { Observation } from './observation.js';
import { RequestNames } from './request-names.js';
import type { DemoRequest, Scenario, Stage } from './scenario.js';
import { Vigil } from './vigil.js';
import type { WorkerProcess } from './worker-process.js';

type EngineAnswer = Extract<Message<typeof decodeAnswers>, { kind: 'ready' | 'stopped' | 'labelled' }>;
type Stopped = Extract<EngineAnswer, { kind: 'stopped' }>;

type Receive<Answers extends Schema> = (answer: Message<Answers>, from: RankWorker<never, never>) => void;
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
  /** Null when nobody was killed. */
  readonly chaos: ChaosAccount | null;
  readonly processIds: {
    readonly router: number;
    /** Null where the router relays itself. */
    readonly coordinator: number | null;
    readonly prefill: readonly number[];
    readonly decode: readonly number[];
  };
}

export class Router {
  private readonly observations = new Map<string, Observation>();
  private readonly workers = new Set<WorkerProcess<never, never>>();
  private readonly cards: { readonly from: RankWorker<never, never>; readonly card: unknown }[] = [];
  /** Names of the instances that were killed. */
  private readonly killed = new Set<string>();
  private readonly casualties: Killed[] = [];
  private doubtful = 0;
  private readonly ends: RankEnd[] = [];
  private readonly pairSetting: Omit<EngineSetting, 'blocks' | 'corrupt' | 'ranks' | 'coordinator' | 'identity'>;
  private prefills: readonly Prefill[] = [];
  private decodes: readonly Decode[] = [];
  private plane!: ControlPlane;
  private opening: Promise<void> | null = null;
  private stage: Stage | null = null;
  private readonly vigil = new Vigil();
  private readonly names: RequestNames;

  /** @param say - gets each line of progress */
  constructor(
    private readonly scenario: Scenario,
    private readonly options: DemoOptions,
    private readonly say: (line: string) => void,
  ) {
    this.names = new RequestNames(this.observations, options.coordinator);
    const { kind, proposals, chunk, maxRequests } = scenario;
    const { layers, seed, blockSize, transport, ssmGroups } = options;
    const rest = { transport, ssmGroups, ticketSecret: randomBytes(16).toString('hex') };
    this.pairSetting = { kind, layers, proposals, seed, blockSize, chunk, maxRequests, ...rest };
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
    const living = ranks.filter((rank) => !this.killed.has(instanceOf(rank)));
    await this.vigil.until('all workers to stop', () => this.ends.length === living.length);
    const idsOf = (side: Side): number[] =>
      ranks.filter((rank) => rank.side === side).map((rank) => rank.process.processId ?? 0);
    const { processId: coordinator } = this.plane;
    const processIds = { router: process.pid, coordinator, prefill: idsOf('prefill'), decode: idsOf('decode') };
    await this.compare();
    await this.end();
    const observations = [...this.observations.values()];
    const chaos = this.killed.size === 0 ? null : accountOf(observations, this.casualties, this.doubtful);
    return { observations, ends: this.ends, chaos, processIds };
  }

  /** Ends all workers, wherever they are; resolves when every process has gone. */
  async end(): Promise<void> {
    this.vigil.fail(new Error('the demo was stopped'));
    await Promise.all([...this.workers].map((worker) => worker.end()));
    await this.opening?.catch(() => undefined);
    await (this.plane as ControlPlane | undefined)?.close();
  }

  private get prefillInstances(): readonly PrefillInstance[] {
    return this.prefills.flatMap(({ instances }) => instances);
  }

  private get decodeInstances(): readonly DecodeInstance[] {
    return this.decodes.flatMap(({ instances }) => instances);
  }

  private async open(): Promise<void> {
    const { blocks } = this.scenario;
    const { prefill, decode, corrupt } = this.options;
    const fail = (error: Error, isConsequence = false): void => this.vigil.fail(error, isConsequence);
    const label = (shapes: readonly unknown[], index: number): string => (shapes.length === 1 ? '' : String(index + 1));
    this.opening = this.startPlane();
    await this.opening;
    if (this.vigil.failure !== null) throw this.vigil.failure;
    this.prefills = prefill.map((shape, index) => {
      const receive = ((answer, from) => this.onPrefill(answer, from)) as Receive<typeof prefillAnswers>;
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
      const receive = ((answer, from) => this.onDecode(answer, from)) as Receive<typeof decodeAnswers>;
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
    const { address, processId } = this.plane;
    const coordinator = processId === null ? '' : `coordinator ${processId} at ${address}, `;
    this.say(`processes: router ${process.pid}, ${coordinator}prefill ${ids('prefill')}, decode ${ids('decode')}`);
    // Prefill holds what decode has no room for yet.
    const setting = { ...this.pairSetting, coordinator: address };
    this.prefills.forEach((world, index) => world.start({ ...setting, blocks: 3 * blocks, corrupt: false }, index));
    this.decodes.forEach((world, index) => world.start({ ...setting, blocks, corrupt }, prefill.length + index));
    await this.vigil.until('all workers to be ready', () => this.cards.length === workers.length);
    this.checkCards();
    await this.plane.begin({ prefills: this.prefillInstances, decodes: this.decodeInstances });
  }

  private async startPlane(): Promise<void> {
    const { blockSize } = this.options;
    if (!this.options.coordinator) {
      this.plane = new RelayPlane(blockSize);
      return;
    }
    // What only this mode needs is loaded in this mode.
    const { CoordinatorPlane } = await import('./coordinator-plane.js');
    const heard =
      <Rest extends unknown[]>(tell: (seen: Observation, ...rest: Rest) => void) =>
      (seen: Observation, ...rest: Rest): void => {
        tell(seen, ...rest);
        this.vigil.heard();
      };
    this.plane = await CoordinatorPlane.start(this.options, {
      token: heard((seen, token: number) => this.stream(seen, token)),
      finished: heard((seen, finished: NonNullable<Observation['finished']>) => this.finished(seen, finished)),
      failed: heard((seen, code: string, message: string) => this.failed(seen, code, message)),
      lost: (error) => this.vigil.fail(error),
    });
  }

  private checkCards(): void {
    const cardsOf = (side: Side) =>
      this.cards
        .filter(({ from, card }) => from.side === side && card !== null)
        .map(({ card }) => parseInstanceCard(card));
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
    const seen = stage.requests.map((request) => new Observation(request, this.samplingOf(request), this.killed));
    for (const each of seen) this.observations.set(each.request.id, each);
    const areHeld = (): boolean => seen.every(({ request, arrival }) => !request.held || arrival >= 0);
    for (const each of seen) {
      if (stage.kills && !each.request.held) await this.vigil.until('what is held to arrive', areHeld);
      this.submit(each);
      if (stage.oneByOne) await this.vigil.until(`the request ${each.request.id}`, () => each.isOver);
    }
    if (stage.kills) await this.killSome(seen);
    await this.vigil.until(`the stage "${stage.title}"`, () => seen.every((each) => each.isOver));
  }

  private async killSome(seen: readonly Observation[]): Promise<void> {
    const generates = ({ request, tokens, decode }: Observation): boolean =>
      !request.held && decode !== null && tokens.length > 0;
    await this.vigil.until('one to generate', () => seen.some(generates));
    const { instance } = seen.find(generates)!.decode!;
    this.killed.add(instance).add(victimBeside(instance, seen));
    this.doubtful = pinsInDoubt(seen, this.killed);
    const hit = this.cards.filter(({ from }) => this.killed.has(instanceOf(from)));
    for (const name of this.killed) {
      const ranks = hit.filter(({ from }) => instanceOf(from) === name);
      this.say(`${name}: SIGKILL`);
      const blocks = (ranks[0]!.from.side === 'prefill' ? 3 : 1) * this.scenario.blocks - 1;
      this.casualties.push({ instance: name, blocks: blocks * ranks.length });
    }
    await Promise.all(hit.map(({ from }) => from.process.kill()));
    // The router has seen these processes end; the coordinator has only lost their connections.
    for (const { card } of hit) if (card !== null) await this.plane.attestDead(parseInstanceCard(card));
    this.plane.letGo();
  }

  private samplingOf({ tokens, stopsLike }: DemoRequest): Observation['sampling'] {
    const first = stopsLike === null ? -1 : (this.observations.get(stopsLike)?.tokens[0] ?? -1);
    return { num_tokens_to_generate: tokens, termination_id: first };
  }

  private submit(seen: Observation): void {
    const { id, prompt, shows } = seen.request;
    seen.submittedAt = performance.now();
    this.say(`${id.padEnd(10)} ${prompt.length} tokens: ${shows}`);
    this.plane.submit(seen, this.stage!);
  }

  private get ofStage(): readonly Observation[] {
    return this.stage!.requests.map(({ id }) => this.observations.get(id)!);
  }

  private onPrefill(answer: Message<typeof prefillAnswers>, from: RankWorker<never, never>): void {
    switch (answer.kind) {
      case 'prefilled': {
        const { ticket, logits, blocks, computedTokens } = answer;
        this.names.about(answer.id, (seen) => {
          seen.ticket = ticket;
          seen.firstLogits = logits;
          this.say(
            `${seen.name} prefilled: ${computedTokens} tokens computed, ${blocks} blocks pinned, ticket of ${ticket.length} bytes`,
          );
          this.plane.prefilled(seen, this.stage!, this.ofStage);
        });
        break;
      }
      case 'released':
        this.names.about(answer.id, (seen) => (seen.isReleased = true));
        break;
      case 'failed':
        this.names.about(answer.id, (seen) => seen.fail(answer.code, answer.message));
        break;
      case 'busy':
        this.say(`${from.name.padEnd(10)} at work: ${answer.tokens} tokens computed so far`);
        break;
      case 'failure':
        break;
      default:
        this.onEngine(answer, from);
    }
    this.vigil.heard();
  }

  /** What engines of both roles say. */
  private onEngine(answer: EngineAnswer, from: RankWorker<never, never>): void {
    if (answer.kind === 'ready') this.cards.push({ from, card: answer.card });
    else if (answer.kind === 'stopped')
      this.ends.push({ name: from.name, side: from.side, isLeader: from.place.isLeader, end: answer });
    else {
      const seen = this.names.name(answer.label, answer.id);
      if (from.side === 'prefill') seen.prefill = instanceOf(from);
    }
  }

  private onDecode(answer: Message<typeof decodeAnswers>, from: RankWorker<never, never>): void {
    switch (answer.kind) {
      case 'deferred':
        this.names.about(answer.id, (seen) => {
          this.arrived(seen, from);
          seen.isDeferred = true;
          this.say(`${seen.name} waits: decode has no room`);
          this.plane.arrived(seen, this.stage!, this.ofStage);
        });
        break;
      case 'reserved':
        this.names.about(answer.id, (seen) => {
          this.arrived(seen, from);
          seen.reserved = answer;
          this.plane.arrived(seen, this.stage!, this.ofStage);
          if (!seen.request.aborts) return;
          this.say(`${seen.name} target reserved, transfer not over: abort`);
          this.plane.abort(seen);
        });
        break;
      case 'landed':
        this.names.about(answer.id, (seen) => {
          this.arrived(seen, from);
          seen.land(answer);
          if (seen.landed === null) return;
          const { bytes, milliseconds } = seen.landed;
          const { blocks, cachedBlocks } = seen.reserved ?? { blocks: 0, cachedBlocks: 0 };
          this.say(
            `${seen.name} moved ${blocks - cachedBlocks} blocks, ${bytes} bytes, in ${milliseconds.toFixed(2)} ms` +
              (cachedBlocks === 0 ? '' : `; ${cachedBlocks} blocks were here already`),
          );
        });
        break;
      case 'admitted':
        this.names.about(answer.id, (seen) => (seen.isAdmitted = true));
        break;
      case 'token':
        this.names.about(answer.id, (seen) => this.stream(seen, answer.token));
        break;
      case 'computed':
        this.names.about(answer.id, (seen) => (seen.computed = answer));
        break;
      case 'finished':
        this.names.about(answer.id, (seen) => this.finished(seen, answer));
        break;
      case 'failed':
        this.names.about(answer.id, (seen) => this.failed(seen, answer.code, answer.message));
        break;
      case 'readDone':
        this.names.about(answer.id, (seen) => {
          seen.isRead = true;
          this.plane.readDone(seen, answer.handoff);
        });
        break;
      case 'busy':
      case 'failure':
        break;
      default:
        this.onEngine(answer, from);
    }
    this.vigil.heard();
  }

  private arrived(seen: Observation, from: RankWorker<never, never>): void {
    const { shape } = from.place;
    const instance = instanceOf(from);
    const sizes = stateSizes(demoModel(this.pairSetting), this.options.blockSize, shape);
    seen.decode ??= { instance, ranks: shape.tp * shape.pp, sizes };
  }

  private finished(seen: Observation, answer: NonNullable<Observation['finished']>): void {
    seen.finish(answer);
    this.flush(seen);
    this.say(`${seen.name} done: ${answer.tokens.length} tokens (${answer.reason})`);
  }

  private failed(seen: Observation, code: string, message: string): void {
    seen.fail(code, message);
    this.say(`${seen.name} ended without a result: ${message} (${code})`);
  }

  private stream(seen: Observation, token: number): void {
    seen.note(token);
    if (seen.unsaid.length >= 16) this.flush(seen);
  }

  private flush(seen: Observation): void {
    if (seen.unsaid.length === 0) return;
    const text = Buffer.from(bytesOf(seen.unsaid.splice(0))).toString('latin1');
    this.say(`${seen.name} > ${JSON.stringify(text)}`);
  }

  private async compare(): Promise<void> {
    const due = [...this.observations.values()].filter(({ finished }) => finished !== null);
    this.say('');
    this.say(`-- comparing ${due.length} results with those of one engine without a handoff --`);
    const setting = { ...this.pairSetting, blocks: this.scenario.blocks };
    await compare(setting, due, this.vigil, this.say, (worker) => this.workers.add(worker as never));
  }
}

/** The engine that a rank is part of. */
function instanceOf({ name, place }: RankWorker<never, never>): string {
  const world = name.replace(/ rank \d+$/, '');
  return place.shape.dp === 1 ? world : `${world} instance ${place.instance}`;
}
