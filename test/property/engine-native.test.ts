/** The reference engine over the SDK's own memory: sealed host regions, native pools, native hashes. */
import { nativeMemory } from '../../examples/engine/native-memory.js';
import { Engine } from '../../examples/engine/engine.js';
import { smallModel, type ModelKind } from '../../examples/engine/config.js';
import type { BlockPool } from '../../lib/memory/block-pool.js';
import { bitsOf, engineFixture, generate, greedy, promptOf, runUntilIdle } from '../support/engine-fixture.js';

test.each<ModelKind>(['attention', 'hybrid', 'moe'])(
  'a %s model gives the bits that it gives over plain memory',
  async (kind) => {
    const model = smallModel(kind, { numSpeculativeTokens: 2 });
    const memory = nativeMemory({ model, blockSize: 4, poolSize: 60, maxRequests: 2 });
    const options = {
      role: 'both',
      model,
      memory,
      maxRequests: 2,
      maxSequenceLength: 128,
      recordLogits: true,
    } as const;
    const engine = new Engine(options);
    const pool = memory.blocks as BlockPool;
    const prompts = [promptOf(37), promptOf(50, 2), promptOf(37), promptOf(90, 3)];
    const samplingParams = { ...greedy, num_tokens_to_generate: 20 };
    const results = prompts.map((prompt, requestId) => engine.addRequest({ requestId, prompt, samplingParams }));
    runUntilIdle(engine);
    const plain = engineFixture({ model });
    for (const [index, result] of results.entries()) {
      const alone = await generate(plain.engine, prompts[index]!, samplingParams);
      expect(bitsOf(await result)).toBe(bitsOf(alone));
    }
    expect((await results[2]!).cachedTokens).toBe(kind === 'hybrid' ? 0 : 36);
    expect(pool.allocatableCount).toBe(59);
    expect(pool.evictableCount).toBeGreaterThan(0);
    expect(memory.slots?.freeCount).toBe(kind === 'hybrid' ? 2 : undefined);
    memory.close();
    for (const region of memory.regions) expect(region.buffer!.byteLength).toBe(0);
  },
);

test('its blocks and slots have generations', () => {
  const memory = nativeMemory({ model: smallModel('hybrid'), blockSize: 4, poolSize: 8, maxRequests: 2 });
  const ids = memory.blocks.allocate(2)!;
  expect(memory.blocks.generationsOf(ids)).toHaveLength(2);
  expect(memory.slots!.generationsOf(Int32Array.of(0))).toHaveLength(1);
  memory.close();
});
