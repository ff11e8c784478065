/**
 * A simulated control plane around the real core: engines, clients and an operator over connections that break, with lost
 * and doubled messages, deaths and restarts. What must hold is checked as it runs and once more when all is quiet.
 */
import { Coordinator } from '../../../lib/control/coordinator/coordinator.js';
import type { Effect, PeerId } from '../../../lib/control/coordinator/interface.js';
import type { ToClient, ToCoordinator, ToEngine } from '../../../lib/control/protocol/messages.js';
import { encodeValue } from '../../../lib/control/protocol/wire-bytes.js';
import { SeededRandom } from '../../../lib/testing/index.js';
import { miscounted, uncleared } from './engine-counts.js';
import { EngineProcess, type Read } from './engines.js';
import { Agenda, Line, type NetworkRates } from './network.js';
import { planControl, type ControlPlan } from './plan.js';

interface Connection {
  readonly up: Line<ToCoordinator>;
  readonly down: Line<ToEngine | ToClient>;
}

interface Asked {
  readonly client: string;
  readonly session: number;
  terminal: string | null;
  isUnsafe: boolean;
}

const prompt = encodeValue([1, 2, 3]);
const operator = 'operator';
const idsPerRun = 1_000_000;
const never = 1e9;

export class ControlWorld {
  readonly agenda = new Agenda();
  readonly random: SeededRandom;
  readonly sources = new Map<number, EngineProcess>();
  readonly reads = new Set<Read>();
  /** Whether engines can be held to the order and the number of requests that they are given. */
  readonly isOrderly: boolean;
  readonly isCounted: boolean;
  failure: string | null = null;
  readonly log: string[] = [];
  readonly #processes = new Map<string, EngineProcess>();
  readonly #connections = new Map<PeerId, Connection>();
  readonly #lost = new Map<PeerId, number>();
  readonly #asked = new Map<string, Asked>();
  readonly #sessions = new Map<string, number>();
  readonly #attested = new Set<string>();
  readonly #dead = new Set<string>();
  #rates: NetworkRates;
  #core: Coordinator;
  /** Effects that go out with the next. */
  #pending: Effect[] = [];
  #isPending = false;
  #runs = 0;
  #calls = 0;
  #hasRestarted = false;

  constructor(readonly plan: ControlPlan) {
    this.#rates = plan;
    this.random = new SeededRandom(plan.seed ^ 0x5eed);
    const { breaks, deaths, coordinatorRestarts, loss, limits } = plan;
    this.isCounted = breaks.length + coordinatorRestarts.length === 0 && loss === 0 && limits.decodeMs === undefined;
    this.isOrderly = this.isCounted && deaths.length === 0;
    this.#core = this.#newCore();
  }

