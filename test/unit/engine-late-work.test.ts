/**
 * The test switch that makes the engine's work complete late: who waits for its fences sees nothing of it, who does not
 * is found out.
 */
import { smallModel } from '../../examples/engine/config.js';
import type { Fence } from '../../lib/engine-context.js';
import {
  bitsOf,
  carryOver,
  engineFixture,
  generate,
  greedy,
  prefill,
  promptOf,
  runUntilIdle,
  type EngineFixture,
} from '../support/engine-fixture.js';

const model = smallModel('hybrid');
const prompt = promptOf(37);
const delay = { model, fenceDelaySteps: 3 };

function stepUntil({ engine }: EngineFixture, fence: Fence): number {
  let steps = 0;
  for (; !fence.isComplete(); steps++) engine.step();
  return steps;
}

async function expectedBits(): Promise<string> {
  return bitsOf(await generate(engineFixture({ model }).engine, prompt), 1);
}

describe('a target that is not quiet yet', () => {
  const source = engineFixture({ model, role: 'prefill' });
  const { taken } = prefill(source, prompt);

  function reserve(target: EngineFixture): { blocks: Int32Array; slot: number; fence: Fence } {
    const blocks = target.pool.allocate(10)!;
    const slot = target.slots!.allocate();
    const fence = target.engine.targetQuiescent(blocks, slot)!;
    target.pool.release(blocks);
    target.slots!.free(slot);
    return { blocks, slot, fence };
  }

  test('has no fence without the switch', () => {
    expect(engineFixture({ model, role: 'decode' }).engine.targetQuiescent(Int32Array.of(1), 0)).toBeNull();
  });

  test('is quiet after its steps, and whoever waited finds its bytes as they were written', async () => {
    const target = engineFixture({ ...delay, role: 'decode' });
    const { fence } = reserve(target);
    expect(target.engine.hasWork).toBe(true);
    expect(stepUntil(target, fence)).toBe(3);
    expect(target.engine.hasWork).toBe(false);
    target.engine.admitPrefilledDecode(carryOver(source, taken, target));
    runUntilIdle(target.engine);
    expect(bitsOf(target.finished.get(7)!, 1)).toBe(await expectedBits());
    expect(target.engine.fenceViolations).toBe(0);
  });

  test.each(['block', 'slot'] as const)('overwrites a %s that was written too early, and counts it', async (kind) => {
    const target = engineFixture({ ...delay, role: 'decode' });
    const { blocks, slot, fence } = reserve(target);
    target.engine.step();
    if (kind === 'block')
      target.memory.kvMemory.writeBlock(blocks[3]!, source.memory.kvMemory.readBlock(taken.blocks[3]!));
    else target.memory.ssmMemory!.writeSlot(slot, source.memory.ssmMemory!.readSlot(taken.slot!));
    stepUntil(target, fence);
    expect(target.engine.fenceViolations).toBe(1);
    const left =
      kind === 'block' ? target.memory.kvMemory.readBlock(blocks[3]!) : target.memory.ssmMemory!.readSlot(slot);
    expect(new Set(left).size).toBe(1);
  });

  test('counts a write between the last step and the fence as well', () => {
    const target = engineFixture({ ...delay, role: 'decode' });
    const { blocks, fence } = reserve(target);
    for (let i = 0; i < 2; i++) target.engine.step();
    expect(fence.isComplete()).toBe(false);
    target.memory.kvMemory.writeBlock(blocks[0]!, source.memory.kvMemory.readBlock(taken.blocks[0]!));
    target.engine.step();
    expect(fence.isComplete()).toBe(true);
    expect(target.engine.fenceViolations).toBe(1);
  });

  test('is left alone once the engine itself gives the memory to a request', async () => {
    const target = engineFixture({ ...delay, role: 'both' });
    reserve(target);
    const result = await generate(target.engine, prompt);
    expect(bitsOf(result, 1)).toBe(await expectedBits());
    expect(target.engine.fenceViolations).toBe(0);
  });

  test('is left alone once a running request grows into it', async () => {
    const target = engineFixture({ model: smallModel('attention'), fenceDelaySteps: 6, role: 'both' });
    const sampling = { ...greedy, num_tokens_to_generate: 12 };
    const promise = target.engine.addRequest({ requestId: 1, prompt: promptOf(4), samplingParams: sampling });
    target.engine.step();
    const blocks = target.pool.allocate(5)!;
    target.engine.targetQuiescent(blocks, null);
    target.pool.release(blocks);
    runUntilIdle(target.engine);
    const alone = await generate(engineFixture().engine, promptOf(4));
    expect(bitsOf(await promise)).toBe(bitsOf(alone));
  });

  test('belongs to the newest reservation', () => {
    const target = engineFixture({ ...delay, role: 'decode' });
    const first = reserve(target);
    target.engine.step();
    const second = reserve(target);
    expect(second.blocks).toEqual(first.blocks);
    stepUntil(target, second.fence);
    expect(first.fence.isComplete()).toBe(true);
    expect(target.engine.fenceViolations).toBe(0);
  });
});

describe('a prefill that is not ready yet', () => {
  function carryAndDecode(source: EngineFixture, taken: Parameters<typeof carryOver>[1]): string {
    const target = engineFixture({ model, role: 'decode' });
    target.engine.admitPrefilledDecode(carryOver(source, taken, target));
    runUntilIdle(target.engine);
    return bitsOf(target.finished.get(7)!, 1);
  }

  test('holds junk until its fence completes, and the state then', async () => {
    const source = engineFixture({ ...delay, role: 'prefill' });
    const { taken } = prefill(source, prompt);
    const expected = await expectedBits();
    expect(taken.ready!.isComplete()).toBe(false);
    expect(carryAndDecode(source, taken)).not.toBe(expected);
    source.engine.step();
    expect(carryAndDecode(source, taken)).not.toBe(expected);
    expect(stepUntil(source, taken.ready!)).toBe(2);
    expect(carryAndDecode(source, taken)).toBe(expected);
  });

  test('keeps its blocks until then, and offers them to the cache only then', () => {
    const source = engineFixture({ ...delay, role: 'prefill' });
    const { taken } = prefill(source, prompt);
    source.engine.cleanupFinished();
    source.engine.step();
    expect(source.pool.refs[taken.blocks[0]!]).toBe(1);
    expect(source.pool.lookup(taken.blockHashes[0]!)).toBe(-1);
    expect(source.engine.hasWork).toBe(true);
    stepUntil(source, taken.ready!);
    expect(source.pool.evictableCount).toBe(9);
    expect(source.pool.freeCount).toBe(source.pool.poolSize - 1 - 9);
    expect(source.engine.hasWork).toBe(false);
  });

  test('whose slot is freed and given to a new request does not disturb that', async () => {
    const source = engineFixture({ ...delay, role: 'prefill', maxRequests: 1 });
    const { taken, promise } = prefill(source, prompt);
    source.engine.cleanupFinished();
    await promise;
    source.slots!.free(taken.slot!);
    const result = await generate(source.engine, prompt);
    expect(bitsOf(result, 1)).toBe(await expectedBits());
  });

  test('reuses a cached prefix without spoiling it', async () => {
    const attention = smallModel('attention');
    const source = engineFixture({ model: attention, fenceDelaySteps: 3, role: 'both' });
    const first = await generate(source.engine, prompt);
    const { taken } = prefill(source, prompt);
    expect(taken.cachedTokens).toBe(36);
    const again = await generate(source.engine, prompt);
    expect(again.cachedTokens).toBe(36);
    expect(bitsOf(again)).toBe(bitsOf(first));
  });
});
