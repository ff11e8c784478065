/**
 * Whole instances of `StateHandoff` over test engines and scripted transports: what the lifecycle tests hand over between.
 *
 * Conventions of spec 14: blocks of 4 tokens, source blocks from 100, target blocks from 10, target slots from 20. Time is
 * simulated; the engines look at every byte and at every admission outside the scheduling point, and throw.
 */
import { InProcessRankGroup, type InProcessRankGroupOptions } from '../../lib/control/in-process-rank-group.js';
import type { RankGroup } from '../../lib/control/rank-group.js';
import type { RequestId, SamplingParams } from '../../lib/engine-context.js';
import type { StateHandoffEvents } from '../../lib/events.js';
import type { StateHandoffOptions } from '../../lib/options.js';
import type { SetupOptions } from '../../lib/calls/setup-calls.js';
import { StateHandoff } from '../../lib/state-handoff.js';
import type { ModelBlockPool } from '../../lib/testing/index.js';
import {
  modelBlockHashes,
  rankPositions,
  ScriptedNetwork,
  ScriptedTransport,
  smallShape,
  type PrefillRun,
  type ScriptedTransfer,
  type ScriptedTransportOptions,
  type TestEngineOptions,
  type TestModelShape,
} from '../../lib/testing/index.js';
import type { Ticket } from '../../lib/ticket.js';
import { outcomeOf, settle, type Outcome } from './outcome.js';

export { settle, type Outcome };
import { LifecycleEngine } from './lifecycle-engine.js';

/** A hybrid of the small model: one SSM layer a stage, so that TP 2 and PP 2 can share it. */
export const hybridShape: TestModelShape = {
  ...smallShape,
  ssm: { layers: 2, dims: { nheads: 2, headdim: 1, dState: 1, ngroups: 2, dConv: 2 } },
};

/** Enough tokens that a request runs one step after its first token, and needs no block beyond its continuation. */
export const twoTokens: SamplingParams = { num_tokens_to_generate: 2 };

const eventNames = [
  'kvTransferReady',
  'kvReadDone',
  'requestError',
  'requestAborted',
  'handoffAdmitted',
  'quarantined',
  'reclaimed',
  'pinned',
  'ticketReady',
  'released',
  'pinOverdue',
  'warning',
] as const satisfies readonly (keyof StateHandoffEvents)[];

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- fields of whatever notice a test looks at
export type Notice = Record<string, any>;

export interface SeenEvent {
  readonly name: (typeof eventNames)[number];
  readonly notice: Notice;
}

export interface Rank {
  readonly engine: LifecycleEngine;
  readonly transport: ScriptedTransport;
  /** All of them, preferred first. */
  readonly transports: readonly ScriptedTransport[];
  readonly handoff: StateHandoff;
  readonly group: InProcessRankGroup | null;
  /** What this rank is set up with: `group`, or what a test put around it. */
  readonly given: RankGroup | null;
  readonly events: SeenEvent[];
  readonly held: { blocks: Int32Array[]; slots: number[] };
}

export interface InstanceOptions extends Partial<Omit<TestEngineOptions, 'role' | 'clock' | 'position'>> {
  readonly tpSize?: number;
  readonly ppSize?: number;
  readonly transport?: ScriptedTransportOptions;
  /** Transports beside it, less preferred. */
  readonly otherTransports?: readonly ScriptedTransportOptions[];
  readonly handoff?: StateHandoffOptions;
  readonly delivery?: InProcessRankGroupOptions['delivery'];
  readonly carrier?: SetupOptions['carrier'];
  /** Puts something around each rank's view of the group. */
  readonly group?: (group: RankGroup) => RankGroup;
  /** False: the ranks exist, `setupKvTransfer` was not called. */
  readonly setUp?: boolean;
  /** Called before anything is built on an engine. */
  readonly prepare?: (engine: LifecycleEngine) => void;
}

export interface HandOverOptions {
  readonly samplingParams?: SamplingParams;
  readonly resumeTokens?: readonly number[];
  readonly resumeLogProbs?: readonly number[];
}

/** One instance: its ranks, and what a test does to all of them in the same order. */
export class Instance {
  private constructor(
    readonly network: ScriptedNetwork,
    readonly role: 'prefill' | 'decode',
    readonly ranks: readonly Rank[],
  ) {}

