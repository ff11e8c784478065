/** Every input that the reference engine refuses, by code and by the name of the field. */
import { Engine, type EngineOptions } from '../../examples/engine/engine.js';
import { EngineMemory, type EngineMemoryOptions } from '../../examples/engine/engine-memory.js';
import { checkModel, modelIdentity, smallModel, type ModelConfig } from '../../examples/engine/config.js';
import { KvMemory } from '../../examples/engine/kv-memory.js';
import { rankSlice, singleRank } from '../../examples/engine/rank-slice.js';
import { SsmMemory } from '../../examples/engine/ssm-memory.js';
import { decode, encode, specialTokens } from '../../examples/engine/tokenizer.js';
import type { SamplingParams } from '../../lib/engine-context.js';
import { HandoffError } from '../../lib/errors.js';
import { PlainRegion } from '../../lib/memory/plain-region.js';
import { ModelBlockPool } from '../../lib/testing/model-block-pool.js';
import { ModelSlotPool } from '../../lib/testing/model-slot-pool.js';
import { engineFixture, generate, promptOf } from '../support/engine-fixture.js';

function refusal(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof HandoffError) return `${error.code} ${error.message}`;
    throw error;
  }
  return 'accepted';
}

const hybrid = smallModel('hybrid');
const moe = smallModel('moe');

describe('a model configuration', () => {
  test.each(['attention', 'hybrid', 'moe'] as const)('of the small %s model is fine', (kind) => {
    expect(refusal(() => checkModel(smallModel(kind)))).toBe('accepted');
  });

  test.each<[string, Partial<ModelConfig>, ModelConfig?]>([
    ['model.seed: expected an integer in [0, 4294967295], got -1', { seed: -1 }],
    ['model.vocabSize: expected an integer in [2, 2147483647], got 1', { vocabSize: 1 }],
    ['model.numSpeculativeTokens: expected an integer in [0, 16], got 17', { numSpeculativeTokens: 17 }],
    ['model.dModel: expected a multiple of 8, got 36', { dModel: 36 }],
    ['model.feedForwardDim: expected a multiple of 8, got 7', { feedForwardDim: 7 }],
    ['model.layers: expected at least one attention layer, got "none"', { layers: [] }],
    [
      'model.attention.heads: expected an integer in [1, 2147483647], got 0',
      { attention: { ...hybrid.attention, heads: 0 } },
    ],
    ['model.attention.heads: expected a multiple of 3, got 4', { attention: { ...hybrid.attention, kvHeads: 3 } }],
    [
      'model.attention.kvHeads: expected an integer in [1, 4], got 8',
      { attention: { ...hybrid.attention, kvHeads: 8 } },
    ],
    ['model.attention.headDim: expected a multiple of 2, got 7', { attention: { ...hybrid.attention, headDim: 7 } }],
    [
      'model.attention.headDim: expected an integer in [2, 2147483647], got 1',
      { attention: { ...hybrid.attention, headDim: 1 } },
    ],
    [
      'model.attention.heads * headDim: expected a multiple of 8, got 12',
      { attention: { ...hybrid.attention, heads: 2, headDim: 6 } },
    ],
    [
      'model.attention.ropeTheta: expected a number above 0, got 0',
      { attention: { ...hybrid.attention, ropeTheta: 0 } },
    ],
    ['model.ssm: expected dimensions if and only if a layer is an SSM layer, got null', { ssm: null }],
    ['model.ssm: expected dimensions if and only if a layer is an SSM layer, got an object', { ssm: hybrid.ssm }, moe],
    ['model.ssm.dConv: expected an integer in [1, 2147483647], got 0', { ssm: { ...hybrid.ssm!, dConv: 0 } }],
    ['model.ssm.nheads: expected a multiple of 3, got 4', { ssm: { ...hybrid.ssm!, ngroups: 3 } }],
    ['model.ssm.nheads * headdim: expected a multiple of 8, got 12', { ssm: { ...hybrid.ssm!, headdim: 3 } }],
    ['model.experts: expected sizes if and only if a layer has experts, got null', { experts: null }, moe],
    ['model.experts: expected sizes if and only if a layer has experts, got an object', { experts: moe.experts }],
    [
      'model.experts.count: expected an integer in [1, 2147483647], got 0',
      { experts: { ...moe.experts!, count: 0 } },
      moe,
    ],
    [
      'model.experts.perToken: expected an integer in [1, 4], got 5',
      { experts: { ...moe.experts!, perToken: 5 } },
      moe,
    ],
    ['model.experts.dim: expected a multiple of 8, got 12', { experts: { ...moe.experts!, dim: 12 } }, moe],
  ])('is refused: %s', (message, changes, base = hybrid) => {
    expect(refusal(() => checkModel({ ...base, ...changes }))).toBe(`ARGUMENT_INVALID ${message}`);
  });

  test('has an identity of everything but its proposals, in whatever order it is written', () => {
    const { name, seed, ...rest } = hybrid;
    expect(modelIdentity({ ...rest, seed, name, numSpeculativeTokens: 3 })).toBe(modelIdentity(hybrid));
    expect(modelIdentity({ ...hybrid, seed: 2 })).not.toBe(modelIdentity(hybrid));
    expect(modelIdentity({ ...hybrid, ssm: { ...hybrid.ssm!, dConv: 3 } })).not.toBe(modelIdentity(hybrid));
  });

  test.each([
    [{ tpRank: 1 }, 'parallelism.tpRank: expected an integer in [0, 0], got 1'],
    [{ ppRank: -1 }, 'parallelism.ppRank: expected an integer in [0, 0], got -1'],
    [{ epRank: 1 }, 'parallelism.epRank: expected an integer in [0, 0], got 1'],
    [{ tpSize: 3 }, 'parallelism: expected a divisor of the 4 heads, got 3'],
    [{ tpSize: 4 }, 'parallelism: expected a divisor of the 2 SSM groups, got 4'],
  ])('cannot be cut by %j', (change, message) => {
    expect(refusal(() => rankSlice(hybrid, { ...singleRank, ...change }))).toBe(`ARGUMENT_INVALID ${message}`);
  });
});

