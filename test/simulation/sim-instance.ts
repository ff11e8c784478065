/**
 * One simulated engine instance: its ranks, their step loops and their deaths.
 *
 * Every rank looks at the world at times of its own. What a step of the instance does is decided by rank 0 once and
 * carried out by every rank at the same place of the log, as a host engine's schedule broadcast would have it.
 */
import type { RankGroup } from '../../lib/control/rank-group.js';
import { isHandoffError, type HandoffError } from '../../lib/errors.js';
import type { Ticket } from '../../lib/ticket.js';
import { StateHandoff } from '../../lib/state-handoff.js';
import {
  checkEqualRanks,
  checkHashOwners,
  checkOrder,
  checkOwnership,
  InProcessRankGroup,
  rankPositions,
  ScriptedTransport,
  TestEngine,
  type EngineEnd,
  type Holding,
  type ObservedImport,
  type ObservedRank,
  type PrefillRun,
  type SeededRandom,
} from '../../lib/testing/index.js';
import type { Inspection } from '../../lib/observe/inspection.js';
import { LostRankGroup } from '../support/altered-rank-groups.js';
import type { SimRequest } from './sim-request.js';
import type { InstancePlan, WorldPlan } from './world-plan.js';
import type { World } from './world.js';

/** Steps that a leader may be ahead of its slowest worker. */
const leadMax = 6;

/** How often an idle engine looks at memory that is in doubt (spec 1.8: its loop never sleeps longer). */
const idleTickMs = 20;

/** What all ranks do in one step beside applying the log. */
interface StepPlan {
  /** Prefill: labels to compute, in order. */
  readonly candidates: readonly string[];
  /** Decode: blocks to take away, or -1 to give all back. */
  readonly hog: number;
  /** Decode: running requests that the engine itself fails. */
  readonly failOneIn: number;
}

export class SimRank {
  steps = 0;
  /** Of the pools, as the last step left them. */
  digest = 0;
  /** Bumped by the pools' observers. */
  changes = 0;
  checkedChanges = -1;
  tickPending = false;
  /** The log has said that the instance has failed: it computes nothing any more. */
  hasFailed = false;
  readonly observed: ObservedRank;
  #digestChanges = -1;
  #lastDigest = 0;

  constructor(
    readonly instance: SimInstance,
    readonly rank: number,
    readonly name: string,
    readonly engine: TestEngine,
    readonly transport: ScriptedTransport,
    readonly handoff: StateHandoff,
    readonly group: RankGroup | null,
  ) {
    const changed = (): void => void this.changes++;
    engine.blocks.observers.add({
      allocated: changed,
      released: changed,
      retained: changed,
      registered: changed,
      deregistered: changed,
    });
    engine.slots?.observers.add({ allocated: changed, freed: changed });
    this.observed = observe(this);
  }

  /** Of the pools as they are now; computed again only after a change. */
  poolDigest(): number {
    if (this.#digestChanges !== this.changes) {
      this.#digestChanges = this.changes;
      this.#lastDigest = this.#computeDigest();
    }
    return this.#lastDigest;
  }

  #computeDigest(): number {
    return (this.engine.blocks.digest() ^ Math.imul(this.engine.slots?.digest() ?? 0, 31)) >>> 0;
  }
}

export class SimInstance {
  incarnation = 0;
  /** Null while it is down. */
  ranks: SimRank[] | null = null;
  /** Prefill: labels that wait for it, in order. */
  readonly waiting: string[] = [];
  /** The worker that died alone, until all are started anew; null: none. */
  lostRank: number | null = null;
  /** Somebody asked its leader for something since its last step. */
  isAsked = false;
  /** Decode: answers owed by this incarnation. */
  adds = 0;
  outcomes = new Map<string, number>();
  #stepsAtLoss = 0;
  #plans: StepPlan[] = [];
  #digests: number[] = [];
  readonly #random: SeededRandom;

  constructor(
    readonly world: World,
    readonly index: number,
    readonly plan: InstancePlan,
    random: SeededRandom,
  ) {
    this.#random = random;
  }

  get leader(): SimRank | null {
    return this.ranks?.[0] ?? null;
  }

  get identity(): { readonly instance: string; readonly incarnation: string } {
    return { instance: this.plan.name, incarnation: `inc${this.incarnation}` };
  }

