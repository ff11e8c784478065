/**
 * The exactness law of the reference engine: logits are equal bit for bit whatever the chunks, batches, block sizes,
 * layouts, cached prefixes and proposals, and after state was carried to another engine by hand. And the other way
 * round: one wrong byte of carried state shows.
 */
import { smallModel, type ModelKind } from '../../examples/engine/config.js';
import {
  bitsOf,
  carryOver,
  engineFixture,
  extraOf,
  generate,
  greedy,
  prefill,
  promptOf,
  runUntilIdle,
  type EngineFixture,
  type FixtureOptions,
} from '../support/engine-fixture.js';

const kinds: readonly ModelKind[] = ['attention', 'hybrid', 'moe'];
const prompt = promptOf(37);

async function bitsWith(options: FixtureOptions, tokens = prompt): Promise<string> {
  return bitsOf(await generate(engineFixture(options).engine, tokens));
}

/** Hands `tokens` from one engine to another and returns the bits of the whole output. */
function handOff(source: EngineFixture, target: EngineFixture, tokens = prompt): string {
  const { taken } = prefill(source, tokens);
  const carried = carryOver(source, taken, target);
  source.engine.cleanupFinished();
  target.engine.admitPrefilledDecode(carried);
  runUntilIdle(target.engine);
  const result = target.finished.get(carried.attemptId)!;
  const [first, ...rest] = extraOf(result).logits!;
  expect(first).toBeNull();
  return bitsOf({ ...result, extra: { logits: [taken.logits, ...rest] } });
}

describe.each(kinds)('a %s model computes the same bits', (kind) => {
  const model = smallModel(kind);
  let expected: string;
  beforeAll(async () => {
    expected = await bitsWith({ model, prefillChunk: 1000 });
  });

  test.each([1, 3, 7, 16, 36])('in prefill chunks of %i', async (prefillChunk) => {
    expect(await bitsWith({ model, prefillChunk })).toBe(expected);
  });

  test.each([1, 5, 16])('in blocks of %i tokens', async (blockSize) => {
    expect(await bitsWith({ model, blockSize })).toBe(expected);
  });

  test('whatever else is in the batch', async () => {
    const { engine } = engineFixture({ model, prefillChunk: 5, maxRequests: 3 });
    const sampling = { ...greedy, num_tokens_to_generate: 12 };
    const others = [8, 50, 21].map((length, index) =>
      engine.addRequest({ requestId: index, prompt: promptOf(length, 9 + index), samplingParams: sampling }),
    );
    const ours = engine.addRequest({ requestId: 'ours', prompt, samplingParams: sampling });
    runUntilIdle(engine);
    await Promise.all(others);
    expect(bitsOf(await ours)).toBe(expected);
  });

  test.each([
    ['head-major', { kvAxes: ['plane', 'layer', 'block', 'head', 'token', 'dim'] }],
    ['block-first', { kvAxes: ['block', 'layer', 'plane', 'token', 'head', 'dim'] }],
    ['dimension outermost', { kvAxes: ['dim', 'head', 'token', 'block', 'layer', 'plane'] }],
    ['one buffer a layer', { bufferPerLayer: true }],
    [
      'turned state axes',
      { convAxes: ['slot', 'dim', 'channel', 'layer'], recurrentAxes: ['dim', 'slot', 'layer', 'head'] },
    ],
  ] as const)('in another layout: %s', async (_name, layout) => {
    expect(await bitsWith({ model, ...layout })).toBe(expected);
  });

  test('with a cached prefix, and reuses it only where it can', async () => {
    const { engine } = engineFixture({ model });
    const cold = await generate(engine, promptOf(37));
    const warm = await generate(engine, promptOf(37));
    expect(cold.cachedTokens).toBe(0);
    expect(warm.cachedTokens).toBe(kind === 'hybrid' ? 0 : 36);
    expect(bitsOf(warm)).toBe(expected);
    expect(bitsOf(cold)).toBe(expected);
  });

  test.each([1, 2, 4])('with %i proposals', async (numSpeculativeTokens) => {
    const { engine } = engineFixture({ model: smallModel(kind, { numSpeculativeTokens }) });
    const long = await generate(engine, prompt, { num_tokens_to_generate: 40 });
    const plain = await generate(engineFixture({ model }).engine, prompt, { num_tokens_to_generate: 40 });
    expect(bitsOf(long)).toBe(bitsOf(plain));
    const { accepted, proposed } = extraOf(long);
    expect(accepted).toBeGreaterThan(0);
    expect(accepted).toBeLessThan(proposed);
  });

  test.each([0, 1, 3])('after a handoff with %i proposals', (numSpeculativeTokens) => {
    const speculative = smallModel(kind, { numSpeculativeTokens });
    const source = engineFixture({ model: speculative, role: 'prefill', prefillChunk: 10 });
    const target = engineFixture({
      model: speculative,
      role: 'decode',
      poolSize: 90,
      skipBlocks: 13,
      skipSlots: 2,
      kvAxes: ['block', 'plane', 'head', 'token', 'layer', 'dim'],
      recurrentAxes: ['slot', 'head', 'layer', 'dim'],
    });
    expect(handOff(source, target)).toBe(expected);
    expect(target.engine.tokenCount).toBeLessThan(prompt.length + 12);
  });

  test.each([36, 37, 39, 40])('after a handoff of %i tokens in blocks of 4', async (length) => {
    const tokens = promptOf(length, 3);
    const target = engineFixture({ model, role: 'decode', skipBlocks: 5, skipSlots: 1 });
    const source = engineFixture({ model, role: 'prefill' });
    expect(handOff(source, target, tokens)).toBe(await bitsWith({ model }, tokens));
  });

  test('for a token as for the same token in a longer prompt', async () => {
    const whole = await generate(engineFixture({ model }).engine, prompt);
    for (const count of [1, 2, 11]) {
      const longer = [...prompt, ...whole.generatedTokens.slice(0, count)];
      const next = await generate(engineFixture({ model }).engine, longer, { num_tokens_to_generate: 1 });
      expect(extraOf(next).logits![0]).toEqual(extraOf(whole).logits![count]);
    }
  });

  test('with seeded sampling, with proposals and after a handoff', async () => {
    const sampling = { top_k: 0, temperature: 1.5, seed: 99, return_log_probs: true };
    const plain = await generate(engineFixture({ model }).engine, prompt, sampling);
    const speculative = smallModel(kind, { numSpeculativeTokens: 2 });
    const proposing = await generate(engineFixture({ model: speculative }).engine, prompt, sampling);
    const source = engineFixture({ model: speculative, role: 'prefill' });
    const target = engineFixture({ model: speculative, role: 'decode' });
    const { taken } = prefill(source, prompt, sampling);
    target.engine.admitPrefilledDecode(carryOver(source, taken, target));
    runUntilIdle(target.engine);
    const handed = target.finished.get(7)!;
    const greedyTokens = (await generate(engineFixture({ model }).engine, prompt)).generatedTokens;
    expect(plain.generatedTokens).not.toEqual(greedyTokens);
    expect(plain.generatedLogProbs).toHaveLength(12);
    for (const other of [proposing, handed]) {
      expect(other.generatedTokens).toEqual(plain.generatedTokens);
      expect(other.generatedLogProbs).toEqual(plain.generatedLogProbs);
    }
  });
});