function memoryOptions(changes: Partial<EngineMemoryOptions> = {}): EngineMemoryOptions {
  return {
    model: hybrid,
    blockSize: 4,
    blocks: new ModelBlockPool({ poolSize: 10 }),
    slots: new ModelSlotPool({ maxRequests: 3 }),
    allocateRegion: (bytes) => new PlainRegion(bytes),
    hashBlocks: () => new BigInt64Array(0),
    ...changes,
  };
}

describe('memory', () => {
  test.each<[Partial<EngineMemoryOptions>, string]>([
    [{ blockSize: 0 }, 'memory.blockSize: expected an integer in [1, 2147483647], got 0'],
    [{ slots: null }, 'memory.slots: expected a slot allocator if and only if the model has SSM layers, got null'],
    [{ model: moe }, 'memory.slots: expected a slot allocator if and only if the model has SSM layers, got an object'],
    [{ physicalSlots: 2 }, 'memory.physicalSlots: expected an integer in [3, 2147483647], got 2'],
    [
      { convAxes: ['layer', 'slot', 'dim', 'dim'] },
      'memory.conv.axes: expected each of layer, slot, channel, dim once, got "layer, slot, dim, dim"',
    ],
    [
      { kvAxes: ['plane', 'layer'] },
      'memory.kv-0.axes: expected each of plane, layer, block, token, head, dim once, got "plane, layer"',
    ],
  ])('is refused for %j', (changes, message) => {
    expect(refusal(() => new EngineMemory(memoryOptions(changes)))).toBe(`ARGUMENT_INVALID ${message}`);
  });

  const { kv, ssm, regions, kvMemory, ssmMemory } = new EngineMemory(memoryOptions());
  const buffer = kv.buffers[0]!;
  const resized = (name: string, change: object): typeof buffer => ({
    ...buffer,
    axes: buffer.axes.map((axis) => (axis.name === name ? { ...axis, ...change } : axis)),
  });

  test.each([
    [{ ...buffer, region: 9 }, 'kv.buffers[0].region: expected the index of a host region, got 9'],
    [{ ...buffer, elementBytes: 2 }, 'kv.buffers[0].elementBytes: expected 4 (float32), got 2'],
    [{ ...buffer, offsetBytes: 2 }, 'kv.buffers[0].offsetBytes: expected a multiple of 4 bytes, got 2'],
    [{ ...buffer, offsetBytes: -4 }, 'kv.buffers[0].offsetBytes: expected a multiple of 4 bytes, got -4'],
    [{ ...buffer, offsetBytes: 4 }, 'kv.buffers[0].axes: expected an extent of at most 2560 numbers, got 2561'],
    [
      resized('token', { strideBytes: 6 }),
      'kv.buffers[0].axes.token.strideBytes: expected a multiple of 4 bytes, got 6',
    ],
    [resized('block', { size: 9 }), 'kv.buffers[0].axes.block.size: expected 10, got 9'],
    [resized('token', { size: 3 }), 'kv.buffers[0].axes.token.size: expected 4, got 3'],
    [resized('head', { size: 1 }), 'kv.buffers[0].axes.head.size: expected 2, got 1'],
    [resized('dim', { size: 4 }), 'kv.buffers[0].axes.dim.size: expected 8, got 4'],
    [resized('plane', { size: 1 }), 'kv.buffers[0].axes.plane.size: expected 2, got 1'],
    [resized('layer', { size: 1 }), 'kv.buffers: expected a buffer with layer 1, got "none"'],
  ])('is not opened for a KV buffer that is not as said: case %#', (changed, message) => {
    const open = (): unknown => new KvMemory({ ...kv, buffers: [changed] }, regions, kvMemory.shape);
    expect(refusal(open)).toBe(`ENGINE_CONTEXT_INVALID ${message}`);
  });

  test('is not opened when two buffers hold a layer, or one holds a foreign layer', () => {
    const open = (buffers: (typeof buffer)[], layerStarts: number[]): string =>
      refusal(() => new KvMemory({ ...kv, buffers, layerStarts }, regions, kvMemory.shape));
    const message = 'layer: expected each layer of this rank in one buffer, got';
    expect(open([buffer, buffer], [0, 0])).toBe(`ENGINE_CONTEXT_INVALID kv.buffers[1].${message} 0`);
    expect(open([buffer], [1])).toBe(`ENGINE_CONTEXT_INVALID kv.buffers[0].${message} 2`);
    expect(open([buffer], [-1])).toBe(`ENGINE_CONTEXT_INVALID kv.buffers[0].${message} -1`);
  });

  test('is not opened for SSM buffers of another shape', () => {
    const { shape } = ssmMemory!;
    const open = (change: object): string => refusal(() => new SsmMemory(ssm!, regions, { ...shape, ...change }));
    expect(open({ layers: 3 })).toBe('ENGINE_CONTEXT_INVALID ssm.conv.axes.layer.size: expected 3, got 2');
    expect(open({ channels: 63 })).toBe('ENGINE_CONTEXT_INVALID ssm.conv.axes.channel.size: expected 63, got 64');
    expect(open({ convWidth: 3 })).toBe('ENGINE_CONTEXT_INVALID ssm.conv.axes.dim.size: expected 3, got 4');
    expect(open({ heads: 2 })).toBe('ENGINE_CONTEXT_INVALID ssm.recurrent.axes.head.size: expected 2, got 4');
    expect(open({ stateDim: 1 })).toBe('ENGINE_CONTEXT_INVALID ssm.recurrent.axes.dim.size: expected 1, got 64');
    const fewer = refusal(() => new SsmMemory({ ...ssm!, physicalSlots: 2 }, regions, shape));
    expect(fewer).toBe('ENGINE_CONTEXT_INVALID ssm.conv.axes.slot.size: expected 2, got 3');
  });

  test('gives its regions back', () => {
    const memory = new EngineMemory(memoryOptions());
    memory.close();
    expect(memory.regions.map((region) => (region as PlainRegion).isClosed)).toEqual([true, true, true]);
  });
});

