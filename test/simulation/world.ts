/**
 * One seed, one world: instances, a router and a network over one simulated clock, run until everything is over, and
 * judged all the way.
 *
 * After every event each rank whose pools changed is checked; every 64 events and at the end everything is. The first
 * thing that is wrong ends the world.
 */
import {
  OwnershipLedger,
  Recorder,
  ScriptedNetwork,
  SeededRandom,
  seededScript,
  SimulatedClock,
} from '../../lib/testing/index.js';
import { SimInstance } from './sim-instance.js';
import { SimRouter } from './sim-router.js';
import { planWorld, type WorldPlan } from './world-plan.js';

/** Time that faults have after the last arrival. */
const troubleMs = 80;
/**
 * Simulated time after which a world that is calm must be over: longer than every deadline together. A world of 500 requests with
 * little room, each tried again after its deadline in the queue, has taken more than 20 seconds (seed 30128355).
 */
const patienceMs = 60_000;
/** How long an operator looks on. */
const operatorMs = 2_000;
const eventsMax = 2_000_000;
const eventsPerFullCheck = 64;

export interface WorldResult {
  readonly seed: number;
  /** Null: all is well. */
  readonly failure: string | null;
  readonly events: number;
  readonly simulatedMs: number;
  readonly outcomes: Readonly<Record<string, number>>;
  /** The last lines of what happened; empty unless it failed. */
  readonly trace: string;
}

/** Runs the world of `seed`. */
export async function simulate(seed: number): Promise<WorldResult> {
  return new World(planWorld(seed)).run();
}

export class World {
  readonly clock = new SimulatedClock();
  readonly network: ScriptedNetwork;
  readonly ledger: OwnershipLedger;
  readonly recorder: Recorder;
  readonly instances: readonly SimInstance[];
  readonly router: SimRouter;
  /** Nothing new goes wrong from now on. */
  isCalm = false;
  /** No instance comes back any more. */
  isOver = false;
  failure: string | null = null;
  events = 0;
  readonly #random: SeededRandom;