  static async create(
    network: ScriptedNetwork,
    role: 'prefill' | 'decode',
    options: InstanceOptions = {},
  ): Promise<Instance> {
    const { tpSize = 1, ppSize = 1 } = options;
    const positions = rankPositions(tpSize, ppSize);
    const groups = positions.length === 1 ? null : InProcessRankGroup.create(positions.length, groupOptions(options));
    const ranks = positions.map((position, index): Rank => {
      const engine = new LifecycleEngine({
        maxRequests: 24,
        poolSize: role === 'prefill' ? 128 : 32,
        ...options,
        role,
        clock: network.clock,
        position,
      });
      options.prepare?.(engine);
      const handoff = new StateHandoff(engine, {
        instance: role,
        incarnation: 'boot-1',
        clock: network.clock,
        ...options.handoff,
      });
      const events: SeenEvent[] = [];
      for (const name of eventNames) handoff.on(name, (notice: object) => void events.push({ name, notice }));
      engine.onEnd = ({ attemptId, generatedTokens, generatedLogProbs, finishReason, aborted }) => {
        const cachedTokens = engine.admitted.find((request) => request.attemptId === attemptId)!.prompt.length;
        handoff.finishRequest(attemptId, {
          generatedTokens,
          generatedLogProbs,
          finishReason,
          cachedTokens,
          extra: { aborted },
        });
      };
      const { blocks, slots } = engine;
      const generations = { blocks, ...(slots === null ? {} : { slots }) };
      const transports = [options.transport, ...(options.otherTransports ?? [])].map(
        (each) => new ScriptedTransport(network, { generations, ...each }),
      );
      return {
        engine,
        transport: transports[0]!,
        transports,
        handoff,
        group: groups?.[index] ?? null,
        given: groups === null ? null : (options.group ?? ((group) => group))(groups[index]!),
        events,
        held: { blocks: [], slots: [] },
      };
    });
    const instance = new Instance(network, role, ranks);
    if (options.setUp !== false) await instance.setUp(options.carrier);
    return instance;
  }

  async setUp(carrier?: SetupOptions['carrier']): Promise<void> {
    await Promise.all(
      this.ranks.map(({ handoff, transports, given }) =>
        handoff.setupKvTransfer(this.role, transports, { group: given, ...(carrier === undefined ? {} : { carrier }) }),
      ),
    );
  }

  /** Rank 0. */
  get leader(): Rank {
    return this.ranks[0]!;
  }

  get engine(): LifecycleEngine {
    return this.leader.engine;
  }

  get handoff(): StateHandoff {
    return this.leader.handoff;
  }

  /** Free blocks will be handed out in this order, a group a call, and no others: the rest is taken. */
  arrangeBlocks(...groups: readonly (readonly number[])[]): void {
    for (const { engine, held } of this.ranks) {
      const { blocks } = engine;
      held.blocks.push(blocks.allocate(blocks.freeCount)!);
      for (const group of [...groups].reverse()) blocks.release(Int32Array.from(group));
    }
  }

  /** As `arrangeBlocks`, for slots, one a call. */
  arrangeSlots(...order: readonly number[]): void {
    for (const { engine, held } of this.ranks) {
      const slots = engine.slots!;
      for (let slot = slots.allocate(); slot >= 0; slot = slots.allocate()) held.slots.push(slot);
      for (const slot of [...order].reverse()) slots.free(slot);
    }
  }

  /** Notices of rank 0, or of another rank. */
  seen(name: SeenEvent['name'], rank = 0): Notice[] {
    return this.ranks[rank]!.events.filter((event) => event.name === name).map(({ notice }) => notice);
  }

  // --- prefill ---------------------------------------------------------------------------------------------------------

  /** Computes a prompt on every rank, pins it and cleans up; rank 0's ticket. */
  handOver(requestId: RequestId, prompt: readonly number[], options: HandOverOptions = {}): Ticket {
    const [ticket] = this.ranks.map((rank) => {
      const run = compute(rank, requestId, prompt, options);
      const finished = finishedOf(run, options);
      const taken = rank.handoff.captureHandoffMeta(requestId, rank.handoff.prepareHandoffMetadataBatch([finished]));
      rank.engine.endPrefill(run, true);
      return taken;
    });
    return ticket!;
  }

  /** Releases what decode said it has read, as a control plane would. */
  releaseWhenRead(decode: Instance): void {
    decode.handoff.on('kvReadDone', ({ source }) => void this.handoff.releaseHandoffBlocks(source!));
  }

  // --- decode ----------------------------------------------------------------------------------------------------------

  add(
    requestId: RequestId,
    prompt: readonly number[],
    { kvMeta, blockIds }: Pick<Ticket, 'kvMeta' | 'blockIds'>,
    samplingParams: SamplingParams = twoTokens,
    signal: AbortSignal | null = null,
    rank = 0,
  ): Outcome {
    const blockHashes = modelBlockHashes(Int32Array.from(prompt), this.engine.blockSize);
    const { handoff } = this.ranks[rank]!;
    return outcomeOf(
      handoff.addRequestWithKvHandoff(requestId, prompt, samplingParams, kvMeta, blockIds, { signal, blockHashes }),
    );
  }