test.each<[Partial<EngineOptions>, string]>([
  [{ role: 'router' as 'both' }, "role: expected 'prefill', 'decode' or 'both', got \"router\""],
  [{ maxRequests: 0 }, 'maxRequests: expected an integer in [1, 2147483647], got 0'],
  [{ maxSequenceLength: 1.5 }, 'maxSequenceLength: expected an integer in [1, 2147483647], got 1.5'],
  [{ prefillChunk: 0 }, 'prefillChunk: expected an integer in [1, 2147483647], got 0'],
  [{ maxTokensPerStep: 0 }, 'maxTokensPerStep: expected an integer in [1, 2147483647], got 0'],
  [{ fenceDelaySteps: -1 }, 'fenceDelaySteps: expected an integer in [0, 2147483647], got -1'],
  [{ model: { ...hybrid, dModel: 5 } }, 'model.dModel: expected a multiple of 8, got 5'],
])('an engine is refused for %j', (changes, message) => {
  const options: EngineOptions = {
    role: 'both',
    model: hybrid,
    memory: new EngineMemory(memoryOptions()),
    maxRequests: 3,
    maxSequenceLength: 32,
    ...changes,
  };
  expect(refusal(() => new Engine(options))).toBe(`ARGUMENT_INVALID ${message}`);
});

