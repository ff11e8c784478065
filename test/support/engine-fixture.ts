/**
 * Reference engines over plain memory for tests: no addon, any layout, and the few moves that tests make by hand.
 */
import { Engine, type EngineOptions } from '../../examples/engine/engine.js';
import { EngineMemory, type EngineMemoryOptions } from '../../examples/engine/engine-memory.js';
import { smallModel, type ModelConfig } from '../../examples/engine/config.js';
import type { FinishedPrefill } from '../../examples/engine/finished-prefills.js';
import type { FinishedExtra } from '../../examples/engine/request.js';
import type { Finished, PrefilledRequest, SamplingParams } from '../../lib/engine-context.js';
import type { HandoffError } from '../../lib/errors.js';
import { PlainRegion } from '../../lib/memory/plain-region.js';
import { modelBlockHashes } from '../../lib/testing/model-block-hash.js';
import { ModelBlockPool, type EvictionPolicy } from '../../lib/testing/model-block-pool.js';
import { ModelSlotPool } from '../../lib/testing/model-slot-pool.js';

export interface FixtureOptions
  extends
    Partial<Omit<EngineOptions, 'model' | 'memory'>>,
    Pick<EngineMemoryOptions, 'kvAxes' | 'convAxes' | 'recurrentAxes' | 'bufferPerLayer'> {
  readonly model?: ModelConfig;
  readonly blockSize?: number;
  readonly poolSize?: number;
  readonly policy?: EvictionPolicy | null;
  /** Blocks to take first, so that ids differ from another engine's. */
  readonly skipBlocks?: number;
  readonly skipSlots?: number;
}

export interface EngineFixture {
  readonly engine: Engine;
  readonly memory: EngineMemory;
  readonly pool: ModelBlockPool;
  readonly slots: ModelSlotPool | null;
  /** What the engine told its handoff sink. */
  readonly finished: Map<number, Finished>;
  readonly failed: Map<number, HandoffError>;
}

/** An engine over plain memory, with a sink attached when its role is `decode`. */
export function engineFixture(options: FixtureOptions = {}): EngineFixture {
  const { model = smallModel('attention'), blockSize = 4, poolSize = 200, maxRequests = 4, role = 'both' } = options;
  const pool = new ModelBlockPool({ poolSize, policy: options.policy === undefined ? 'lru' : options.policy });
  const slots = model.ssm === null ? null : new ModelSlotPool({ maxRequests: maxRequests + (options.skipSlots ?? 0) });
  const memory = new EngineMemory({
    ...options,
    model,
    blockSize,
    blocks: pool,
    slots,
    allocateRegion: (bytes) => new PlainRegion(bytes),
    hashBlocks: (tokens, size, salt) => modelBlockHashes(tokens, size, salt),
  });
  if (options.skipBlocks !== undefined) pool.allocate(options.skipBlocks);
  for (let i = 0; i < (options.skipSlots ?? 0); i++) slots?.allocate();
  const engine = new Engine({
    recordLogits: true,
    maxSequenceLength: 512,
    ...options,
    role,
    model,
    memory,
    maxRequests,
  });
  const finished = new Map<number, Finished>();
  const failed = new Map<number, HandoffError>();
  if (role === 'decode') {
    engine.attachHandoff({
      finishRequest: (attemptId, result) => finished.set(attemptId, result),
      failRequest: (attemptId, error) => failed.set(attemptId, error),
    });
  }
  return { engine, memory, pool, slots, finished, failed };
}

/** Steps until nothing is left to do. */
export function runUntilIdle(engine: Engine, stepsMax = 5000): void {
  for (let step = 0; engine.hasWork; step++) {
    if (step === stepsMax) throw new Error(`the engine still has work after ${stepsMax} steps`);
    engine.step();
  }
}

export const greedy: SamplingParams = { top_k: 1 };

/** Runs one prompt to its end. */
export async function generate(
  engine: Engine,
  prompt: readonly number[] | Int32Array,
  samplingParams: SamplingParams = {},
): Promise<Finished> {
  const promise = engine.addRequest({
    requestId: 'only',
    prompt,
    samplingParams: { ...greedy, num_tokens_to_generate: 12, ...samplingParams },
  });
  runUntilIdle(engine);
  return promise;
}

export function extraOf(result: Finished): FinishedExtra {
  return result.extra as FinishedExtra;
}

/** Tokens and logits as text: equal texts mean equal bits. `skip` leaves out the logits of leading tokens. */
export function bitsOf(result: Finished, skip = 0): string {
  const logits = extraOf(result).logits!.slice(skip);
  const bytes = logits.map((row) => Buffer.from(row!.buffer, row!.byteOffset, row!.byteLength).toString('base64'));
  return [result.generatedTokens.join(' '), ...bytes].join('\n');
}

/** A prompt of readable bytes, different for each seed. */
export function promptOf(length: number, seed = 1): number[] {
  const prompt: number[] = [];
  let state = seed >>> 0;
  for (let i = 0; i < length; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    prompt.push(97 + ((state >>> 24) % 26));
  }
  return prompt;
}

/** Runs one prompt up to its handoff; the engine's references are still held. */
export function prefill(fixture: EngineFixture, prompt: readonly number[], samplingParams: SamplingParams = {}) {
  const promise = fixture.engine.addRequest({
    requestId: 'handoff',
    prompt,
    samplingParams: { ...greedy, num_tokens_to_generate: 12, ...samplingParams, do_kv_handoff: true },
  });
  for (let step = 0; step < 5000; step++) {
    const [taken] = fixture.engine.takeFinishedPrefills();
    if (taken !== undefined) return { taken, promise };
    fixture.engine.step();
  }
  throw new Error('the prefill did not finish');
}

/** Copies a finished prefill into blocks and a slot of `target` and describes it as the SDK would. */
export function carryOver(
  source: EngineFixture,
  taken: FinishedPrefill,
  target: EngineFixture,
  attemptId = 7,
): PrefilledRequest {
  const { blockSize } = target.engine;
  const end = taken.prompt.length + taken.resumeTokens.length;
  const promptBlocks = Math.ceil(taken.prompt.length / blockSize);
  const blocks = target.pool.allocate(Math.ceil(end / blockSize))!;
  const slot = target.slots === null ? null : target.slots.allocate();
  for (let i = 0; i < promptBlocks; i++) {
    target.memory.kvMemory.writeBlock(blocks[i]!, source.memory.kvMemory.readBlock(taken.blocks[i]!));
  }
  if (slot !== null) target.memory.ssmMemory!.writeSlot(slot, source.memory.ssmMemory!.readSlot(taken.slot!));
  return {
    attemptId,
    requestId: taken.requestId,
    prompt: taken.prompt,
    samplingParams: taken.samplingParams,
    resumeTokens: taken.resumeTokens,
    resumeLogProbs: taken.resumeLogProbs,
    blocks: blocks.slice(0, promptBlocks),
    continuationBlocks: blocks.slice(promptBlocks),
    slot,
    cachedPrefixBlocks: 0,
    blockHashes: taken.blockHashes,
    landed: null,
  };
}