  constructor(readonly plan: WorldPlan) {
    this.#random = new SeededRandom(plan.seed ^ 0x5eed);
    this.network = new ScriptedNetwork(this.clock, seededScript(this.#random.fork(), plan.faults));
    this.ledger = new OwnershipLedger(this.network, (message) => this.violation(message));
    this.recorder = new Recorder(this.clock, 4000);
    this.router = new SimRouter(this, this.#random.fork());
    this.instances = plan.instances.map((each, index) => new SimInstance(this, index, each, this.#random.fork()));
  }

  /** What is wrong; the first one counts and ends the world. */
  violation(message: string): void {
    if (this.failure !== null) return;
    this.failure = message;
    this.recorder.record('judge', 'violation', message);
  }

  /** Runs a callback; what it throws is a violation. */
  guard(callback: () => void): void {
    try {
      callback();
    } catch (error) {
      this.violation(`threw ${(error as Error).stack ?? String(error)}`);
    }
  }

  async run(): Promise<WorldResult> {
    await this.#start();
    const calmAtMs = this.plan.arrivalMs + troubleMs;
    this.clock.after(calmAtMs, () => undefined);
    await this.#runUntil(() => this.clock.now() >= calmAtMs, Infinity);
    this.isCalm = true;
    this.network.script = null;
    for (const instance of this.instances) if (instance.ranks === null) await instance.start();
    for (const instance of this.instances) instance.wakeAll();
    this.#operate();
    await this.#runUntil(() => this.#isSettled(), this.clock.now() + patienceMs);
    if (this.failure === null) this.#judgeEnd();
    if (this.failure === null && this.#quarantined() > 0) await this.#endDoubts();
    return {
      seed: this.plan.seed,
      failure: this.failure,
      events: this.events,
      simulatedMs: this.clock.now(),
      outcomes: Object.fromEntries(this.router.outcomes),
      trace: this.failure === null ? '' : this.recorder.trace(60),
    };
  }

  async #start(): Promise<void> {
    await Promise.all(this.instances.map((instance) => instance.start()));
    this.router.start();
    for (const { instance, atMs } of this.plan.restarts)
      this.clock.after(atMs, () => this.#restart(this.instances[instance]!));
    for (const each of this.plan.losses) this.clock.after(each.atMs, () => this.#lose(each));
  }

  /** One rank of an instance dies. Whoever runs the instance sees that it has failed, and starts it anew. */
  #lose({ instance: index, rank, restartAfterMs }: WorldPlan['losses'][number]): void {
    const instance = this.instances[index]!;
    if (instance.ranks === null || instance.lostRank !== null || this.isCalm) return;
    this.recorder.record('world', 'lose', { ...instance.identity, rank });
    const { incarnation } = instance;
    instance.lose(rank);
    this.clock.after(restartAfterMs, () => {
      if (instance.incarnation !== incarnation || instance.ranks === null || this.isOver) return;
      instance.checkLossIsKnown();
      this.#kill(instance);
      this.clock.after(1, () => {
        if (instance.ranks === null && !this.isOver) void instance.start();
      });
    });
  }

  /** An instance dies with all it has, and comes back empty some time later. */
  #restart(instance: SimInstance): void {
    if (instance.ranks === null || this.isCalm) return;
    this.#kill(instance);
    this.clock.after(this.#random.float() * 30, () => {
      if (instance.ranks === null && !this.isOver) void instance.start();
    });
  }

  /**
   * Memory in doubt can hold up all that waits behind it, and only the death of whoever could touch it ends that: an
   * operator who sees it last restarts the other side.
   */
  #operate(): void {
    this.clock.after(operatorMs, () => {
      if (this.isOver || this.#isSettled()) return;
      const isDoubted = (role: 'prefill' | 'decode'): boolean =>
        this.instances.some(({ plan, leader }) => {
          if (plan.role === role || leader === null) return false;
          const { quarantine, pins } = leader.handoff.inspect();
          return quarantine.length > 0 || pins.some(({ state }) => state === 'draining');
        });
      for (const role of ['prefill', 'decode'] as const) {
        if (!isDoubted(role)) continue;
        for (const instance of this.instances) {
          if (instance.plan.role !== role || instance.ranks === null) continue;
          this.#kill(instance);
          this.clock.after(5, () => {
            if (!this.isOver) void instance.start();
          });
        }
      }
      this.#operate();
    });
  }

  #kill(instance: SimInstance): void {
    this.recorder.record('world', 'kill', instance.identity);
    const { identity } = instance;
    instance.kill();
    // Bytes under way may arrive for as long as the script lets them; attested only after that.
    this.router.instanceDied(instance, identity, (this.plan.faults.delayMsMax ?? 3) + 0.1);
  }

  async #runUntil(isDone: () => boolean, limitMs: number): Promise<void> {
    while (this.failure === null) {
      if (this.events % 16 === 0 && isDone()) return;
      if (this.clock.now() > limitMs || this.events > eventsMax) {
        if (isDone()) return;
        this.violation(
          `the world is not over after ${this.clock.now().toFixed(0)} ms and ${this.events} events: ${this.#openWork()}`,
        );
        return;
      }
      let moved = false;
      this.guard(() => (moved = this.clock.step()));
      await Promise.resolve(); // promises settle between events
      if (!moved) {
        // An answer may take several turns to reach whoever acts on it.
        await new Promise((resolve) => setImmediate(resolve));
        if (this.clock.nextMs !== null) continue;
        if (!isDone()) this.violation(`nothing will ever happen again, and the world is not over: ${this.#openWork()}`);
        return;
      }
      this.events++;
      this.guard(() => this.#check());
    }
  }

  #check(): void {
    if (this.events % eventsPerFullCheck === 0) {
      for (const instance of this.instances) instance.checkAll();
      return;
    }
    for (const instance of this.instances) {
      for (const rank of instance.ranks ?? []) if (rank.changes !== rank.checkedChanges) instance.check(rank);
    }
  }

  #isSettled(): boolean {
    if (this.router.openCount > 0) return false;
    if (this.instances.some(({ lostRank, ranks }) => lostRank !== null || ranks === null)) return this.isOver;
    for (const instance of this.instances) {
      const { ranks, plan } = instance;
      if (ranks === null) continue;
      for (const { engine, handoff, steps } of ranks) {
        if (steps !== ranks[0]!.steps) return false;
        if (engine.hogged.length > 0 || engine.batch.running.size > 0 || handoff.pendingKvImportCount > 0) return false;
      }
      if (plan.role === 'prefill' && this.#unexplainedPins(instance).length > 0) return false;
      if (plan.role === 'decode' && this.#unexplainedQuarantine(instance).length > 0) return false;
    }
    return true;
  }

  /** Quarantined imports of which no rank's memory can be written any more. */
  #unexplainedQuarantine({ ranks }: SimInstance): readonly string[] {
    const held = (ranks ?? []).flatMap(({ name, handoff }) =>
      handoff.inspect().quarantine.map((each) => ({ name, each })),
    );
    if (held.length === 0) return [];
    const doubts = ranks!.map(({ transport }) => this.ledger.inDoubt(transport));
    return held
      .filter(({ each: { blocks, slot } }) => {
        const mine = new Set(blocks);
        return !doubts.some(
          (doubt) => doubt.blocks.some((block) => mine.has(block)) || (slot !== null && doubt.slots.includes(slot)),
        );
      })
      .map(({ name, each }) => `${name} attempt ${each.attemptId}`);
  }

  /** Pins of which no decode instance says that it may still read them. */
  #unexplainedPins(prefill: SimInstance): readonly string[] {
    const { identity, leader } = prefill;
    const held = new Set<number>();
    for (const decode of this.instances) {
      if (decode.plan.role !== 'decode') continue;
      for (const rank of decode.ranks ?? []) {
        for (const { source } of rank.handoff.inspect().quarantine) {
          if (source?.instance === identity.instance && source.incarnation === identity.incarnation)
            held.add(source.handoffId);
        }
      }
    }
    // A push that its source was told to stop, and cannot prove to have stopped, keeps its pin.
    const pushes = prefill.ranks!.flatMap(({ transport }) => this.network.openPushes(transport));
    for (const { tag, sourceEnd } of pushes) {
      const [, , handoffId] = /^([^/]+\/[^/]+)\/(\d+):/.exec(tag) ?? [];
      if (sourceEnd!.cancelAsked && handoffId !== undefined) held.add(Number(handoffId));
    }
    return leader!.handoff
      .inspect()
      .pins.filter(({ handoffId }) => !held.has(handoffId))
      .map(({ requestId, state }) => `${requestId} (${state})`);
  }

  #quarantined(): number {
    let count = 0;
    for (const { ranks } of this.instances)
      for (const { handoff } of ranks ?? []) count += handoff.inspect().quarantine.length;
    return count;
  }

