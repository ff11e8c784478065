/**
 * Random worlds of the reference engine: any mix of prompts, limits, chunks, blocks, pools, proposals, aborts and
 * handoffs gives each request the bits it gets alone, ends in bounded time, and gives all memory back.
 */
import * as fc from 'fast-check';
import { smallModel, type ModelConfig, type ModelKind } from '../../examples/engine/config.js';
import type { KvAxis } from '../../examples/engine/engine-memory.js';
import type { FinishedPrefill } from '../../examples/engine/finished-prefills.js';
import type { Finished, SamplingParams } from '../../lib/engine-context.js';
import {
  bitsOf,
  carryOver,
  engineFixture,
  extraOf,
  generate,
  greedy,
  promptOf,
  type EngineFixture,
} from '../support/engine-fixture.js';

const maxSequenceLength = 64;

interface RequestPlan {
  /** Tokens of a start that several requests share, then tokens of its own. */
  readonly shared: number;
  readonly own: number;
  readonly seed: number;
  readonly limit: number;
  readonly sampled: boolean;
  /** Step at which it arrives. */
  readonly arrival: number;
  /** Steps after its arrival at which it is aborted, or null. */
  readonly abortAfter: number | null;
}

interface EngineShape {
  readonly blockSize: number;
  readonly prefillChunk: number;
  readonly maxRequests: number;
  readonly spareBlocks: number;
  readonly policy: 'lru' | 'ref_zero';
  readonly kvAxes: readonly KvAxis[];
}

const axes: readonly KvAxis[] = ['plane', 'layer', 'block', 'token', 'head', 'dim'];

const requestPlan = fc.record<RequestPlan>({
  shared: fc.constantFrom(0, 0, 7, 16, 19),
  own: fc.integer({ min: 1, max: 24 }),
  seed: fc.integer({ min: 1, max: 3 }),
  limit: fc.integer({ min: 0, max: 20 }),
  sampled: fc.boolean(),
  arrival: fc.integer({ min: 0, max: 12 }),
  abortAfter: fc.option(fc.integer({ min: 0, max: 10 }), { freq: 4 }),
});

const engineShape = fc.record<EngineShape>({
  blockSize: fc.constantFrom(1, 3, 4, 16),
  prefillChunk: fc.constantFrom(1, 5, 16, 64),
  maxRequests: fc.integer({ min: 1, max: 4 }),
  spareBlocks: fc.integer({ min: 0, max: 6 }),
  policy: fc.constantFrom('lru', 'ref_zero'),
  kvAxes: fc.shuffledSubarray([...axes], { minLength: 6 }),
});

const world = {
  kind: fc.constantFrom<ModelKind>('attention', 'hybrid', 'moe'),
  proposals: fc.integer({ min: 0, max: 3 }),
  plans: fc.array(requestPlan, { minLength: 1, maxLength: 8 }),
};

function promptFor(plan: RequestPlan): number[] {
  return [...promptOf(plan.shared, 50), ...promptOf(plan.own, plan.seed)];
}

function samplingFor(plan: RequestPlan): SamplingParams {
  const draw = plan.sampled ? { top_k: 0, temperature: 0.8, seed: plan.seed } : greedy;
  return { ...draw, num_tokens_to_generate: plan.limit, return_log_probs: true };
}

/** What a request gives alone, on an engine without proposals, in one chunk. Models do not change, so it is kept. */
const alone = new Map<string, Promise<Finished>>();

function resultAlone(kind: ModelKind, plan: RequestPlan): Promise<Finished> {
  const key = JSON.stringify([kind, promptFor(plan), samplingFor(plan)]);
  const known = alone.get(key);
  if (known !== undefined) return known;
  const { engine } = engineFixture({ model: smallModel(kind), blockSize: 16, prefillChunk: 1000 });
  const result = generate(engine, promptFor(plan), samplingFor(plan));
  alone.set(key, result);
  return result;
}

/** An engine whose pool holds the largest request and a few blocks more. */
function build(model: ModelConfig, role: 'both' | 'prefill' | 'decode', shape: EngineShape): EngineFixture {
  const largest = Math.ceil((19 + 24 + 20 + model.numSpeculativeTokens) / shape.blockSize);
  return engineFixture({
    ...shape,
    model,
    role,
    maxSequenceLength,
    poolSize: largest + 1 + shape.spareBlocks * Math.ceil(16 / shape.blockSize),
  });
}

function expectIdle({ engine, pool, slots }: EngineFixture): void {
  expect(engine.hasWork).toBe(false);
  expect(pool.freeCount + pool.evictableCount).toBe(pool.poolSize - 1);
  expect(slots?.freeCount).toBe(slots?.size);
}

