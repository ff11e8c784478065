/** The engine's model computes what its description says, and its arithmetic is the canonical one. */
import { Batch } from '../../examples/engine/batch.js';
import { smallModel, type ModelConfig } from '../../examples/engine/config.js';
import { Experts } from '../../examples/engine/experts.js';
import { argmax, combineShards, project, projectShards, shardCount, softplus } from '../../examples/engine/math.js';
import { rankSlice, singleRank } from '../../examples/engine/rank-slice.js';
import { SeededWeights } from '../../examples/engine/weights.js';
import { engineFixture, extraOf, generate, promptOf } from '../support/engine-fixture.js';
import { naiveLogits } from '../support/naive-model.js';

test.each<[string, ModelConfig]>([
  ['attention', smallModel('attention')],
  ['hybrid', smallModel('hybrid')],
  ['moe', smallModel('moe')],
  ['wider', smallModel('attention', { dModel: 64, attention: { heads: 8, kvHeads: 2, headDim: 16, ropeTheta: 500 } })],
  [
    'other state sizes',
    smallModel('hybrid', { seed: 5, ssm: { nheads: 6, headdim: 4, dState: 3, ngroups: 3, dConv: 2 } }),
  ],
  ['one expert a token', smallModel('moe', { seed: 9, experts: { count: 3, perToken: 1, dim: 16 } })],
])('a model (%s) computes what a second writing of it computes', async (_name, model) => {
  const prompt = promptOf(23, 4);
  const result = await generate(engineFixture({ model, prefillChunk: 7 }).engine, prompt, {
    num_tokens_to_generate: 6,
  });
  const expected = naiveLogits(model, [...prompt, ...result.generatedTokens]);
  for (const [index, logits] of extraOf(result).logits!.entries()) {
    const wanted = expected[prompt.length - 1 + index]!;
    const distance = Math.max(...wanted.map((logit, token) => Math.abs(logit - logits![token]!)));
    expect(distance).toBeLessThan(2e-4);
  }
});

describe('a contraction', () => {
  const weights = new SeededWeights(3);
  const columns = 48;
  const rows = 200;
  const all = { from: 0, to: columns };
  const matrix = weights.matrix('m', [{ from: 0, to: rows }], columns, all);
  const x = new Float64Array(weights.vector('x', all, -1, 1));

  test('is eight shards, each rounded once, in one tree', () => {
    const y = new Float32Array(rows + 1);
    project(matrix, rows, columns, x, 0, y, 1);
    const width = columns / shardCount;
    for (let row = 0; row < rows; row++) {
      const s = Array.from({ length: shardCount }, (_, shard) => {
        let sum = 0;
        for (let i = shard * width; i < (shard + 1) * width; i++) sum += matrix[row * columns + i]! * x[i]!;
        return Math.fround(sum);
      });
      const f = Math.fround;
      const left = f(f(s[0]! + s[1]!) + f(s[2]! + s[3]!));
      const right = f(f(s[4]! + s[5]!) + f(s[6]! + s[7]!));
      expect(y[row + 1]).toBe(f(left + right));
    }
  });

  test.each([1, 2, 4, 8])('is the same from %i owners of shards', (owners) => {
    const whole = new Float32Array(rows);
    project(matrix, rows, columns, x, 0, whole, 0);
    const partials = new Float32Array(shardCount * rows);
    const share = columns / owners;
    for (let owner = 0; owner < owners; owner++) {
      const own = { from: owner * share, to: (owner + 1) * share };
      const local = weights.matrix('m', [{ from: 0, to: rows }], columns, own);
      const at = (owner * shardCount * rows) / owners;
      projectShards(local, rows, shardCount / owners, columns / shardCount, x.slice(own.from, own.to), partials, at);
    }
    for (let row = 0; row < rows; row++) expect(combineShards(partials, row, rows)).toBe(whole[row]);
  });
});

test('experts are added in the order of their ids', () => {
  // Each of four expert ranks leaves its own term alone; terms must come in the order of the ranks.
  const config = smallModel('moe', { experts: { count: 4, perToken: 3, dim: 16 } });
  const batches = [0, 1, 2, 3].map((epRank) => {
    const slice = rankSlice(config, { ...singleRank, epSize: 4, epRank, globalRank: epRank });
    const batch = new Batch(config, 30, 1);
    batch.add({
      tokens: Int32Array.from(promptOf(30)),
      from: 0,
      count: 30,
      position: 0,
      blocks: new Int32Array(0),
      slot: -1,
      logitsFrom: 30,
      snapshots: null,
    });
    batch.residual.set(new SeededWeights(8).vector('stream', { from: 0, to: batch.residual.length }, -1, 1));
    new Experts(config, slice, 1, new SeededWeights(config.seed)).computePartials(batch);
    return batch;
  });
  const width = shardCount * config.dModel;
  for (let row = 0; row < 30; row++) {
    const owners = [0, 1, 2].map((term) => {
      const at = (row * 3 + term) * width;
      return batches.findIndex(({ partials }) => partials.subarray(at, at + width).some((partial) => partial !== 0));
    });
    expect(owners).not.toContain(-1);
    expect(owners).toEqual([...owners].sort());
    const gates = batches[0]!.gates.subarray(row * 3, row * 3 + 3);
    expect(gates[0]! + gates[1]! + gates[2]!).toBeCloseTo(1, 12);
  }
});

describe('seeded weights', () => {
  const weights = new SeededWeights(3);

  test('are the same entries in any part of a tensor', () => {
    const whole = weights.matrix('m', [{ from: 0, to: 6 }], 4, { from: 0, to: 4 });
    const part = weights.matrix(
      'm',
      [
        { from: 1, to: 2 },
        { from: 4, to: 6 },
      ],
      4,
      { from: 1, to: 3 },
    );
    expect([...part]).toEqual([1, 4, 5].flatMap((row) => [...whole.subarray(4 * row + 1, 4 * row + 3)]));
    const vector = weights.vector('v', { from: 0, to: 9 }, 0, 1);
    expect(weights.vector('v', { from: 4, to: 7 }, 0, 1)).toEqual(vector.slice(4, 7));
  });

  test('differ by seed, tensor and row', () => {
    const first = (seed: number, name: string, row: number): number =>
      new SeededWeights(seed).matrix(name, [{ from: row, to: row + 1 }], 1, { from: 0, to: 1 })[0]!;
    const values = [first(1, 'a', 0), first(2, 'a', 0), first(1, 'b', 0), first(1, 'ab', 0), first(1, 'a', 1)];
    expect(new Set(values).size).toBe(values.length);
  });

  test('have the variance that was asked for', () => {
    const entries = weights.matrix('m', [{ from: 0, to: 100 }], 64, { from: 0, to: 64 }, 2);
    const mean = entries.reduce((sum, entry) => sum + entry, 0) / entries.length;
    const variance = entries.reduce((sum, entry) => sum + entry * entry, 0) / entries.length;
    expect(Math.abs(mean)).toBeLessThan(0.01);
    expect(variance * 64).toBeCloseTo(4, 0);
  });
});

test('softplus does not overflow', () => {
  expect(softplus(0)).toBeCloseTo(Math.log(2), 12);
  expect(softplus(1000)).toBe(1000);
  expect(softplus(20.5)).toBeCloseTo(20.5, 8);
});

test('the lowest of equal maxima wins', () => {
  expect(argmax(Float32Array.of(9, 1, 5, 5), 1, 3)).toBe(1);
});
