/** One client's request as the simulated router sees it, over all its tries. */
import type { SamplingParams } from '../../lib/engine-context.js';
import type { HandoffRef } from '../../lib/events.js';
import type { Ticket } from '../../lib/ticket.js';
import { modelBlockHashes, tokenAt, type SeededRandom } from '../../lib/testing/index.js';
import type { WorldPlan } from './world-plan.js';

/**
 * One try: one prefill, one ticket, and whatever happened to it. Its label is unique in the world.
 *
 * `waiting` (for prefill) → `captured` (pinned, maybe not ready) → `sent` → `taken` (decode answers for it) → `over`.
 */
export interface SimTry {
  readonly label: string;
  readonly request: SimRequest;
  state: 'waiting' | 'captured' | 'sent' | 'taken' | 'over';
  ticket: Ticket | null;
  ref: HandoffRef | null;
  /** Ranks of the prefill instance whose state is not there yet. */
  unready: number;
  /** The step in which every rank of the prefill instance pins it. */
  capturedAtStep: number;
  prefill: number;
  prefillIncarnation: number;
  decode: number;
  decodeIncarnation: number;
  /** Whether the router itself asked for its end, and so must expect it. */
  abortAsked: boolean;
  /** Whether the router or its prefill let go of the source; from then on the ticket may be found expired. */
  sourceLetGo: boolean;
  released: boolean;
}

export interface SimRequest {
  readonly id: number;
  readonly prompt: Int32Array;
  readonly params: SamplingParams;
  readonly salt: string | null;
  readonly hashes: BigInt64Array;
  /** From its arrival; null: it stays. */
  readonly abortAfterMs: number | null;
  readonly tries: SimTry[];
  /** The answer that the client keeps. */
  answer: string | null;
  abandoned: boolean;
}

/** Prompts share prefixes: a few texts, of which each request takes the head of one and sometimes its own tail. */
export function drawRequests(plan: WorldPlan, random: SeededRandom): SimRequest[] {
  const { blockSize } = plan.shape;
  const longest = blockSize * 5;
  const texts = Array.from({ length: random.int(1, 5) }, () =>
    Int32Array.from({ length: longest }, () => random.int(1, 1000)),
  );
  return Array.from({ length: plan.requestCount }, (_, id) => {
    const prompt = random.pick(texts).slice(0, random.int(1, longest));
    const ownFrom = random.chance(0.5) ? random.int(0, prompt.length) : prompt.length;
    for (let i = ownFrom; i < prompt.length; i++) prompt[i] = random.int(1, 1000);
    const salt = random.chance(0.1) ? random.pick(['', 'adapter-a']) : null;
    const wantsLogProbs = random.chance(0.2);
    const params: SamplingParams = {
      ...(random.chance(0.1)
        ? { num_tokens_total: prompt.length + random.int(0, 6) }
        : { num_tokens_to_generate: drawLimit(random) }),
      ...(random.chance(0.15) ? { termination_id: tokenAt(prompt, salt, blockSize, random.int(0, 5)) } : {}),
      ...(wantsLogProbs ? { return_log_probs: true, skip_prompt_log_probs: true } : {}),
      ...(salt === null ? {} : { cache_salt: salt }),
    };
    return {
      id,
      prompt,
      params,
      salt,
      hashes: modelBlockHashes(prompt, blockSize, salt),
      abortAfterMs: random.chance(plan.abortRate) ? random.float() * random.pick([3, 30, 150]) : null,
      tries: [],
      answer: null,
      abandoned: false,
    };
  });
}

function drawLimit(random: SeededRandom): number {
  return random.chance(0.2) ? random.int(0, 1) : random.int(2, 10);
}