  /** A new incarnation with empty memory. */
  async start(): Promise<void> {
    const { world, plan } = this;
    const { clock, network } = world;
    this.incarnation++;
    this.lostRank = null;
    this.#plans = [];
    this.#digests = [];
    this.adds = 0;
    this.outcomes = new Map();
    const worldPlan = world.plan;
    const size = plan.tpSize * plan.ppSize;
    const groups = size === 1 ? null : this.#makeGroup(size);
    const random = this.#random;
    const late = (): number => (random.chance(worldPlan.lateFenceRate) ? random.float() * 6 : 0);
    const ranks = rankPositions(plan.tpSize, plan.ppSize, 0, plan.stageEnds).map((position, rank) => {
      const name = `${plan.name}.${rank}`;
      const engine = new TestEngine({
        role: plan.role,
        clock,
        shape: worldPlan.shape,
        position,
        poolSize: plan.poolSize,
        maxRequests: plan.maxRequests,
        maxSequenceLength: 64,
        numSpeculativeTokens: worldPlan.numSpeculativeTokens,
        kvAxes: plan.kvAxes,
        quiescentAfterMs: late,
        readyAfterMs: late,
        onViolation: (message) => world.violation(`${name}: ${message}`),
      });
      const transport = new ScriptedTransport(network, {
        direction: worldPlan.direction,
        provesQuietOnCancel: worldPlan.provesQuietOnCancel,
        ...(plan.role === 'prefill' && worldPlan.noticesLateReads
          ? {
              generations:
                engine.slots === null ? { blocks: engine.blocks } : { blocks: engine.blocks, slots: engine.slots },
            }
          : {}),
      });
      const handoff = new StateHandoff(engine, {
        ...this.identity,
        clock,
        deadlines: worldPlan.deadlines,
        limits: {
          maxPinnedHandoffs: worldPlan.maxPinnedHandoffs,
          ...(worldPlan.maxInFlightBlocks === null
            ? {}
            : { maxInFlightBytes: worldPlan.maxInFlightBlocks * blockBytes(worldPlan) }),
        },
      });
      return new SimRank(this, rank, name, engine, transport, handoff, groups?.[rank] ?? null);
    });
    await Promise.all(
      ranks.map(({ handoff, transport, group }) => handoff.setupKvTransfer(plan.role, transport, { group })),
    );
    for (const rank of ranks) {
      world.ledger.watch({
        name: rank.name,
        group: `${plan.name}/${this.incarnation}`,
        transport: rank.transport,
        engine: rank.engine,
      });
      this.#listen(rank);
      rank.engine.onAdmit = (request) => {
        if (rank.hasFailed) world.violation(`${rank.name}: admitted a request after its instance had failed`);
        world.ledger.admitted(rank.transport, request);
      };
      rank.engine.onEnd = (end) => this.#engineEnded(rank, end);
      rank.digest = rank.poolDigest();
    }
    this.ranks = ranks;
    for (const rank of ranks) this.wake(rank);
  }

  /** Every process of it dies, with all they had. */
  kill(): void {
    const { ranks } = this;
    if (ranks === null) return;
    this.ranks = null;
    this.waiting.length = 0;
    for (const { transport } of ranks) {
      this.world.network.kill(transport);
      this.world.ledger.unwatch(transport);
    }
  }

  /** One worker dies with all it had; the others hear of it, and what it said before its end. */
  lose(rank: number): void {
    const dead = this.ranks?.find((each) => each.rank === rank);
    if (dead === undefined || this.lostRank !== null) return;
    this.lostRank = rank;
    this.#stepsAtLoss = this.leader!.steps;
    this.ranks = this.ranks!.filter((each) => each !== dead);
    this.world.network.kill(dead.transport);
    this.world.ledger.unwatch(dead.transport);
    for (const { group } of this.ranks) (group as LostRankGroup).lose(rank);
    this.wakeAll();
  }

