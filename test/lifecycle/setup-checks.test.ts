/** Engines and batches that contradict themselves are refused before anything is built on them, by name. */
import { InProcessRankGroup } from '../../lib/control/in-process-rank-group.js';
import type { EngineContext, PrefillContext } from '../../lib/engine-context.js';
import type { BufferGeometry } from '../../lib/memory/axes-geometry.js';
import { StateHandoff } from '../../lib/state-handoff.js';
import { ScriptedNetwork } from '../../lib/testing/scripted-network.js';
import { ScriptedTransport } from '../../lib/testing/scripted-transport.js';
import { TestEngine, type TestEngineOptions } from '../../lib/testing/test-engine.js';
import { smallShape } from '../../lib/testing/test-memory.js';
import { createWorld, hybridShape, poolState, promptOf } from '../support/lifecycle-fixture.js';

const network = new ScriptedNetwork();
const engineOf = (options: Partial<TestEngineOptions> = {}): TestEngine =>
  new TestEngine({ role: 'decode', clock: network.clock, ...options });

/** The engine with some of its answers replaced. */
function altered(changes: object): EngineContext {
  const engine = engineOf();
  for (const [key, value] of Object.entries(changes)) Object.defineProperty(engine, key, { value });
  return engine;
}

const buffer = (changes: Partial<BufferGeometry>, stride: Record<string, number> = {}): object => {
  const { kv } = engineOf();
  const [first] = kv.buffers as [BufferGeometry];
  const axes = first.axes.map((axis) => ({ ...axis, strideBytes: stride[axis.name] ?? axis.strideBytes }));
  return { kv: { ...kv, buffers: [{ ...first, axes, ...changes }, ...kv.buffers.slice(1)] } };
};

/** The first buffer without one of its axes. */
const without = (name: string, engine = engineOf()): object => {
  const [first, ...rest] = engine.kv.buffers as [BufferGeometry];
  const { regions } = engine;
  const axes = first.axes.filter((axis) => axis.name !== name);
  return { regions, kv: { ...engine.kv, buffers: [{ ...first, axes }, ...rest] } };
};

const layout = (changes: object): object => {
  const { kv } = engineOf();
  return { kv: { ...kv, layout: { ...kv.layout, ...changes } } };
};

/** Of a hybrid model. */
const ssmLayout = (changes: object): object => {
  const { kv, ssm, slots, regions } = engineOf({ shape: hybridShape });
  return { kv, slots, regions, ssm: { ...ssm, layout: { ...ssm!.layout, ...changes } } };
};

/** Twice the layers, the second half in the bytes of the first. */
function overlaid(): object {
  const { kv } = engineOf();
  const layers = kv.layout.layerEnd;
  const layout = { ...kv.layout, numLayersGlobal: 2 * kv.layout.numLayersGlobal, layerEnd: 2 * layers };
  return { kv: { layout, buffers: [kv.buffers[0], kv.buffers[0]], layerStarts: [0, layers] } };
}