  run(): string | null {
    const { plan, agenda, random } = this;
    for (const engine of plan.engines) this.#start(engine.peer);
    const clients = Array.from({ length: plan.clients }, (_, index) => `client${index}`);
    for (const client of [...clients, operator]) this.#connectClient(client);
    for (let request = 0; request < plan.requests; request++) {
      const client = random.pick(clients);
      agenda.after(50 + random.float() * plan.arrivalMs, () => this.#submit(client, request));
    }
    for (const { engine, atMs } of plan.breaks) agenda.after(atMs, () => this.#breakEngine(plan.engines[engine]!.peer));
    for (const { engine, atMs, isAttested } of plan.deaths)
      agenda.after(atMs, () => this.#kill(plan.engines[engine]!.peer, isAttested));
    for (const atMs of plan.coordinatorRestarts) agenda.after(atMs, () => this.#restart());
    for (const atMs of plan.clientBreaks) agenda.after(atMs, () => this.#breakClient(random.pick(clients)));
    const end = plan.arrivalMs * 1.5 + 25_000;
    for (let at = 100; at < end + 5000; at += 100) agenda.after(at, () => this.#act(this.#core.tick(agenda.now)));
    this.#runUntil(end);
    this.#checkDoubt();
    this.#rates = { ...plan, loss: 0 };
    // Until here a dead reader's pins may block the room they take. Now all deaths are attested, and whoever can speak says
    // once more what it holds.
    for (const owner of this.#dead) this.#attest(owner, () => undefined);
    if (plan.areOurs) for (const { peer } of plan.engines) this.#breakEngine(peer);
    this.#runUntil(end + 4000);
    if (this.failure === null) this.#checkEnd();
    return this.failure;
  }

  violation(text: string): void {
    this.failure ??= `${text} (at ${this.agenda.now.toFixed(2)} ms)`;
  }

  /** @returns false when there is no connection */
  say(peer: PeerId, message: ToCoordinator): boolean {
    const connection = this.#connections.get(peer);
    connection?.up.send(message);
    return connection !== undefined;
  }

  endRead(requestId: number, source: EngineProcess | null, reader: EngineProcess): void {
    for (const read of this.reads) {
      if (read.requestId === requestId && read.source === source && read.reader === reader) this.reads.delete(read);
    }
    if (source !== null && !this.isRead(requestId, source)) source.noteQuiet(requestId);
  }

  isRead(requestId: number, source: EngineProcess): boolean {
    return [...this.reads].some((read) => read.requestId === requestId && read.source === source);
  }

  matchSend(requestId: number, source: EngineProcess): void {
    if (!source.pins.has(requestId)) return;
    for (const process of this.#processes.values()) if (process.isAlive) process.matched(requestId);
  }

  #runUntil(end: number): void {
    while (this.failure === null && this.agenda.step(end));
  }

  #newCore(): Coordinator {
    const { behaviour, limits } = this.plan;
    const firstRequestId = this.#runs++ * idsPerRun;
    const instance = `run${this.#runs}`;
    return new Coordinator({
      instance,
      isDisaggregated: true,
      behaviour,
      limits,
      firstRequestId,
      affinityBlocksMax: 64,
    });
  }

  #start(peer: PeerId): void {
    const incarnation = `i${this.random.uint32()}`;
    const plan = this.plan.engines.find((engine) => engine.peer === peer)!;
    this.#processes.set(peer, new EngineProcess(this, plan, incarnation));
    this.#connectEngine(peer);
  }

  #connectEngine(peer: PeerId): void {
    const process = this.#processes.get(peer)!;
    if (!process.isAlive || this.#connections.has(peer)) return;
    this.#connect(
      peer,
      ({ header }) => header !== 'REGISTER_ROLE' && header !== 'REGISTER_ROLE_ACK',
      (message) => process.hear(message as ToEngine),
    );
    process.register();
  }

  #connectClient(client: string): void {
    if (this.#connections.has(client)) return;
    this.#sessions.set(client, (this.#sessions.get(client) ?? 0) + 1);
    this.#connect(
      client,
      () => false,
      (message) => this.#answer(client, message as ToClient),
    );
    this.say(client, { header: 'CONNECT' });
  }

  #connect(
    peer: PeerId,
    mayFail: (message: { readonly header: string }) => boolean,
    hear: (message: ToEngine | ToClient) => void,
  ): void {
    const { agenda, random } = this;
    const core = this.#core;
    // It comes back before its loss was noticed: nobody will say that it was lost.
    this.#lost.delete(peer);
    this.#connections.set(peer, {
      up: new Line<ToCoordinator>(
        agenda,
        random,
        () => this.#rates,
        mayFail,
        (message) => {
          if (core === this.#core) this.#receive(peer, message);
        },
      ),
      down: new Line<ToEngine | ToClient>(agenda, random, () => this.#rates, mayFail, hear),
    });
  }

  #receive(peer: PeerId, message: ToCoordinator): void {
    this.#note(`${peer} > ${message.header} ${'requestId' in message ? message.requestId : ''}`);
    this.#actSoon(this.#core.receive(this.agenda.now, peer, message));
    if (this.#calls++ % 16 === 0) this.#checkQueues();
  }

  /** What several messages cause may go out together: until then none of it is known to have been delivered. */
  #actSoon(effects: readonly Effect[]): void {
    const { agenda } = this;
    const core = this.#core;
    this.#pending.push(...effects);
    if (this.#isPending) return;
    this.#isPending = true;
    agenda.after(this.random.chance(0.5) ? 0 : this.random.float() * this.plan.delayMsMax, () => {
      if (core === this.#core) this.#act([]);
    });
  }

  #act(effects: readonly Effect[]): void {
    const all = [...this.#pending, ...effects];
    this.#pending = [];
    this.#isPending = false;
    const undelivered: (() => readonly Effect[])[] = [];
    const core = this.#core;
    for (const effect of all) {
      if (effect.kind !== 'send') continue;
      const { peer, message } = effect;
      this.#note(`${peer} < ${message.header} ${'requestId' in message ? message.requestId : ''}`);
      const connection = this.#connections.get(peer);
      if (connection !== undefined) connection.down.send(message);
      // A transport that has not noticed takes it and loses it.
      else if (this.random.chance(0.5)) undelivered.push(() => core.undelivered(this.agenda.now, peer, message));
    }
    for (const report of undelivered) if (core === this.#core) this.#act(report());
  }

  #cut(peer: PeerId): void {
    const connection = this.#connections.get(peer);
    if (connection === undefined) return;
    connection.up.cut();
    connection.down.cut();
    this.#connections.delete(peer);
    const lost = this.random.uint32();
    this.#lost.set(peer, lost);
    const core = this.#core;
    this.agenda.after(this.random.float() * 60, () => {
      if (this.#lost.get(peer) !== lost || core !== this.#core) return;
      this.#note(`${peer} lost`);
      this.#act(core.peerLost(this.agenda.now, peer));
    });
  }

  #breakEngine(peer: PeerId): void {
    if (!this.#processes.get(peer)!.isAlive) return;
    this.#cut(peer);
    this.#processes.get(peer)!.isAcked = false;
    this.agenda.after(this.random.float() * this.plan.reconnectMsMax, () => this.#connectEngine(peer));
  }

  #breakClient(client: string): void {
    this.#cut(client);
    this.agenda.after(this.random.float() * 100, () => this.#connectClient(client));
  }

  #kill(peer: PeerId, isAttested: boolean): void {
    const process = this.#processes.get(peer)!;
    if (!process.isAlive) return;
    this.#note(`${peer} dies`);
    process.die();
    this.#dead.add(process.owner);
    this.#cut(peer);
    // Of one that does not say which process it is, nobody can attest a death once another has its name.
    const returns = this.random.chance(0.7) && (this.plan.areOurs || isAttested);
    const restart = (): void => {
      if (returns) this.agenda.after(this.random.float() * 200, () => this.#start(peer));
    };
    if (!isAttested) return restart();
    // Attested once nothing it began can still be on its way.
    this.agenda.after(200, () => this.#attest(process.owner, restart));
  }

  /** The operator says it until it is acknowledged. */
  #attest(owner: string, then: () => void): void {
    if (this.#attested.has(owner)) return then();
    this.say(operator, { header: 'RELEASE_KV_OWNER', instance: `run${this.#runs}`, owner });
    if (this.agenda.now < never) this.agenda.after(150, () => this.#attest(owner, then));
  }

  #restart(): void {
    this.#note('the coordinator dies');
    for (const peer of [...this.#connections.keys()]) {
      this.#cut(peer);
      this.#lost.delete(peer);
      const process = this.#processes.get(peer);
      if (process !== undefined) process.isAcked = false;
    }
    this.#hasRestarted = true;
    this.#pending = [];
    this.#isPending = false;
    this.#core = this.#newCore();
    for (const { peer } of this.plan.engines)
      this.agenda.after(this.random.float() * this.plan.reconnectMsMax, () => this.#connectEngine(peer));
    for (const client of this.#sessions.keys())
      this.agenda.after(this.random.float() * 50, () => this.#connectClient(client));
  }

  #submit(client: string, requestId: number): void {
    if (!this.#connections.has(client)) return;
    const session = this.#sessions.get(client)!;
    this.#asked.set(`${client}/${requestId}`, { client, session, terminal: null, isUnsafe: false });
    const times = this.random.chance(this.plan.duplicate) ? 2 : 1;
    for (let time = 0; time < times; time++) {
      this.say(client, {
        header: 'SUBMIT_REQUEST',
        requestId,
        prompt,
        sampling: new Map(),
        blockHashes: null,
        mediaMeta: null,
        media: null,
        offloadParams: null,
      });
    }
    if (this.random.chance(this.plan.abortRate))
      this.agenda.after(this.random.float() * 100, () => this.say(client, { header: 'ABORT_REQUEST', requestId }));
  }

  #answer(client: string, message: ToClient): void {
    if (message.header === 'RELEASE_KV_OWNER_ACK') this.#attested.add(message.owner);
    if (!('requestId' in message) || message.header === 'ENGINE_REPLY_PARTIAL') return;
    const asked = this.#asked.get(`${client}/${message.requestId}`);
    if (asked === undefined)
      return this.violation(`${client} is told of ${message.requestId}, which it did not ask for`);
    const isConfirmation = message.header === 'REQUEST_ABORTED' && asked.isUnsafe;
    if (isConfirmation) asked.isUnsafe = false;
    else if (asked.terminal !== null)
      this.violation(`${client}/${message.requestId} is told ${message.header} after ${asked.terminal}`);
    else {
      asked.terminal = message.header;
      asked.isUnsafe = message.header === 'REQUEST_ERROR' && !message.sourceSafe;
    }
  }

  #checkQueues(): void {
    for (const wrong of miscounted(this.#core.snapshot(this.agenda.now).engines)) this.violation(wrong);
  }

  /** Before deaths are attested: what is pinned without a living reason is in doubt, by a reader that is dead. */
  #checkDoubt(): void {
    for (const { requestId, owner, state } of this.#core.snapshot(this.agenda.now).pins) {
      const isDead = owner !== null && this.#dead.has(owner) && !this.#attested.has(owner);
      const isUnknown = owner === null && this.#hasRestarted;
      if (state === 'in-doubt' && !isDead && !isUnknown && this.plan.loss === 0)
        this.violation(`pin ${requestId} of ${owner} is in doubt, and its reader is alive`);
    }
    if (this.plan.loss === 0) this.#checkPins();
    // With deadlines everybody is answered in time, whatever was lost.
    if (this.plan.limits.decodeMs !== undefined) this.#checkAnswers();
  }

  #checkAnswers(): void {
    for (const [name, { client, session, terminal }] of this.#asked) {
      if (terminal === null && session === this.#sessions.get(client)) this.violation(`${name} was never answered`);
    }
  }

  #checkEnd(): void {
    const { engines, requests, pins, promptBytes, counters } = this.#core.snapshot(this.agenda.now);
    this.#checkAnswers();
    const { submitted, completed, failed, aborted } = counters as Record<string, number>;
    const unanswered = submitted! - completed! - failed! - aborted!;
    if (unanswered !== 0) this.violation(`${unanswered} of ${submitted} requests are counted nowhere`);
    const { queuedPrefill, prefill, queuedDecode, decode } = requests;
    if (promptBytes !== 0) this.violation(`${promptBytes} bytes of prompts are kept for nobody`);
    if (queuedPrefill + prefill + queuedDecode + decode > 0)
      this.violation(`requests are left: ${JSON.stringify(requests)}`);
    for (const { requestId, owner, state } of pins) {
      // An earlier run may have given it to a reader without anybody alive to know.
      if (state !== 'in-doubt' || owner !== null || !this.#hasRestarted)
        this.violation(`pin ${requestId} is left: ${state}, owner ${owner}`);
    }
    for (const left of uncleared(engines)) this.violation(left);
    this.#checkPins();
  }

  /** What engines pin is what the coordinator shows. */
  #checkPins(): void {
    const { pins } = this.#core.snapshot(this.agenda.now);
    const shown = new Set(pins.map(({ prefill, requestId }) => `${prefill}/${requestId}`));
    for (const [peer, process] of this.#processes) {
      for (const requestId of process.pins.keys()) {
        if (!shown.has(`${peer}/${requestId}`)) this.violation(`${peer} still pins ${requestId}, and nobody knows`);
      }
    }
  }

  #note(text: string): void {
    this.log.push(`${this.agenda.now.toFixed(2).padStart(9)} ${text}`);
  }
}

/** Runs the world of a seed. @returns what was wrong, with what happened last; null when nothing was */
export function simulateControl(seed: number): string | null {
  const world = new ControlWorld(planControl(seed));
  const failure = world.run();
  return failure === null ? null : `${failure}\n${world.log.slice(-60).join('\n')}`;
}