  /** That a rank is gone comes round with one of the next frames. */
  checkLossIsKnown(): void {
    for (const { name, steps, hasFailed } of this.ranks ?? []) {
      if (steps > this.#stepsAtLoss + 3 && !hasFailed)
        this.world.violation(`${name}: took ${steps - this.#stepsAtLoss} steps without a word of the lost rank`);
    }
  }

  /** Makes a rank look at the world soon. */
  wake(rank: SimRank, isIdle = false): void {
    if (rank.tickPending || !this.ranks?.includes(rank)) return;
    rank.tickPending = true;
    const ms = (isIdle ? idleTickMs : this.plan.tickMs) * (0.3 + this.#random.float() * 1.4);
    this.world.clock.after(ms, () => {
      rank.tickPending = false;
      if (this.ranks?.includes(rank) !== true) return;
      this.#tick(rank);
      if (this.#hasWork(rank)) this.wake(rank);
      else if (rank.handoff.inspect().quarantine.length > 0) this.wake(rank, true);
    });
  }

  wakeAll(): void {
    this.isAsked = true;
    for (const rank of this.ranks ?? []) this.wake(rank);
  }

  /** A hash on its way belongs to an import that still brings it. */
  #checkOwners({ name, handoff }: SimRank): void {
    const { hashOwners, imports } = handoff.inspect();
    for (const [hash, owner] of hashOwners) {
      const state = imports.find(({ attemptId }) => attemptId === owner)?.state;
      if (state === undefined || state === 'queued' || state === 'agreed' || state === 'admitted') {
        this.world.violation(`${name}: hash ${hash} is owned by attempt ${owner}, which is ${state ?? 'over'}`);
      }
    }
  }

  /** All invariants of one rank, and of the ranks with each other. */
  check(rank: SimRank): void {
    rank.checkedChanges = rank.changes;
    for (const check of [checkOwnership, checkHashOwners, checkOrder]) {
      const [violation] = check(rank.observed);
      if (violation !== undefined) this.world.violation(`${violation.invariant}: ${violation.message}`);
    }
  }

  checkAll(): void {
    if (this.ranks === null) return;
    for (const rank of this.ranks) {
      this.check(rank);
      this.#checkOwners(rank);
    }
    if (this.ranks.length === 1) return;
    const [violation] = checkEqualRanks(
      this.ranks.map((rank) => ({ ...rank.observed, logIndex: rank.steps, poolDigest: () => rank.digest })),
    );
    if (violation !== undefined) this.world.violation(violation.message);
  }

  // -------------------------------------------------------------------------------------------------------------------

  #makeGroup(size: number): LostRankGroup[] {
    const { hold } = this.world.plan;
    const groups: InProcessRankGroup[] = InProcessRankGroup.create(size, {
      delivery: (rank, kind) => {
        if (!this.#random.chance(this.world.isCalm ? 0 : hold.rate)) return 'now';
        this.world.clock.after(this.#random.float() * hold.msMax, () => groups[rank]!.deliver(kind));
        return 'held';
      },
    });
    return groups.map((group) => new LostRankGroup(group));
  }

  #hasWork({ engine, handoff, rank, group }: SimRank): boolean {
    if (this.plan.role === 'decode') {
      if (engine.batch.running.size > 0 || engine.hogged.length > 0 || handoff.pendingKvImportCount > 0) return true;
    } else if (this.waiting.length > 0 || this.world.router.pinned(this) > 0 || handoff.pendingKvPushCount > 0)
      return true;
    // A worker follows its leader; the leader steps while a worker is behind.
    if (group === null) return false;
    if (rank > 0) return handoff.stepReady;
    return this.ranks!.some((other) => other.steps < this.leader!.steps);
  }

  #tick(rank: SimRank): void {
    const { handoff, group } = rank;
    if (group !== null && rank.poolDigest() !== rank.digest)
      this.world.violation(`${rank.name}: its pools changed between two steps`);
    if (this.plan.role === 'decode') handoff.pollPendingKvImports();
    else handoff.pollPendingKvPushes();
    if (group !== null && rank.poolDigest() !== rank.digest)
      this.world.violation(`${rank.name}: a poll changed its pools`);
    if (!handoff.stepReady || (rank.rank === 0 && !this.#wantsStep(rank))) return;
    const step = rank.steps + 1;
    if (rank.rank === 0) this.#plans[step] = this.#planStep(rank);
    const plan = this.#plans[step]!;
    if (this.plan.role === 'decode') this.#decodeStep(rank, plan);
    else this.#prefillStep(rank, plan);
    rank.steps = step;
    rank.digest = rank.poolDigest();
    const other = this.#digests[step];
    if (other === undefined) this.#digests[step] = rank.digest;
    else if (other !== rank.digest)
      this.world.violation(`${rank.name}: its pools differ from another rank's after step ${step}`);
    // The next frame must not wait for a wake-up that another rank may have taken.
    if (rank.rank === 0 && group !== null) for (const worker of this.ranks!.slice(1)) this.wake(worker);
  }

  /** A leader does not run far ahead of its workers, and mostly steps only when it has something to do. */
  #wantsStep({ engine, steps }: SimRank): boolean {
    if (this.ranks!.some((other) => steps - other.steps >= leadMax)) return false;
    const isBusy = this.isAsked || engine.batch.running.size > 0 || engine.hogged.length > 0 || this.waiting.length > 0;
    this.isAsked = false;
    return isBusy || this.#random.chance(0.3);
  }

  #planStep(rank: SimRank): StepPlan {
    const { hogRate, engineFailRate } = this.world.plan;
    const random = this.#random;
    const isCalm = this.world.isCalm;
    if (this.plan.role === 'prefill') return { candidates: this.waiting.slice(0, 4), hog: 0, failOneIn: 0 };
    const hogs = !isCalm && random.chance(hogRate);
    const gives = rank.engine.hogged.length > 0 && (isCalm || random.chance(0.3));
    return {
      candidates: [],
      hog: gives ? -1 : hogs ? random.int(1, 10) : 0,
      failOneIn: random.chance(engineFailRate) ? random.int(2, 5) : 0,
    };
  }

  #decodeStep(rank: SimRank, plan: StepPlan): void {
    const { engine, handoff } = rank;
    engine.isScheduling = true;
    let admitted = 0;
    try {
      admitted = handoff.scheduleWaitingRequests(0);
    } catch (error) {
      // The engine is told to stop; it takes the rest of the step, which its end is part of.
      if (this.lostRank === null || !isHandoffError(error) || error.code !== 'RANK_LOST') throw error;
    }
    engine.isScheduling = false;
    if (admitted < 0) this.world.violation(`${rank.name}: its frame was ready and did not come`);
    if (plan.hog < 0 || rank.hasFailed) engine.unhog();
    else if (plan.hog > 0)
      engine.hog(
        Math.max(0, Math.min(plan.hog, engine.blocks.freeCount - engine.growthReserve() - this.#promisedGrowth(rank))),
      );
    if (plan.failOneIn > 0) {
      for (const attemptId of engine.batch.running.keys())
        if (attemptId % plan.failOneIn === 0) engine.abortRequest(attemptId);
    }
    engine.step();
    if (engine.promptTokensComputed > 0) this.world.violation(`${rank.name}: I10: decode computed prompt tokens`);
  }

  /** What the SDK has promised to imports that the engine does not know yet: other work must leave it alone. */
  #promisedGrowth({ engine, handoff }: SimRank): number {
    let blocks = 0;
    for (const { requestId, state, blocks: held, continuationBlocks } of handoff.inspect().imports) {
      if (state === 'queued' || state === 'admitted') continue;
      const { prompt, params } = this.world.router.tryOf(String(requestId)).request;
      const end = Math.min(prompt.length + engine.batch.tokenLimit(prompt.length, params), engine.maxSequenceLength);
      blocks += Math.max(0, Math.ceil(end / engine.blockSize) - held.length - continuationBlocks.length);
    }
    return blocks;
  }

  #prefillStep(rank: SimRank, plan: StepPlan): void {
    const { engine, handoff } = rank;
    if (!handoff.beginStep()) this.world.violation(`${rank.name}: its frame was ready and did not come`);
    if (rank.hasFailed) return;
    for (const label of plan.candidates) {
      const { request } = this.world.router.tryOf(label);
      const blockCount = Math.ceil(request.prompt.length / engine.blockSize);
      if (!handoff.tryPinPermit(label, blockCount)) return;
      const run = engine.prefill(label, request.prompt, request.params, request.salt, request.hashes);
      if (run === null) {
        handoff.dropPinPermit(label);
        return;
      }
      const ticket = this.#capture(rank, run, request);
      this.world.router.captured(this, rank, label, ticket, run.ready !== null);
    }
  }