describe('an engine whose memory contradicts its layout', () => {
  test.each<[string, object, RegExp]>([
    [
      'no buffers',
      { kv: { ...engineOf().kv, buffers: [], layerStarts: [] } },
      /^engine\.kv\.buffers: expected layers up to/,
    ],
    [
      'a layer twice',
      { kv: { ...engineOf().kv, layerStarts: [1] } },
      /^engine\.kv\.layerStarts: expected a buffer that holds layer 0/,
    ],
    [
      'blocks that overlap',
      buffer({}, { block: 1 }),
      /strideBytes: expected at least \d+, what lies inside it, got 1$/,
    ],
    [
      'an offset below zero',
      buffer({ offsetBytes: -4 }),
      /^engine\.kv\.buffers\[0\]\.offsetBytes: expected an integer of at least 0, got -4/,
    ],
    [
      'an axis of another name',
      buffer({ axes: [{ name: 'colour' as never, size: 1, strideBytes: 1 }] }),
      /^engine\.kv\.buffers\[0\]\.axes/,
    ],
    [
      'a head of another size',
      { kv: { ...engineOf().kv, layout: { ...engineOf().kv.layout, headDim: 77 } } },
      /^engine\.kv\.buffers\[0\]\.axes\.dim\.size: expected 77, got \d+$/,
    ],
    [
      'two buffers at one place',
      overlaid(),
      /^engine\.kv\.buffers\[1\]: expected bytes that engine\.kv\.buffers\[0\] does not have, got 0/,
    ],
    ['heads without an axis', without('head'), /^engine\.kv\.buffers\[0\]\.axes\.head\.size: expected 4, got 1$/],
    [
      'dims without an axis',
      without('dim', engineOf({ shape: { ...smallShape, headDim: 2 } })),
      /^engine\.kv\.buffers\[0\]\.axes\.dim\.size: expected 2, got 1$/,
    ],
    ['tokens without an axis', without('token'), /^engine\.kv\.buffers\[0\]\.axes\.token\.size: expected 4, got 1$/],
    [
      'blocks without an axis',
      without('block'),
      /^engine\.kv\.buffers\[0\]\.axes\.block\.size: expected 32, got undefined$/,
    ],
    [
      'an axis twice',
      buffer({ axes: [...engineOf().kv.buffers[0]!.axes, { name: 'head', size: 1, strideBytes: 4 }] }),
      /^engine\.kv\.buffers\[0\]\.axes: expected each axis once, got "head"$/,
    ],
    [
      'a buffer that is none',
      { kv: { ...engineOf().kv, buffers: [null] } },
      /^engine\.kv\.buffers\[0\]: expected an object, got null/,
    ],
    ['a buffer without axes', buffer({ axes: undefined as never }), /^engine\.kv\.buffers\[0\]\.axes: expected a list/],
    [
      'an axis that is none',
      buffer({ axes: [null as never] }),
      /^engine\.kv\.buffers\[0\]\.axes\[0\]: expected an object, got null/,
    ],
    [
      'an axis without a stride',
      buffer({}, { head: NaN }),
      /^engine\.kv\.buffers\[0\]\.axes\[4\]\.strideBytes: expected an integer/,
    ],
    [
      'planes before the first',
      buffer({ planeStart: -1 }),
      /^engine\.kv\.buffers\[0\]\.planeStart: expected an integer of at least 0/,
    ],
    [
      'planes past the last',
      buffer({ planeStart: 1 }),
      /^engine\.kv\.buffers\[0\]\.planeStart: expected at most 2 planes, K and V, got 3/,
    ],
    [
      'a content that is no name',
      buffer({ content: 5 as never }),
      /^engine\.kv\.buffers\[0\]\.content: expected text, got 5/,
    ],
    [
      'a content without a name',
      buffer({ content: '' }),
      /^engine\.kv\.buffers\[0\]\.content: expected a name of 1 to 256/,
    ],
    [
      'an axis that does not move',
      buffer({}, { layer: 0 }),
      /^engine\.kv\.buffers\[0\]\.axes\.layer\.strideBytes: expected an integer of at least 1/,
    ],
    [
      'elements that nobody describes',
      buffer({ elementBytes: 17 }),
      /^engine\.kv\.buffers\[0\]\.elementBytes: expected at most 16, got 17/,
    ],
    [
      'no layout',
      { kv: { ...engineOf().kv, layout: null } },
      /^engine\.kv\.layout: expected a layout of makeKvLayout, got null/,
    ],
    [
      'a tensor rank past the last',
      layout({ tpRank: 1 }),
      /^engine\.kv\.layout\.tpRank: expected an integer in \[0, 0\], got 1/,
    ],
    ['no tensor ranks', layout({ tpSize: 0 }), /^engine\.kv\.layout\.tpSize: expected an integer of at least 1, got 0/],
    [
      'a stage past the last',
      layout({ ppRank: 1 }),
      /^engine\.kv\.layout\.ppRank: expected an integer in \[0, 0\], got 1/,
    ],
    [
      'no place in the world',
      layout({ globalRank: undefined }),
      /^engine\.kv\.layout\.globalRank: expected an integer/,
    ],
    [
      'heads that ranks do not divide',
      layout({ numKvHeadsGlobal: 3, tpSize: 2 }),
      /^engine\.kv\.layout\.numKvHeadsGlobal: expected a multiple or a divisor of tpSize 2, got 3/,
    ],
    [
      'heads without elements',
      layout({ headDim: 0 }),
      /^engine\.kv\.layout\.headDim: expected an integer of at least 1, got 0/,
    ],
    [
      'layers before the first',
      layout({ layerStart: -1 }),
      /^engine\.kv\.layout\.layerStart: expected an integer in \[0, 2\], got -1/,
    ],
    [
      'layers past the last',
      layout({ layerEnd: 3 }),
      /^engine\.kv\.layout\.layerEnd: expected an integer in \[0, 2\], got 3/,
    ],
    [
      'layers that end before they begin',
      layout({ layerStart: 2, layerEnd: 1 }),
      /^engine\.kv\.layout\.layerEnd: expected an integer in \[2, 2\], got 1/,
    ],
    [
      'SSM groups that ranks do not divide',
      ssmLayout({ tpSize: 4 }),
      /^engine\.ssm\.layout\.dims\.nheads: expected a multiple of tpSize 4, got 2/,
    ],
    [
      'SSM layers before the first',
      ssmLayout({ layerStart: -1 }),
      /^engine\.ssm\.layout\.layerStart: expected an integer/,
    ],
    [
      'SSM state of another rank',
      ssmLayout({ globalRank: 1 }),
      /^engine\.ssm\.layout\.globalRank: expected 0, as in engine\.kv\.layout, got 1/,
    ],
    [
      'SSM state without a layout',
      ssmLayout({ dims: undefined }),
      /^engine\.ssm\.layout\.dims: expected an object, got undefined/,
    ],
    ['no model name', { model: undefined }, /^engine\.model: expected a name of 1 to 256 characters, got undefined/],
    [
      'a word for a choice',
      { growsInBlocks: 'no' },
      /^engine\.growsInBlocks: expected true, false or nothing, got "?no/,
    ],
    ['no kv at all', { kv: undefined }, /^engine\.kv: expected an object, got undefined/],
    ['ssm forgotten', { ssm: undefined }, /^engine\.ssm: expected buffers, or null/],
  ])('%s', async (_name, changes, message) => {
    const handoff = new StateHandoff(altered(changes), { clock: network.clock });
    await expect(handoff.setupKvTransfer('decode', new ScriptedTransport(network))).rejects.toMatchObject({
      code: 'ENGINE_CONTEXT_INVALID',
      message: expect.stringMatching(message),
    });
  });

  test("an engine without decode's methods prefills, and is refused as decode by the first that is missing", async () => {
    const memory = engineOf({ role: 'prefill' });
    const { model, dtype, blockSize, maxRequests, maxSequenceLength, numSpeculativeTokens } = memory;
    const { regions, kv, ssm, blocks, slots, hasSsmSnapshotCache } = memory;
    const sizes = { blockSize, maxRequests, maxSequenceLength, numSpeculativeTokens };
    const context: PrefillContext = { model, dtype, ...sizes, regions, kv, ssm, blocks, slots, hasSsmSnapshotCache };
    const handoff = new StateHandoff(context, { clock: network.clock });
    await expect(handoff.setupKvTransfer('decode', new ScriptedTransport(network))).rejects.toMatchObject({
      code: 'ENGINE_CONTEXT_INVALID',
      message: expect.stringMatching(/^engine\.canAdmitPrefilledDecode: expected a method, got undefined/),
    });
    await handoff.setupKvTransfer('prefill', new ScriptedTransport(network));
    expect(handoff.describeInstance().role).toBe('prefill');
  });

  test.each([null, {}, { blocks: {} }, { blocks: { poolSize: 1 } }])('an engine that is %p', (engine) => {
    expect(() => new StateHandoff(engine as never)).toThrow(
      expect.objectContaining({ code: 'ENGINE_CONTEXT_INVALID' }),
    );
  });

  test.each([{ grup: 1 }, { group: {} }, { carrier: 'pigeon' }])('setup options %p', async (options) => {
    const handoff = new StateHandoff(engineOf(), { clock: network.clock });
    await expect(
      handoff.setupKvTransfer('decode', new ScriptedTransport(network), options as never),
    ).rejects.toMatchObject({
      code: expect.stringMatching(/^(OPTION|ARGUMENT)_INVALID$/),
    });
  });
});