describe('a request', () => {
  const { engine } = engineFixture({ maxSequenceLength: 60, poolSize: 13 });

  test.each<[string, number[], SamplingParams]>([
    ['prompt.length: expected an integer in [1, 60], got 0', [], {}],
    ['prompt.length: expected an integer in [1, 60], got 61', promptOf(61), {}],
    ['prompt[1]: expected an integer in [0, 263], got 264', [1, 264], {}],
    ['prompt[0]: expected an integer in [0, 263], got -1', [-1], {}],
    ['prompt[0]: expected an integer in [0, 263], got 0.5', [0.5], {}],
    [
      'samplingParams.num_tokens_to_generate: expected at most 50 after this prompt, got 51',
      promptOf(10),
      { num_tokens_to_generate: 51 },
    ],
    [
      'samplingParams.num_tokens_to_generate: expected an integer in [0, 2147483647], got -1',
      [1],
      { num_tokens_to_generate: -1 },
    ],
    [
      'samplingParams.num_tokens_total: expected null beside num_tokens_to_generate, got 5',
      [1],
      { num_tokens_to_generate: 3, num_tokens_total: 5 },
    ],
    ['samplingParams.termination_id: expected an integer in [-1, 2147483647], got -2', [1], { termination_id: -2 }],
    ['samplingParams.top_k: expected an integer in [0, 2147483647], got -1', [1], { top_k: -1 }],
    ['samplingParams.seed: expected an integer in [0, 4294967295], got 4294967296', [1], { seed: 2 ** 32 }],
    [
      'samplingParams.temperature: expected a number in [0, 1.7976931348623157e+308], got "hot"',
      [1],
      { temperature: 'hot' },
    ],
    [
      'samplingParams.temperature: expected a number in [0, 1.7976931348623157e+308], got NaN',
      [1],
      { temperature: NaN },
    ],
    ['samplingParams.top_p: expected a number in [0, 1], got 2', [1], { top_p: 2 }],
    [
      'samplingParams.return_log_probs: expected true or false, got 1',
      [1],
      { return_log_probs: 1 as unknown as boolean },
    ],
    ['samplingParams.do_kv_handoff: expected true or false, got "yes"', [1], { do_kv_handoff: 'yes' }],
    ['samplingParams.cache_salt: expected text or null, got 5', [1], { cache_salt: 5 }],
    [
      'samplingParams.stop_words: expected a list of texts or null, got "x"',
      [1],
      { stop_words: 'x' as unknown as string[] },
    ],
    ['samplingParams.stop_words[1]: expected a text that is not empty, got ""', [1], { stop_words: ['a', ''] }],
  ])('is refused: %s', async (message, prompt, samplingParams) => {
    const error: unknown = await engine
      .addRequest({ requestId: 1, prompt, samplingParams })
      .catch((reason: unknown) => reason);
    expect(refusal(() => rethrow(error))).toBe(`ARGUMENT_INVALID ${message}`);
  });

  test('that can never fit is refused before it waits', async () => {
    const refused = engine.addRequest({
      requestId: 1,
      prompt: promptOf(20),
      samplingParams: { num_tokens_to_generate: 30 },
    });
    await expect(refused).rejects.toMatchObject({
      code: 'CAPACITY_NEVER_FITS',
      message: 'request 1 can never run because it needs 13 blocks of 12',
    });
    expect((await generate(engine, promptOf(20), { num_tokens_to_generate: 29 })).generatedTokens).toHaveLength(29);
    expect(engine.hasWork).toBe(false);
  });

  test('has a label that no living request has', async () => {
    const first = engine.addRequest({ requestId: 'twin', prompt: [1], samplingParams: { num_tokens_to_generate: 1 } });
    await expect(engine.addRequest({ requestId: 'twin', prompt: [2] })).rejects.toMatchObject({
      code: 'DUPLICATE_REQUEST',
    });
    engine.step();
    await first;
    expect((await generate(engine, [1])).generatedTokens).toHaveLength(12);
  });

  test('may carry keys that mean nothing here', async () => {
    const result = await generate(engine, [1], { lora: 'x', num_tokens_to_generate: 1 });
    expect(result.generatedTokens).toHaveLength(1);
  });
});

function rethrow(error: unknown): never {
  throw error;
}

test('text becomes bytes and comes back, specials standing for nothing', () => {
  const text = 'naïve – 漢字\n';
  expect(decode(encode(text))).toBe(text);
  expect([...encode('ab', true)]).toEqual([specialTokens.begin, 97, 98]);
  expect(decode([specialTokens.begin, 104, 105, specialTokens.end, specialTokens.pad])).toBe('hi');
  expect(decode([0xe6, 0xbc])).toBe('\ufffd');
});
