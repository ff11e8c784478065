/**
 * Whole instances of the reference engine with several ranks, all in this process: real memory, the host transport, one
 * log per instance. What the layout tests hand over between.
 */
import {
  encodeTicket,
  InProcessRankGroup,
  StateHandoff,
  type Finished,
  type PrefilledRequest,
  type SamplingParams,
} from '../../lib/index.js';
import { Engine, type EngineRole } from '../../examples/engine/engine.js';
import type { EngineMemory, EngineMemoryOptions } from '../../examples/engine/engine-memory.js';
import type { ModelConfig } from '../../examples/engine/config.js';
import type { FinishedPrefill } from '../../examples/engine/finished-prefills.js';
import { InProcessPeers, runTogether } from '../../examples/engine/in-process-peers.js';
import { nativeMemory } from '../../examples/engine/native-memory.js';
import { RankLoop, type TurnOutcome } from '../../examples/engine/rank-loop.js';
import { RankPlace, rankShape, type RankShape } from '../../examples/engine/rank-place.js';
import { rankSlice } from '../../examples/engine/rank-slice.js';
import type { Backend } from '../../lib/setup/build-transports.js';

export interface LayoutInstanceOptions extends Pick<
  EngineMemoryOptions,
  'kvAxes' | 'convAxes' | 'recurrentAxes' | 'bufferPerLayer'
> {
  readonly role: EngineRole;
  readonly model: ModelConfig;
  readonly shape: Partial<RankShape>;
  readonly blockSize?: number;
  readonly balance?: 'first' | 'spread';
  readonly carrier?: 'group' | 'host';
  /** Of each rank. Default: the host transport. */
  readonly transportOf?: (memory: EngineMemory, place: RankPlace) => Backend;
  readonly poolSize?: number;
  readonly maxRequests?: number;
}

/** Remembers what it was given. */
class AdmittingEngine extends Engine {
  readonly admitted: PrefilledRequest[] = [];

  override admitPrefilledDecode(request: PrefilledRequest): void {
    this.admitted.push(request);
    super.admitPrefilledDecode(request);
  }
}

export interface LayoutRank {
  readonly place: RankPlace;
  readonly engine: AdmittingEngine;
  readonly memory: EngineMemory;
  readonly handoff: StateHandoff;
  readonly loop: RankLoop;
  /** Everything that went wrong without failing a request. */
  readonly warnings: string[];
}

/** A prefill's result: the encoded ticket, and what the first token was drawn from. */
export interface Prefilled {
  readonly ticket: string;
  readonly finished: FinishedPrefill;
}

/** All ranks of all instances of one world. */
export class LayoutWorld {
  /** By instance. */
  readonly prefilled: Prefilled[][];

  private constructor(
    readonly ranks: readonly LayoutRank[],
    readonly shape: RankShape,
    prefilled: Prefilled[][],
  ) {
    this.prefilled = prefilled;
  }

  static async create(options: LayoutInstanceOptions): Promise<LayoutWorld> {
    const { role, model, blockSize = 4, poolSize = 40, maxRequests = 4 } = options;
    const shape = rankShape(options.shape);
    const peers = InProcessPeers.create(shape.dp * shape.tp * shape.pp);
    const prefilled: Prefilled[][] = Array.from({ length: shape.dp }, () => []);
    const groups = prefilled.map(() => InProcessRankGroup.create(shape.tp * shape.pp));
    const ranks = peers.map((own): LayoutRank => {
      const place = new RankPlace(shape, own.rank);
      const memory = nativeMemory({
        ...options,
        slice: rankSlice(model, place.parallelism),
        blockSize,
        poolSize,
        maxRequests,
        dummySlot: place.sharesExperts,
      });
      const engine = new AdmittingEngine({
        role,
        model,
        memory,
        maxRequests,
        maxSequenceLength: 120,
        recordLogits: true,
        prefillChunk: 10,
        ranks: { place, peers: own },
      });
      const handoff = new StateHandoff(engine, { instance: `${role}-${place.instance}`, incarnation: 'boot-1' });
      engine.attachHandoff(handoff);
      const warnings: string[] = [];
      handoff.on('warning', ({ message }) => warnings.push(message));
      handoff.on('engineFailed', (error) => warnings.push(String(error)));
      const loop = new RankLoop({
        engine,
        handoff,
        place,
        peers: own,
        carrier: options.carrier ?? 'group',
        onTicket: (finished, ticket) => prefilled[place.instance]!.push({ ticket: encodeTicket(ticket), finished }),
      });
      return { place, engine, memory, handoff, loop, warnings };
    });
    await Promise.all(
      ranks.map(({ handoff, place, memory }) =>
        handoff.setupKvTransfer(
          role === 'decode' ? 'decode' : 'prefill',
          options.transportOf?.(memory, place) ?? 'host',
          {
            group: groups[place.instance]![place.instanceRank]!,
            balance: options.balance ?? 'first',
            carrier: options.carrier ?? 'group',
          },
        ),
      ),
    );
    return new LayoutWorld(ranks, shape, prefilled);
  }

  /** One turn of every rank. */
  turn(): readonly TurnOutcome[] {
    return runTogether(this.ranks.map(({ loop }) => loop.turn()));
  }

  /** The leading rank of an instance. */
  leader(instance = 0): LayoutRank {
    return this.ranks[instance * this.shape.tp * this.shape.pp]!;
  }

  /** Turns until `isOver`, with room for the transfers' threads in between. */
  async until(isOver: () => boolean): Promise<void> {
    for (const started = Date.now(); !isOver();) {
      if (Date.now() - started > 60_000) throw new Error('the ranks did not get there within 60 s');
      this.turn();
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  /** Prefill: computes one prompt on an instance up to its ticket. */
  async prefill(requestId: string, prompt: readonly number[], samplingParams: SamplingParams, instance = 0) {
    const done = this.prefilled[instance]!;
    const before = done.length;
    const { loop } = this.leader(instance);
    void loop.submit({ requestId, prompt, samplingParams: { ...samplingParams, do_kv_handoff: true } });
    await this.until(() => done.length > before);
    return done.at(-1)!;
  }

  async close(): Promise<void> {
    await Promise.all(this.ranks.map(({ handoff }) => handoff.close({ force: true })));
  }
}

/** What one engine of one rank makes of a prompt. */
export async function computeAlone(
  model: ModelConfig,
  prompt: readonly number[],
  samplingParams: SamplingParams,
): Promise<Finished> {
  const memory = nativeMemory({ model, blockSize: 4, poolSize: 40, maxRequests: 1 });
  const engine = new Engine({
    role: 'both',
    model,
    memory,
    maxRequests: 1,
    maxSequenceLength: 120,
    recordLogits: true,
  });
  const result = engine.addRequest({ requestId: 'alone', prompt, samplingParams });
  while (engine.hasWork) engine.step();
  return result;
}