describe('a batch of finished prompts', () => {
  test.each<[string, (finished: Record<string, unknown>) => unknown, string]>([
    ['that is no list', () => ({}), 'ARGUMENT_INVALID'],
    ['with nothing in it', (finished) => [finished, null], 'ARGUMENT_INVALID'],
    [
      'with a plain list of blocks',
      (finished) => [finished, { ...finished, requestId: 9, blocks: [1] }],
      'ARGUMENT_INVALID',
    ],
    ['with one request twice', (finished) => [finished, finished], 'DUPLICATE_REQUEST'],
    ['with half a token', (finished) => [{ ...finished, resumeTokens: [1.5] }], 'RESUME_TOKENS_INVALID'],
    [
      'with a probability that is none',
      (finished) => [{ ...finished, returnLogProbs: true, resumeLogProbs: [Number.NaN] }],
      'RESUME_TOKENS_INVALID',
    ],
    ['with a block twice', (finished) => [{ ...finished, blocks: Int32Array.of(3, 3) }], 'ARGUMENT_INVALID'],
  ])('%s is refused', async (_name, batch, code) => {
    const { prefill } = await createWorld();
    const run = prefill.engine.prefill(1, Int32Array.from(promptOf(8)))!;
    const released: number[][] = [];
    prefill.engine.blocks.release = (ids) => void released.push([...ids]);
    const finished = { ...run, promptTokens: 8, doKvHandoff: true, returnLogProbs: false };
    expect(() => prefill.handoff.prepareHandoffMetadataBatch(batch(finished) as never)).toThrow(
      expect.objectContaining({ code }),
    );
    expect(poolState(prefill.engine.blocks).refs.filter((references) => references > 0)).toHaveLength(2);
  });
});