const stepsMax = 3000;

test('requests on one engine', async () => {
  await fc.assert(
    fc.asyncProperty(world.kind, world.proposals, engineShape, world.plans, async (kind, proposals, shape, plans) => {
      const fixture = build(smallModel(kind, { numSpeculativeTokens: proposals }), 'both', shape);
      const { engine } = fixture;
      const results: Promise<Finished | null>[] = [];
      for (let step = 0; ; step++) {
        expect(step).toBeLessThan(stepsMax);
        for (const [index, plan] of plans.entries()) {
          if (plan.arrival === step) {
            const input = { requestId: index, prompt: promptFor(plan), samplingParams: samplingFor(plan) };
            results[index] = engine.addRequest(input).catch(() => null);
          }
          if (plan.abortAfter !== null && plan.arrival + plan.abortAfter === step) engine.abort(index);
        }
        engine.step();
        if (step > 12 + 10 && !engine.hasWork) break;
      }
      expectIdle(fixture);
      for (const [index, plan] of plans.entries()) {
        const result = await results[index]!;
        if (result === null) expect(plan.abortAfter).not.toBeNull();
        else expect(bitsOf(result)).toBe(bitsOf(await resultAlone(kind, plan)));
        if (result !== null)
          expect(result.generatedLogProbs).toEqual((await resultAlone(kind, plan)).generatedLogProbs);
      }
    }),
    { numRuns: 120 },
  );
});

test('requests handed from a prefill engine to a decode engine', async () => {
  await fc.assert(
    fc.asyncProperty(
      world.kind,
      world.proposals,
      engineShape,
      engineShape,
      world.plans,
      async (kind, proposals, from, to, plans) => {
        // Block sizes agree between the two; everything else may differ.
        const model = smallModel(kind, { numSpeculativeTokens: proposals });
        const source = build(model, 'prefill', from);
        const target = build(model, 'decode', { ...to, blockSize: from.blockSize });
        const offered: FinishedPrefill[] = [];
        const firstLogits = new Map<number, Float32Array>();
        for (const [index, plan] of plans.entries()) {
          const samplingParams = { ...samplingFor(plan), do_kv_handoff: true };
          void source.engine.addRequest({ requestId: index, prompt: promptFor(plan), samplingParams });
        }
        const done = new Map<number, Finished>();
        for (let step = 0; done.size < plans.length; step++) {
          expect(step).toBeLessThan(stepsMax);
          source.engine.step();
          for (const taken of source.engine.takeFinishedPrefills()) {
            source.pool.retain(taken.blocks);
            offered.push(taken);
          }
          source.engine.cleanupFinished();
          const next = offered[0];
          if (next !== undefined && tryImport(source, target, next)) {
            offered.shift();
            firstLogits.set(next.requestId as number, next.logits!);
          }
          target.engine.step();
          for (const [attemptId, result] of target.finished) done.set(attemptId, result);
        }
        expectIdle(source);
        expectIdle(target);
        for (const [index, plan] of plans.entries()) {
          const expected = await resultAlone(kind, plan);
          const result = done.get(index)!;
          // The engine finds requests of 0 tokens ended already; the SDK would not have admitted them.
          if (plan.limit === 0) continue;
          const logits = [firstLogits.get(index)!, ...extraOf(result).logits!.slice(1)];
          expect(bitsOf({ ...result, extra: { logits } })).toBe(bitsOf(expected));
          expect(result.generatedLogProbs).toEqual(expected.generatedLogProbs);
        }
      },
    ),
    { numRuns: 120 },
  );
});

/** What the SDK does with a ticket, in one go: reserve with the growth reserve in mind, copy, release, admit. */
function tryImport(source: EngineFixture, target: EngineFixture, taken: FinishedPrefill): boolean {
  const { engine, pool, slots } = target;
  const held = Math.ceil((taken.prompt.length + taken.resumeTokens.length) / engine.blockSize);
  const growth = engine.growthBlocks(taken.prompt.length, taken.samplingParams);
  if (!pool.isMemoryAvailable(held + growth + engine.growthReserve(), 0)) return false;
  if (slots !== null && slots.freeCount === 0) return false;
  const attemptId = taken.requestId as number;
  if (!engine.canAdmitPrefilledDecode(undefined as never)) return false;
  const carried = carryOver(source, taken, target, attemptId);
  source.pool.release(taken.blocks);
  if (taken.slot !== null) source.slots!.free(taken.slot);
  engine.admitPrefilledDecode(carried);
  return true;
}