  // --- steps -----------------------------------------------------------------------------------------------------------

  /** Workers first, so that rank 0 has their reports. */
  poll(): number {
    for (const rank of [...this.ranks].reverse()) pollRank(rank, this.role);
    return this.role === 'decode' ? this.handoff.pollPendingKvImports() : this.handoff.pollPendingKvPushes();
  }

  /** The scheduling point of every rank; what rank 0 admitted. */
  schedule(): number {
    const counts = this.ranks.map(({ engine, handoff }) => {
      engine.isScheduling = true;
      try {
        return this.role === 'decode' ? handoff.scheduleWaitingRequests(0) : Number(handoff.beginStep());
      } finally {
        engine.isScheduling = false;
      }
    });
    return counts[0]!;
  }

  /** One whole engine step of the instance: poll, schedule, run. */
  async step(count = 1): Promise<void> {
    for (let i = 0; i < count; i += 1) {
      this.poll();
      this.schedule();
      for (const { engine } of this.ranks) engine.step();
      await settle();
    }
  }
}

/** One network with a prefill and a decode instance. */
export interface World {
  readonly network: ScriptedNetwork;
  readonly prefill: Instance;
  readonly decode: Instance;
  /** Transfers that a decode rank began, in order. */
  readonly begun: ScriptedTransfer[];
}

/** `both` goes to both instances, under what each says for itself. */
export async function createWorld(
  decode: InstanceOptions = {},
  prefill: InstanceOptions = {},
  both: InstanceOptions = {},
): Promise<World> {
  const network = new ScriptedNetwork();
  const begun: ScriptedTransfer[] = [];
  network.onBegin = (transfer) => void begun.push(transfer);
  return {
    network,
    begun,
    prefill: await Instance.create(network, 'prefill', { ...both, ...prefill }),
    decode: await Instance.create(network, 'decode', { ...both, ...decode }),
  };
}

/** Computes a prompt on one rank; the engine still holds it. */
export function compute(
  { engine }: Pick<Rank, 'engine'>,
  requestId: RequestId,
  prompt: readonly number[],
  { samplingParams = twoTokens }: HandOverOptions = {},
): PrefillRun {
  const run = engine.prefill(requestId, Int32Array.from(prompt), samplingParams);
  if (run === null) throw new Error('the prefill engine has no room; arrange more');
  return run;
}

/** A computed prompt as the engine hands it to `prepareHandoffMetadataBatch`. */
export function finishedOf(run: PrefillRun, { resumeTokens, resumeLogProbs }: HandOverOptions = {}) {
  return {
    requestId: run.requestId,
    promptTokens: run.prompt.length,
    prompt: run.prompt,
    blocks: run.blocks,
    slot: run.slot,
    doKvHandoff: true,
    resumeTokens: resumeTokens ?? run.resumeTokens,
    returnLogProbs: resumeLogProbs !== undefined,
    resumeLogProbs: resumeLogProbs ?? null,
  };
}

/** What a transfer moves: by program, the source and target ids, and the target regions it writes. */
export function movesOf({ request }: ScriptedTransfer): { source: number[]; target: number[]; regions: number[] }[] {
  return request!.programs.map(({ tables, rectangles }) => ({
    source: [...tables[0]!.source],
    target: [...tables[0]!.target],
    regions: [...new Set(rectangles.map(({ targetRegion }) => targetRegion))].sort(),
  }));
}

/** A prompt of `length` tokens, different for each `seed`. */
export function promptOf(length: number, seed = 1): number[] {
  return Array.from({ length }, (_, index) => 1000 * seed + index);
}

export function hashesOf(prompt: readonly number[], blockSize = 4): BigInt64Array {
  return modelBlockHashes(Int32Array.from(prompt), blockSize);
}

/** What a block pool has: free blocks in hand-out order last first, and references. */
export function poolState(pool: ModelBlockPool): { free: number[]; refs: number[]; names: bigint[] } {
  const { freeStack, refs, hashes } = pool.state();
  return { free: [...freeStack], refs: [...refs], names: [...hashes] };
}

function pollRank({ handoff }: Rank, role: 'prefill' | 'decode'): void {
  if (role === 'decode') handoff.pollPendingKvImports();
  else handoff.pollPendingKvPushes();
}

function groupOptions({ delivery }: InstanceOptions): InProcessRankGroupOptions {
  return delivery === undefined ? {} : { delivery };
}
