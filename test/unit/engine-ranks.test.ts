/**
 * The model cut over tensor, pipeline and expert ranks computes the bits of the model on one rank. All ranks run in this
 * thread and exchange messages as processes would.
 */
import { Batch } from '../../examples/engine/batch.js';
import { smallModel, type ModelConfig, type ModelKind } from '../../examples/engine/config.js';
import { EngineMemory } from '../../examples/engine/engine-memory.js';
import { InProcessPeers, runTogether } from '../../examples/engine/in-process-peers.js';
import { Model } from '../../examples/engine/model.js';
import { bytesIn, numbersOf, receive, type Peers, type Steps } from '../../examples/engine/peers.js';
import { RankForward } from '../../examples/engine/rank-forward.js';
import { RankPlace, rankShape, type RankShape } from '../../examples/engine/rank-place.js';
import { rankSlice, singleRank, type Parallelism } from '../../examples/engine/rank-slice.js';
import { PlainRegion } from '../../lib/memory/plain-region.js';
import { ModelBlockPool } from '../../lib/testing/model-block-pool.js';
import { ModelSlotPool } from '../../lib/testing/model-slot-pool.js';
import { promptOf } from '../support/engine-fixture.js';

function modelOf(config: ModelConfig, parallelism: Parallelism): Model {
  const slice = rankSlice(config, parallelism);
  const memory = new EngineMemory({
    model: config,
    slice,
    blockSize: 4,
    blocks: new ModelBlockPool({ poolSize: 20 }),
    slots: config.ssm === null ? null : new ModelSlotPool({ maxRequests: 3 }),
    allocateRegion: (bytes) => new PlainRegion(bytes),
    hashBlocks: () => new BigInt64Array(0),
  });
  return new Model(config, slice, memory.kvMemory, memory.ssmMemory);
}

/** Two prompts, different ones for each instance. */
function batchOf(config: ModelConfig, instance: number): Batch {
  const batch = new Batch(config, 40, 40);
  for (const [index, length] of [9 + instance, 14].entries()) {
    batch.add({
      tokens: Int32Array.from(promptOf(length, 1 + index + 10 * instance)),
      from: 0,
      count: length,
      position: 0,
      blocks: Int32Array.from([7, 3, 11, 2].map((block) => block + 4 * index)),
      slot: config.ssm === null ? -1 : 2 - index,
      logitsFrom: length - 3,
      snapshots: null,
    });
  }
  return batch;
}

function bitsOf({ logits, hidden, logitRows }: Batch, { vocabSize, dModel }: ModelConfig): string {
  const parts = [bytesIn(logits.slice(0, logitRows * vocabSize)), bytesIn(hidden.slice(0, logitRows * dModel))];
  return parts.map((bytes) => Buffer.from(bytes).toString('base64')).join(' ');
}

function alone(config: ModelConfig, instance: number): string {
  const batch = batchOf(config, instance);
  modelOf(config, singleRank).forward(batch);
  expect(batch.logits.some((logit) => logit !== 0)).toBe(true);
  return bitsOf(batch, config);
}

function together(config: ModelConfig, shape: RankShape): { readonly instance: number; readonly bits: string }[] {
  const peers = InProcessPeers.create(shape.tp * shape.pp * shape.dp);
  const ranks = peers.map((own) => {
    const place = new RankPlace(shape, own.rank);
    const batch = batchOf(config, place.instance);
    const forward = new RankForward(config, modelOf(config, place.parallelism), place, own);
    return { place, batch, steps: forward.run(batch) };
  });
  runTogether(ranks.map(({ steps }) => steps));
  return ranks.map(({ place, batch }) => ({ instance: place.instance, bits: bitsOf(batch, config) }));
}

const doubled = (kind: ModelKind, changes: Partial<ModelConfig> = {}): ModelConfig =>
  smallModel(kind, { layers: [...smallModel(kind).layers, ...smallModel(kind).layers], ...changes });

