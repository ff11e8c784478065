/**
 * The model cut over tensor, pipeline and expert ranks computes the bits of the model on one rank. The ranks run in
 * lockstep here and exchange what `Sublayer` says they exchange.
 */
import { Batch } from '../../examples/engine/batch.js';
import { smallModel, type ModelConfig, type ModelKind } from '../../examples/engine/config.js';
import { EngineMemory } from '../../examples/engine/engine-memory.js';
import { absorb, Model } from '../../examples/engine/model.js';
import { rankSlice, singleRank, type RankSlice } from '../../examples/engine/rank-slice.js';
import { PlainRegion } from '../../lib/memory/plain-region.js';
import { ModelBlockPool } from '../../lib/testing/model-block-pool.js';
import { ModelSlotPool } from '../../lib/testing/model-slot-pool.js';
import { promptOf } from '../support/engine-fixture.js';

interface Rank {
  readonly slice: RankSlice;
  readonly model: Model;
  readonly batch: Batch;
}

function rankOf(config: ModelConfig, slice: RankSlice): Rank {
  const memory = new EngineMemory({
    model: config,
    slice,
    blockSize: 4,
    blocks: new ModelBlockPool({ poolSize: 20 }),
    slots: config.ssm === null ? null : new ModelSlotPool({ maxRequests: 3 }),
    allocateRegion: (bytes) => new PlainRegion(bytes),
    hashBlocks: () => new BigInt64Array(0),
  });
  return {
    slice,
    model: new Model(config, slice, memory.kvMemory, memory.ssmMemory),
    batch: new Batch(config, 40, 40),
  };
}

/** Stage by stage; within a stage all ranks together. */
function ranksOf(config: ModelConfig, tpSize: number, ppSize: number, epSize: number): Rank[][] {
  const stages: Rank[][] = [];
  let globalRank = 0;
  for (let ppRank = 0; ppRank < ppSize; ppRank++) {
    const stage: Rank[] = [];
    for (let tpRank = 0; tpRank < tpSize; tpRank++) {
      for (let epRank = 0; epRank < epSize; epRank++, globalRank++) {
        const parallelism = { tpSize, tpRank, ppSize, ppRank, epSize, epRank, globalRank };
        stage.push(rankOf(config, rankSlice(config, parallelism)));
      }
    }
    stages.push(stage);
  }
  return stages;
}

function fill({ batch }: Rank, config: ModelConfig): void {
  batch.clear();
  for (const [index, length] of [9, 14].entries()) {
    batch.add({
      tokens: Int32Array.from(promptOf(length, index + 1)),
      from: 0,
      count: length,
      position: 0,
      blocks: Int32Array.from([7, 3, 11, 2].map((block) => block + 4 * index)),
      slot: config.ssm === null ? -1 : 2 - index,
      logitsFrom: length - 3,
      snapshots: null,
    });
  }
}

/** Every shard of every term from the rank that computed it; the others left zeros there. */
function exchange(stage: readonly Rank[]): void {
  const sum = new Float32Array(stage[0]!.batch.partials.length);
  for (const { batch } of stage) for (let i = 0; i < sum.length; i++) sum[i]! += batch.partials[i]!;
  for (const { batch } of stage) batch.partials.set(sum);
}

/** Logits of the ranks of the last stage, gathered over the vocabulary. */
function runInLockstep(config: ModelConfig, stages: readonly (readonly Rank[])[]): Float32Array {
  let residual: Float64Array | null = null;
  for (const stage of stages) {
    for (const rank of stage) {
      fill(rank, config);
      if (rank.slice.isFirstStage) rank.model.embed(rank.batch);
      else rank.batch.residual.set(residual!);
    }
    for (let index = 0; index < stage[0]!.model.sublayers.length; index++) {
      for (const { model, batch } of stage) {
        batch.partials.fill(0);
        model.sublayers[index]!.computePartials(batch);
      }
      const { layers, parallelism } = stage[0]!.slice;
      const layer = config.layers[layers.from + Math.floor(index / 2)]!;
      // Expert ranks are replicas of each other but for the experts: everything else is there already.
      if (parallelism.epSize === 1 || (index % 2 === 1 && layer.feedForward === 'experts')) exchange(stage);
      for (const { batch } of stage) absorb(batch, config.dModel);
    }
    residual = stage[0]!.batch.residual;
  }
  const last = stages[stages.length - 1]!;
  for (const { model, batch } of last) model.readOutRows(batch);
  const { batch } = last[0]!;
  const logits = new Float32Array(batch.logitRows * config.vocabSize);
  for (const { slice, batch: own } of last) {
    for (let row = 0; row < batch.logitRows; row++) {
      const { from, to } = slice.vocabulary;
      const at = row * config.vocabSize;
      logits.set(own.logits.subarray(at + from, at + to), at + from);
    }
  }
  return logits;
}

/** TP, PP, EP. */
const layouts: readonly [ModelKind, number, number, number][] = [
  ['attention', 2, 1, 1],
  ['attention', 4, 1, 1],
  ['attention', 1, 2, 1],
  ['attention', 2, 2, 1],
  ['hybrid', 2, 1, 1],
  ['hybrid', 1, 3, 1],
  ['hybrid', 2, 2, 1],
  ['moe', 2, 1, 1],
  ['moe', 1, 1, 2],
  ['moe', 1, 2, 4],
];

test.each(layouts)('a %s model over TP %i, PP %i, EP %i computes the bits of one rank', (kind, tp, pp, ep) => {
  const config = smallModel(kind, { layers: [...smallModel(kind).layers, ...smallModel(kind).layers] });
  const alone = rankOf(config, rankSlice(config, singleRank));
  fill(alone, config);
  alone.model.forward(alone.batch);
  const expected = alone.batch.logits.slice(0, alone.batch.logitRows * config.vocabSize);
  expect(expected.some((logit) => logit !== 0)).toBe(true);
  const actual = runInLockstep(config, ranksOf(config, tp, pp, ep));
  expect(Buffer.from(actual.buffer).equals(Buffer.from(expected.buffer))).toBe(true);
});