/** Where to flip a byte: an array of the target and an index in it. */
type Locate = (target: EngineFixture, blocks: Int32Array, slot: number) => [Float32Array, number];

describe('one wrong byte of carried state shows in the logits', () => {
  const model = smallModel('hybrid');
  const tokens = promptOf(29);
  const source = engineFixture({ model, role: 'prefill' });
  const { taken } = prefill(source, tokens);

  /** The bits of a decode in which one byte of one number was changed before it began. */
  function bitsAfterFlip(locate: Locate | null, byte = 0): string {
    const target = engineFixture({ model, role: 'decode', poolSize: 20 });
    const carried = carryOver(source, taken, target);
    if (locate !== null) {
      const [numbers, index] = locate(target, carried.blocks, carried.slot!);
      const bytes = new Uint8Array(numbers.buffer);
      bytes[4 * index + byte] = bytes[4 * index + byte]! ^ 0x80;
    }
    target.engine.admitPrefilledDecode(carried);
    runUntilIdle(target.engine);
    return bitsOf(target.finished.get(7)!, 1);
  }

  const clean = bitsAfterFlip(null);

  /** Bytes 1 to 3 always show. The lowest byte of a number near zero may weigh less than any rounding: 1 in 20 at most. */
  function expectToShow(samples: number, locate: (sample: number) => Locate): void {
    for (const byte of [0, 1, 2, 3]) {
      const unseen = [];
      for (let i = 0; i < samples; i++) if (bitsAfterFlip(locate(i), byte) === clean) unseen.push(i);
      expect({ byte, unseen: byte === 0 ? unseen.slice(Math.floor(samples / 20)) : unseen }).toEqual({
        byte,
        unseen: [],
      });
    }
  }

  test('and without one nothing differs', () => {
    expect(bitsAfterFlip(null)).toBe(clean);
  });

  test.each(['keys', 'values'] as const)('in %s, of any layer, head, position and dimension', (plane) => {
    expectToShow(tokens.length, (i) => (target, blocks) => {
      const layer = target.memory.kvMemory.layers[i % 2]!;
      const block = blocks[Math.floor(i / 4)]! * layer.blockStride + (i % 4) * layer.tokenStride;
      const head = (Math.floor(i / 2) % 2) * layer.headStride + ((i * 5) % 8) * layer.dimStride;
      return [layer.numbers, layer[plane] + block + head];
    });
  });

  test.each([
    ['conv band x', 'conv', 0, 32],
    ['conv band B', 'conv', 32, 48],
    ['conv band C', 'conv', 48, 64],
    ['recurrent heads', 'recurrent', 0, 4],
  ] as const)('in %s, of any layer and column', (_name, kind, from, to) => {
    expectToShow(32, (i) => (target, _blocks, slot) => {
      const state = target.memory.ssmMemory![kind][i % 2]!;
      const row = from + ((i * 3) % (to - from));
      const dim = (Math.floor(i / 2) * (kind === 'conv' ? 1 : 13)) % state.dims;
      return [state.numbers, state.base + slot * state.slotStride + row * state.rowStride + dim * state.dimStride];
    });
  });
});