  #capture({ engine, handoff }: SimRank, run: PrefillRun, request: SimRequest): Ticket {
    const prepared = handoff.prepareHandoffMetadataBatch([
      {
        requestId: run.requestId,
        promptTokens: request.prompt.length,
        blocks: run.blocks,
        slot: run.slot,
        doKvHandoff: true,
        resumeTokens: run.resumeTokens,
        returnLogProbs: request.params.return_log_probs === true,
        resumeLogProbs: run.resumeLogProbs,
      },
    ]);
    const ticket = handoff.captureHandoffMeta(run, prepared, { ready: run.ready });
    engine.endPrefill(run, true);
    return ticket;
  }

  #engineEnded(
    { handoff }: SimRank,
    { attemptId, generatedTokens, generatedLogProbs, finishReason, aborted }: EngineEnd,
  ): void {
    const imported = handoff.inspect().imports.find((each) => each.attemptId === attemptId);
    // An engine that was told to stop may say either; one that fails on its own account says so.
    if (aborted && (imported?.cancelling !== true || attemptId % 2 === 0)) {
      handoff.failRequest(attemptId, new Error('the engine ended it'));
      return;
    }
    const { prompt } = this.world.router.tryOf(String(imported?.requestId)).request;
    handoff.finishRequest(attemptId, { generatedTokens, generatedLogProbs, finishReason, cachedTokens: prompt.length });
  }

  #listen(rank: SimRank): void {
    const { router, recorder } = this.world;
    const { handoff } = rank;
    const on = handoff.on.bind(handoff);
    on('wake', () => this.wake(rank));
    on('warning', ({ message, error }) => {
      recorder.record(rank.name, 'warning', message, error);
      if (message.startsWith('a listener')) this.world.violation(`${rank.name}: ${message}: ${(error as Error).stack}`);
    });
    on('engineFailed', (error: HandoffError) => {
      recorder.record(rank.name, 'engineFailed', error.code);
      if (error.code !== 'RANK_LOST' || this.lostRank === null)
        this.world.violation(`${rank.name}: engineFailed ${error.code} ${error.message}`);
      rank.hasFailed = true;
      for (const attemptId of [...rank.engine.batch.running.keys()]) rank.engine.abortRequest(attemptId);
    });
    const told = (event: string, notice: unknown): void => recorder.record(rank.name, event, notice);
    on('kvReadDone', (notice) => {
      told('kvReadDone', notice);
      router.readDone(this, notice);
    });
    on('kvTransferReady', (notice) => {
      told('kvTransferReady', notice);
      router.transferReady(this, notice);
    });
    on('ticketReady', (notice) => {
      told('ticketReady', notice);
      router.ticketReady(String(notice.requestId));
    });
    on('released', (notice) => {
      told('released', notice);
      if (rank.rank === 0) router.sourceReleased(this, String(notice.requestId), notice.reason);
    });
    on('requestError', (notice) => told('requestError', notice));
    on('requestAborted', (notice) => told('requestAborted', notice));
    on('handoffAdmitted', (notice) => told('handoffAdmitted', notice));
    on('quarantined', (notice) => told('quarantined', notice));
    on('reclaimed', (notice) => told('reclaimed', notice));
    on('pinned', (notice) => told('pinned', notice));
    on('pinOverdue', (notice) => told('pinOverdue', notice));
  }
}

