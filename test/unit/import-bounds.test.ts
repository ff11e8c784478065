/** What can never fit is refused at once: counted with what an engine needs to continue, unless it continues elsewhere. */
import { requireFits } from '../../lib/decode/import-bounds.js';
import type { EngineContext } from '../../lib/engine-context.js';

/** Two usable blocks of four tokens. */
const engineOf = (changes: Partial<EngineContext> = {}): EngineContext =>
  ({
    blockSize: 4,
    numSpeculativeTokens: 0,
    maxSequenceLength: 64,
    blocks: { poolSize: 3 },
    ...changes,
  }) as unknown as EngineContext;
const sampling = { num_tokens_to_generate: 4 };

test('a prompt that fills the pool has no room to continue', () => {
  expect(() => requireFits(engineOf(), 'r', 8, { num_tokens_to_generate: 1 })).toThrow(
    expect.objectContaining({
      code: 'CAPACITY_NEVER_FITS',
      message: 'the request needs 3 blocks over its life and this engine has 2',
    }),
  );
  expect(() => requireFits(engineOf(), 'r', 4, sampling)).not.toThrow();
});

test('it fits an engine that continues in memory of its own, and one token more does not', () => {
  const engine = engineOf({ growsInBlocks: false });
  expect(() => requireFits(engine, 'r', 8, sampling)).not.toThrow();
  expect(() => requireFits(engine, 'r', 9, sampling)).toThrow(expect.objectContaining({ code: 'CAPACITY_NEVER_FITS' }));
  expect(() => requireFits({ ...engine, growthBlocks: () => 7 }, 'r', 8, sampling)).not.toThrow();
});

test('the sequence is bounded either way', () => {
  for (const growsInBlocks of [true, false]) {
    const engine = engineOf({ growsInBlocks, blocks: { poolSize: 99 } as EngineContext['blocks'] });
    expect(() => requireFits(engine, 'r', 64, sampling)).toThrow(/exceed maxSequenceLength 64$/);
  }
});