const shapes: readonly [ModelKind, string, Partial<RankShape>][] = [
  ['attention', 'TP 2', { tp: 2 }],
  ['attention', 'TP 4 with two KV heads', { tp: 4 }],
  ['attention', 'PP 2', { pp: 2 }],
  ['attention', 'TP 2, PP 2', { tp: 2, pp: 2 }],
  ['attention', 'PP 3 with a stage of nothing', { stages: [3, 0, 1] }],
  ['hybrid', 'TP 2, PP 3 with stages of its own choice', { tp: 2, stages: [0, 5, 3] }],
  ['hybrid', 'TP 2', { tp: 2 }],
  ['hybrid', 'PP 3', { pp: 3 }],
  ['hybrid', 'PP 8, a layer each, so stages without attention and stages without SSM', { pp: 8 }],
  ['hybrid', 'TP 2, PP 2', { tp: 2, pp: 2 }],
  ['moe', 'TP 2', { tp: 2 }],
  ['moe', 'EP 2 over two instances', { dp: 2, ep: 2 }],
  ['moe', 'EP 4 over four instances of two stages', { dp: 4, ep: 4, pp: 2 }],
  ['moe', 'TP 2, EP 2 over two instances', { tp: 2, dp: 2, ep: 2 }],
  ['moe', 'TP 2 with whole experts, EP 2 inside one instance', { tp: 2, ep: 2, expertTp: 1 }],
  ['moe', 'TP 2 with whole experts, EP 4 over two instances', { tp: 2, dp: 2, ep: 4, expertTp: 1 }],
  ['moe', 'experts cut over two instances', { dp: 2, expertTp: 2 }],
  ['moe', 'EP 2 twice over four instances', { dp: 4, ep: 2 }],
];

test.each(shapes)('a %s model over %s computes the bits of one rank on every rank', (kind, _, partial) => {
  const config = doubled(kind);
  const shape = rankShape(partial);
  const expected = Array.from({ length: shape.dp }, (__, instance) => alone(config, instance));
  for (const { instance, bits } of together(config, shape)) expect(bits).toBe(expected[instance]);
});

test('a proposing head guesses the same on a rank that holds half of the vocabulary', () => {
  const config = doubled('attention', { numSpeculativeTokens: 2 });
  const hidden = Float64Array.from({ length: config.dModel }, (_, index) => Math.sin(index));
  const guesses = [singleRank, new RankPlace(rankShape({ tp: 2 }), 1).parallelism].map((parallelism) => {
    const into = new Int32Array(2);
    modelOf(config, parallelism).proposer.propose(hidden, 0, 97, 2, into, 0);
    return Array.from(into);
  });
  expect(guesses[1]).toEqual(guesses[0]);
});

describe('ranks that are not in step', () => {
  const divergence = (run: () => unknown, message: RegExp): void => {
    expect(run).toThrow(expect.objectContaining({ code: 'DIVERGENCE', message: expect.stringMatching(message) }));
  };

  test('a message of another size names its sender', () => {
    const bytes = bytesIn(Float32Array.of(1, 2, 3));
    divergence(() => numbersOf('float32', bytes, 5, 4), /rank 5 sent 12 bytes where 16 were expected/);
    divergence(() => numbersOf('float64', bytes, 5), /rank 5 sent 12 bytes/);
  });

  test('ranks that wait for one another are named', () => {
    const [a, b] = InProcessPeers.create(2) as unknown as [Peers, Peers];
    function* waits(peers: Peers): Steps<void> {
      yield* receive(peers, 1 - peers.rank);
    }
    divergence(() => runTogether([waits(a), waits(b)], 10), /rank 0 and rank 1 wait for what nobody sends/);
  });

  test('an expert that a rank does not hold is not computed by it', () => {
    const config = doubled('moe');
    const peers = InProcessPeers.create(2);
    const shape = rankShape({ dp: 2, ep: 2 });
    const steps = peers.map((own) => {
      const place = new RankPlace(shape, own.rank);
      // Both hold the first half of the experts; the second half is nowhere.
      const model = modelOf(config, { ...place.parallelism, epRank: 0 });
      return new RankForward(config, model, place, own).run(batchOf(config, place.instance));
    });
    divergence(() => runTogether(steps), /expert: expected one that this rank holds, got [23]/);
  });
});

test('numbers at any place of what was received are read', () => {
  // A socket gives Buffers, whose `slice` is no copy.
  const received = Buffer.alloc(13);
  received.set(bytesIn(Float32Array.of(1.5, -2)), 5);
  expect(Array.from(numbersOf('float32', received.subarray(5), 0))).toEqual([1.5, -2]);
});
