/** What `bench:benefit` builds its engines from, and what they and its router say to each other. */
import { nativeMemory, smallModel, type EngineOptions } from '../../../examples/engine/index.js';

/** What an engine does; `both` computes its prompts to their ends. */
export type Role = 'prefill' | 'decode' | 'both';

/** How large an engine is. */
export interface EngineSize {
  /** Layers of its model. */
  readonly layers: number;
  readonly maxRequests: number;
  /** Blocks of its pool. */
  readonly blocks: number;
}

export const engineSize: EngineSize = { layers: 2, maxRequests: 64, blocks: 4096 };

/** One engine's options, but for who hears of its tokens. Equal for every role, so that only the split differs. */
export function optionsOf(role: Role, { layers, maxRequests, blocks }: EngineSize): EngineOptions {
  const blockSize = 16;
  const model = smallModel('attention', {
    name: 'benefit',
    seed: 7,
    dModel: 64,
    layers: Array.from({ length: layers }, () => ({ mixer: 'attention', feedForward: 'dense' })),
    attention: { heads: 8, kvHeads: 4, headDim: 16, ropeTheta: 10_000 },
    feedForwardDim: 128,
  });
  const memory = nativeMemory({ model, blockSize, poolSize: blocks, maxRequests });
  return { role, model, memory, maxRequests, maxSequenceLength: blocks * blockSize, prefillChunk: 64 };
}

/** Router to engine. `prefill` hands off, `whole` is computed to its end. */
export type ToEngine =
  | { readonly kind: 'start'; readonly role: Role; readonly name: string; readonly size: EngineSize }
  | {
      readonly kind: 'prefill' | 'whole';
      readonly id: number;
      readonly prompt: readonly number[];
      readonly tokens: number;
    }
  | {
      readonly kind: 'handoff';
      readonly id: number;
      readonly prompt: readonly number[];
      readonly tokens: number;
      readonly ticket: string;
    }
  | { readonly kind: 'release'; readonly handoff: unknown };

/** Milliseconds of the machine's one monotonic clock: the same in every process. */
export function nowMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

/** Engine to router; `id` null: the engine itself cannot go on. `at`: when it happened, see {@link nowMs}. */
export type FromEngine =
  | { readonly kind: 'ready' }
  | { readonly kind: 'prefilled'; readonly id: number; readonly at: number; readonly ticket: string }
  | { readonly kind: 'admitted' | 'finished'; readonly id: number; readonly at: number }
  | { readonly kind: 'token'; readonly id: number; readonly at: number }
  | { readonly kind: 'readDone'; readonly handoff: unknown }
  | { readonly kind: 'failed'; readonly id: number | null; readonly reason: string };
