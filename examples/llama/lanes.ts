/**
 * Lanes: places where one sequence at a time lives in llama.cpp's memory. Owns which tokens lie there, so that a sequence
 * that begins like the last one keeps the part they share. A lane with a cache of its own has cell = position, so its
 * numbers follow from its tokens alone; lanes of one shared cache are evaluated together and see each other's placement.
 */
import { openCache, type CacheType, type LlamaCache, type LlamaModel } from './llama.js';

/** What a lane's content is known by: its tokens, or the hashes of its complete blocks. */
type Names = Int32Array | BigInt64Array;

export interface Lane<Held extends Names = Names> {
  readonly index: number;
  readonly cache: LlamaCache;
  /** Its sequence in the cache. */
  readonly sequence: number;
  /** The part of a prompt that lies in the cache from position 0 on; what was generated behind it does not count. */
  held: Held;
  busy: boolean;
}

export interface LanesOptions {
  readonly lanes: number;
  /** One cache for all lanes. */
  readonly shared: boolean;
  readonly maxSequenceLength: number;
  /** Tokens of one evaluation at most. */
  readonly chunk: number;
  readonly dtype: CacheType;
}

export class Lanes<Held extends Names> {
  readonly all: readonly Lane<Held>[];
  private readonly caches: readonly LlamaCache[];

  /** @param nothing - what an empty lane holds */
  constructor(model: LlamaModel, nothing: Held, { lanes, shared, maxSequenceLength, chunk, dtype }: LanesOptions) {
    const sequences = shared ? lanes : 1;
    const options = { cells: sequences * maxSequenceLength, sequences, batch: Math.max(chunk, lanes + 1), dtype };
    this.caches = Array.from({ length: shared ? 1 : lanes }, () => openCache(model, options));
    this.all = Array.from({ length: lanes }, (_, index) => ({
      index,
      cache: this.caches[shared ? 0 : index]!,
      sequence: shared ? index : 0,
      held: nothing,
      busy: false,
    }));
  }

  get freeCount(): number {
    return this.all.reduce((count, { busy }) => count + Number(!busy), 0);
  }

  /** The free lane that shares most with `wanted`, now busy, or null; of two alike the one that holds less. */
  take(wanted: Held): Lane<Held> | null {
    let best: Lane<Held> | null = null;
    let bestShare = -1;
    for (const lane of this.all) {
      if (lane.busy) continue;
      const share = sharedLength(lane.held, wanted);
      if (best === null || share > bestShare || (share === bestShare && lane.held.length < best.held.length)) {
        [best, bestShare] = [lane, share];
      }
    }
    if (best !== null) best.busy = true;
    return best;
  }

  /** Keeps the first `count` names of a lane, which are `tokens` tokens, and forgets everything behind them. */
  keep(lane: Lane<Held>, count: number, tokens: number): void {
    lane.held = lane.held.slice(0, count) as Held;
    lane.cache.truncate(lane.sequence, tokens);
  }

  close(): void {
    for (const cache of this.caches) cache.close();
  }
}

/** How many leading names two lists share. */
export function sharedLength(a: Names, b: Names): number {
  const end = Math.min(a.length, b.length);
  let at = 0;
  while (at < end && a[at] === b[at]) at += 1;
  return at;
}

/** The token with the greatest logit; the first of equals. */
export function greedy(logits: Float32Array): number {
  let best = 0;
  for (let token = 1; token < logits.length; token += 1) if (logits[token]! > logits[best]!) best = token;
  return best;
}
