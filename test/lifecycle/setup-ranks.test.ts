/** Ranks that are not one instance, or not a whole one, are refused at setup on all of them, with what is wrong by name. */
import { InProcessRankGroup } from '../../lib/control/in-process-rank-group.js';
import type { StateHandoffOptions } from '../../lib/options.js';
import { StateHandoff } from '../../lib/state-handoff.js';
import { ScriptedNetwork } from '../../lib/testing/scripted-network.js';
import { ScriptedTransport } from '../../lib/testing/scripted-transport.js';
import { TestEngine, type TestEngineOptions } from '../../lib/testing/test-engine.js';
import {
  rankPositions,
  smallShape,
  type TestModelShape,
  type TestRankPosition,
} from '../../lib/testing/test-memory.js';
import { hybridShape } from '../support/lifecycle-fixture.js';

const network = new ScriptedNetwork();
const engineOf = (options: Partial<TestEngineOptions> = {}): TestEngine =>
  new TestEngine({ role: 'decode', clock: network.clock, ...options });

describe('ranks that contradict each other', () => {
  const identity: StateHandoffOptions = { instance: 'one', incarnation: '1', clock: network.clock };

  async function setUp(
    second: Partial<TestEngineOptions>,
    options: StateHandoffOptions = {},
    setup: { carrier?: 'host' | 'group'; role?: 'prefill' | 'decode' } = {},
  ): Promise<PromiseSettledResult<void>[]> {
    const groups = InProcessRankGroup.create(2);
    const positions = rankPositions(2, 1);
    const { role = 'decode', carrier = 'group' } = setup;
    const first = new StateHandoff(engineOf({ position: positions[0]! }), identity);
    const other = new StateHandoff(engineOf({ position: positions[1]!, ...second }), { ...identity, ...options });
    return Promise.allSettled([
      first.setupKvTransfer('decode', new ScriptedTransport(network), { group: groups[0]! }),
      other.setupKvTransfer(role, new ScriptedTransport(network), { group: groups[1]!, carrier }),
    ]);
  }

  test('agreeing ranks set up', async () => {
    expect((await setUp({})).map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled']);
  });

  test.each<[string, Parameters<typeof setUp>, string]>([
    ['model', [{ model: 'other' }], 'engine.model'],
    ['pool size', [{ poolSize: 40 }], 'engine.blocks.poolSize'],
    ['batch size', [{ maxRequests: 9 }], 'engine.maxRequests'],
    ['sequence length', [{ maxSequenceLength: 80 }], 'engine.maxSequenceLength'],
    ['proposals', [{ numSpeculativeTokens: 2 }], 'engine.numSpeculativeTokens'],
    ['epoch', [{}, { epoch: 3 }], 'options.epoch'],
    ['limits', [{}, { limits: { maxDeferred: 1 } }], 'options.limits'],
    ['incarnation', [{}, { incarnation: '2' }], 'options.incarnation'],
    ['carrier', [{}, {}, { carrier: 'host' }], 'carrier'],
    ['role', [{}, {}, { role: 'prefill' }], 'role'],
    ['place', [{ position: rankPositions(2, 1)[0]! }], 'engine.kv.layout'],
  ])('in their %s', async (_name, args, field) => {
    for (const result of await setUp(...args)) {
      expect(result).toMatchObject({
        status: 'rejected',
        reason: { code: 'INCOMPATIBLE', message: expect.stringContaining(`${field}:`) },
      });
    }
  });
});

describe('ranks that are not one whole instance, each right by itself', () => {
  const stage = (ppRank: number, changes: Partial<TestRankPosition> = {}): TestRankPosition => ({
    ...rankPositions(1, 2)[ppRank]!,
    ...changes,
  });
  const four: TestModelShape = { ...smallShape, layers: 4 };
  const hybrid: TestModelShape = { ...four, ssm: { ...hybridShape.ssm!, layers: 4 } };
  const otherDims = { ...hybrid, ssm: { ...hybrid.ssm!, dims: { ...hybrid.ssm!.dims, dConv: 3 } } };
  const none = { from: 0, to: 0 };

  test.each<[string, readonly (Partial<TestEngineOptions> & { readonly dtype?: string })[], RegExp]>([
    [
      'stages that overlap',
      [
        { shape: four, position: stage(0, { layers: { from: 0, to: 3 } }) },
        { shape: four, position: stage(1, { layers: { from: 2, to: 4 } }) },
      ],
      /attention state: ranks 0 and 1 both hold layer 2, heads 0-3/,
    ],
    [
      'a layer that no stage has',
      [
        { shape: four, position: stage(0, { layers: { from: 0, to: 1 } }) },
        { shape: four, position: stage(1, { layers: { from: 2, to: 4 } }) },
      ],
      /attention state: no rank holds layer 1, heads 0-3/,
    ],
    [
      'SSM layers that overlap',
      [
        { shape: hybrid, position: stage(0, { ssmLayers: { from: 0, to: 2 } }) },
        { shape: hybrid, position: stage(1, { ssmLayers: { from: 1, to: 4 } }) },
      ],
      /SSM state: ranks 0 and 1 both hold layer 1, heads 0-1/,
    ],
    [
      'SSM layers that no stage has',
      [
        { shape: hybrid, position: stage(0, { ssmLayers: none }) },
        { shape: hybrid, position: stage(1, { ssmLayers: { from: 2, to: 4 } }) },
      ],
      /SSM state: no rank holds layers 0-1, heads 0-1/,
    ],
    [
      'one place in the world for two',
      [
        { shape: four, position: stage(0) },
        { shape: four, position: stage(1, { globalRank: 0 }) },
      ],
      /global_rank: expected a rank not listed before, got 0/,
    ],
    [
      'elements of two sizes',
      [
        { shape: four, position: stage(0), dtype: 'mine' },
        { shape: { ...four, elementBytes: 2 }, position: stage(1), dtype: 'mine' },
      ],
      /element_size: expected 4, as on the other ranks, got 2/,
    ],
    [
      'SSM states of two models',
      [
        { shape: hybrid, position: stage(0) },
        { shape: otherDims, position: stage(1) },
      ],
      /ssm_layout\.dims: expected .*"dConv":2.*, as on the first rank, got .*"dConv":3/,
    ],
    [
      'SSM state on one of them',
      [
        { shape: hybrid, position: stage(0) },
        { shape: four, position: stage(1) },
      ],
      /engine\.slots\.size: rank \d has/,
    ],
  ])('%s', async (_name, engines, message) => {
    const groups = InProcessRankGroup.create(2);
    const results = await Promise.allSettled(
      engines.map(({ dtype, ...options }, index) => {
        const engine = engineOf(options);
        if (dtype !== undefined) Object.defineProperty(engine, 'dtype', { value: dtype });
        const handoff = new StateHandoff(engine, { instance: 'one', incarnation: '1', clock: network.clock });
        return handoff.setupKvTransfer('decode', new ScriptedTransport(network), { group: groups[index]! });
      }),
    );
    for (const result of results) {
      expect(result).toMatchObject({
        status: 'rejected',
        reason: { code: 'INCOMPATIBLE', message: expect.stringMatching(message) },
      });
    }
  });
});