export function blockBytes({ shape }: WorldPlan): number {
  return 2 * shape.layers * shape.kvHeads * shape.headDim * shape.blockSize * shape.elementBytes;
}

/** A rank in the terms of the invariants; `inspect` is asked once a check. */
function observe(rank: SimRank): ObservedRank {
  const { engine, handoff, name } = rank;
  let seen: Inspection | null = null;
  const inspection = (): Inspection => (seen ??= handoff.inspect());
  return {
    name,
    blocks: {
      poolSize: engine.blocks.poolSize,
      references: (id) => engine.blocks.refs[id]!,
      isFree: (id) => engine.blocks.isFree(id),
    },
    slots: engine.slots === null ? null : { size: engine.slots.size, isFree: (slot) => engine.slots!.isFree(slot) },
    *holdings(): Generator<Holding> {
      seen = null;
      yield* engine.holdings();
      for (const { handoffId, blocks, slot } of inspection().pins) yield { owner: `pin ${handoffId}`, blocks, slot };
      for (const each of [...inspection().imports, ...inspection().quarantine]) {
        if (each.state === 'admitted') continue;
        yield {
          owner: `import ${each.attemptId} (${each.state})`,
          blocks: [...each.blocks, ...each.continuationBlocks],
          slot: each.slot,
        };
      }
    },
    *imports(): Generator<ObservedImport> {
      const { imports, quarantine, hashOwners } = inspection();
      for (const { attemptId, state, blocks } of [...imports, ...quarantine]) {
        yield {
          attemptId,
          order: attemptId,
          isQueued: state === 'queued',
          ownedHashes: hashOwners.filter(([, owner]) => owner === attemptId).map(([hash]) => hash),
          blockCount: blocks.length,
        };
      }
    },
    get logIndex() {
      return rank.steps;
    },
    poolDigest: () => rank.poolDigest(),
  };
}