  #openWork(): string {
    const parts: string[] = [
      `${this.router.openCount} answers open (${this.router.openLabels.slice(0, 8).join(', ')})`,
    ];
    for (const instance of this.instances) {
      for (const { name, handoff, engine, steps } of instance.ranks ?? []) {
        const { imports, pins, quarantine } = handoff.inspect();
        const isIdle =
          imports.length + pins.length + quarantine.length + engine.batch.running.size + engine.hogged.length === 0;
        if (isIdle && steps === instance.leader!.steps) continue;
        const views = [...imports, ...quarantine].map(({ requestId, state }) => `${requestId} ${state}`);
        const held = pins.map(({ requestId, state, pushing }) => `${requestId} ${state}${pushing ? ' pushing' : ''}`);
        parts.push(
          `${name} at step ${steps}: [${[...views, ...held].join(', ')}], ${engine.batch.running.size} running`,
        );
      }
    }
    return parts.join('; ');
  }

  /** Everything has been answered; what is still held must be in doubt, and the counters must add up. */
  #judgeEnd(): void {
    for (const instance of this.instances) {
      instance.checkAll();
      if (instance.plan.role !== 'decode') continue;
      this.#judgeMetrics(instance);
    }
  }

  /** Every end moves exactly one counter. */
  #judgeMetrics(decode: SimInstance): void {
    const { leader, adds, outcomes } = decode;
    if (leader === null) return;
    const { counters } = leader.handoff.metrics();
    const counted = (name: string): number => counters[`imports_${name}_total`] ?? 0;
    const got = {
      completed: counted('completed'),
      aborted: counted('aborted'),
      others: counted('failed') + counted('refused'),
    };
    const completed = outcomes.get('finished') ?? 0;
    const aborted = outcomes.get('ABORTED') ?? 0;
    const expected = { completed, aborted, others: adds - completed - aborted };
    if (JSON.stringify(got) !== JSON.stringify(expected)) {
      this.violation(
        `${decode.plan.name}: counters say ${JSON.stringify(got)}, its callers were told ${JSON.stringify(expected)}`,
      );
    }
  }

  /** The last doubt ends with the death of whoever could write: then all memory must come back. */
  async #endDoubts(): Promise<void> {
    this.isOver = true;
    for (const instance of this.instances)
      if (instance.plan.role === 'prefill' && instance.ranks !== null) this.#kill(instance);
    await this.#runUntil(() => this.#quarantined() === 0 && this.#isSettled(), this.clock.now() + 1000);
    if (this.failure !== null) return;
    for (const instance of this.instances) {
      instance.checkAll();
      for (const { name, engine } of instance.ranks ?? []) {
        const free = engine.blocks.freeCount + engine.blocks.evictableCount;
        if (free !== engine.blocks.poolSize - 1)
          this.violation(`${name}: ${engine.blocks.poolSize - 1 - free} blocks did not come back`);
        if (engine.slots !== null && engine.slots.freeCount !== engine.slots.size)
          this.violation(`${name}: a slot did not come back`);
      }
    }
  }
}