test('an engine with running requests is not closed, and what it runs ends well', async () => {
  const { network: own, prefill, decode } = await createWorld();
  const outcome = decode.add(1, promptOf(8), prefill.handOver(1, promptOf(8)), { num_tokens_to_generate: 4 });
  own.advance(1);
  decode.poll();
  decode.schedule();
  await expect(decode.handoff.close()).rejects.toMatchObject({ code: 'REQUESTS_OPEN' });
  await decode.step(6);
  expect(outcome).toMatchObject({ settled: 1, error: null });
  await decode.handoff.close();
});

test.each([
  null,
  {},
  { kind: 'add' },
  { kind: 'decision' },
  { kind: 'decision', attemptId: Number.NaN, failed: true, sourceSafe: true },
  { kind: 'abort', attemptId: 1 },
])('a notification that is %p is refused where it is recorded', async (record) => {
  const [group] = InProcessRankGroup.create(1);
  const handoff = new StateHandoff(engineOf(), { clock: network.clock });
  await handoff.setupKvTransfer('decode', new ScriptedTransport(network), { group: group!, carrier: 'host' });
  expect(() => handoff.recordHandoffCompletionNotification(record as never)).toThrow(
    expect.objectContaining({ code: 'ARGUMENT_INVALID', message: expect.stringMatching(/^notification/) }),
  );
  expect(handoff.admitPendingKvImports()).toBe(0);
});
