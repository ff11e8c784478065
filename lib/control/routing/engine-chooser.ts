/**
 * Chooses an engine for a request from what was assigned where lately and how loaded each engine is, and keeps that
 * memory. Whether the chosen engine has room is not its question: a request for a full engine waits there.
 */
import { argumentError } from '../../errors.js';
import { AffinityTable, affinityColumnsMax, type AffinityColumn } from './affinity-table.js';
import { aggregatedByLoad, best, scorings, type Behaviour, type EngineFacts, type Scoring } from './scoring.js';

/** Whether cached prefixes count, and how much of a prompt is looked at (spec 1.6). */
export type RoutingPolicy = 'longest_prefix' | 'first_prefix_block' | 'load_balanced';

/** How requests are routed. */
export interface RoutingOptions {
  readonly behaviour: Behaviour;
  readonly policy: RoutingPolicy;
  /** Weight between prefix and load; default: the generation's own. */
  readonly alpha?: number;
  /** How long an assignment counts, in ms; null: for ever. Default: the generation's own. */
  readonly affinityTtlMs?: number | null;
  /** Prompt blocks that are remembered, about. */
  readonly affinityBlocksMax?: number;
  /** See {@link AffinityTableOptions.seed}. */
  readonly affinitySeed?: readonly [number, number];
}

/** An engine as the chooser sees it. */
export interface EngineLoad {
  readonly column: AffinityColumn;
  readonly active: number;
  readonly queued: number;
  readonly slotsUsed: number;
  readonly freeFraction: number;
}

const policies: readonly RoutingPolicy[] = ['longest_prefix', 'first_prefix_block', 'load_balanced'];
const affinityBlocksDefault = 2 ** 20;

/** Routing of one coordinator: both pools share one memory. */
export class EngineChooser {
  readonly affinity: AffinityTable;
  readonly alpha: number;
  readonly #policy: RoutingPolicy;
  readonly #scoring: Scoring;
  readonly #depths = new Int32Array(affinityColumnsMax);
  readonly #recencies = new Float64Array(affinityColumnsMax);

  /** @throws `OPTION_INVALID` */
  constructor(options: RoutingOptions) {
    const { behaviour, policy } = options;
    if (!Object.hasOwn(scorings, behaviour))
      throw argumentError('routing.behaviour', 'gen-b or gen-c', behaviour, 'OPTION_INVALID');
    if (!policies.includes(policy))
      throw argumentError('routing.policy', policies.join(' or '), policy, 'OPTION_INVALID');
    this.#scoring = scorings[behaviour];
    this.#policy = policy;
    this.alpha = options.alpha ?? this.#scoring.alphaDefault;
    if (!(this.alpha >= 0 && this.alpha < Infinity))
      throw argumentError('routing.alpha', 'a number of at least 0', options.alpha, 'OPTION_INVALID');
    this.affinity = new AffinityTable({
      ttlMs: options.affinityTtlMs === undefined ? this.#scoring.affinityTtlMs : options.affinityTtlMs,
      blocksMax: options.affinityBlocksMax ?? affinityBlocksDefault,
      ...(options.affinitySeed === undefined ? {} : { seed: options.affinitySeed }),
    });
  }

  /** Whether a prompt's hashes are worth computing. */
  get usesPrefixes(): boolean {
    return this.#policy !== 'load_balanced';
  }

  /** The blocks of a prompt that count under the policy. */
  counted(hashes: BigInt64Array): BigInt64Array {
    return this.#policy === 'first_prefix_block' ? hashes.subarray(0, 1) : hashes;
  }

  /**
   * Of engines without roles.
   *
   * @param engines - at least one; `freeFraction` is of requests alone
   * @returns the index of the engine
   */
  chooseAggregated(engines: readonly EngineLoad[], hashes: BigInt64Array, nowMs: number): number {
    const counts = this.usesPrefixes && hashes.length > 0;
    const criteria = counts ? this.#scoring.aggregated : aggregatedByLoad;
    return best(this.facts(engines, counts ? hashes : none, nowMs), criteria, this.alpha, 0);
  }

  /**
   * Of a pool of one role; equals take turns.
   *
   * @param engines - at least one
   * @param turn - a counter that moves on with every choice in this pool
   * @returns the index of the engine
   */
  choosePooled(engines: readonly EngineLoad[], hashes: BigInt64Array, nowMs: number, turn: number): number {
    const counts = this.usesPrefixes && hashes.length > 0;
    const criteria = counts ? this.#scoring.pooled : this.#scoring.pooledByLoad;
    return best(this.facts(engines, counts ? hashes : none, nowMs), criteria, this.alpha, turn);
  }

  /** What the choice is made from: one entry an engine, in order. */
  facts(engines: readonly EngineLoad[], hashes: BigInt64Array, nowMs: number): EngineFacts[] {
    const counted = this.counted(hashes);
    const size = Math.max(1, counted.length);
    const [depths, recencies] = [this.#depths, this.#recencies];
    const isDeepest = this.#scoring.prefix === 'deepest';
    const deepest = isDeepest ? this.affinity.deepestBlock(counted, nowMs, recencies) : 0;
    if (!isDeepest) this.affinity.leadingDepths(counted, nowMs, depths);
    const mean = engines.reduce((sum, { active, queued }) => sum + active + queued, 0) / engines.length;
    return engines.map(({ column, active, queued, slotsUsed, freeFraction }) => {
      const recency = isDeepest ? recencies[column]! : 0;
      return {
        match: recency > 0 ? deepest / size : 0,
        recency,
        depthShare: isDeepest ? 0 : depths[column]! / size,
        active,
        queued,
        slotsUsed,
        freeFraction,
        relativeLoad: (active + queued - mean) / Math.max(1, mean),
      };
    });
  }

  /** The request went to this engine: its prompt's blocks will be there. */
  assigned(column: AffinityColumn, hashes: BigInt64Array, nowMs: number): void {
    if (this.usesPrefixes) this.affinity.record(column, this.counted(hashes), nowMs);
  }
}

const none = new BigInt64Array(0);
