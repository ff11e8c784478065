/** Drawing tokens: greedy, filtered, seeded; and their log-probabilities. */
import { Sampler } from '../../examples/engine/sampler.js';
import { compileSampling } from '../../examples/engine/sampling.js';
import { uniformAt } from '../../examples/engine/weights.js';
import type { SamplingParams } from '../../lib/engine-context.js';

const probabilities = [0.05, 0.4, 0.15, 0.4 - 1e-4, 1e-4];
const padding = 3;
const logits = Float32Array.from([
  ...new Array<number>(padding).fill(50),
  ...probabilities.map((p) => Math.log(p) + 7),
]);
const sampler = new Sampler(probabilities.length);

function shares(params: SamplingParams, draws = 20_000): number[] {
  const sampling = compileSampling(params, 1);
  const counts = new Array<number>(probabilities.length).fill(0);
  for (let position = 0; position < draws; position++) {
    const token = sampler.sample(logits, padding, sampling, position);
    counts[token] = counts[token]! + 1;
  }
  return counts.map((count) => count / draws);
}

function expectClose(actual: number[], expected: number[]): void {
  for (const [index, share] of expected.entries()) expect(Math.abs(actual[index]! - share)).toBeLessThan(0.015);
}

test.each([{ top_k: 1 }, { temperature: 0 }])('%j is greedy', (params) => {
  expect(shares(params, 50)).toEqual([0, 1, 0, 0, 0]);
});

test('among equals the lowest token is greedy', () => {
  const even = new Sampler(4);
  expect(even.sample(Float32Array.of(1, 2, 2, 2), 0, compileSampling({ top_k: 1 }, 1), 0)).toBe(1);
});

test('without filters tokens come by their probability', () => {
  expectClose(shares({}), probabilities);
});

test('temperature sharpens and flattens', () => {
  const powers = probabilities.map((p) => p ** 2);
  const total = powers.reduce((a, b) => a + b);
  expectClose(
    shares({ temperature: 0.5 }),
    powers.map((p) => p / total),
  );
});

test('top_k keeps the likeliest', () => {
  expectClose(shares({ top_k: 2 }), [0, 0.5, 0, 0.5, 0]);
  expectClose(shares({ top_k: 99 }), probabilities);
});

test('top_p keeps the smallest set that reaches the share', () => {
  expectClose(shares({ top_p: 0.5 }), [0, 0.5, 0, 0.5, 0]);
  expectClose(shares({ top_p: 0.9 }), [0, 0.4 / 0.95, 0.15 / 0.95, 0.4 / 0.95, 0]);
  expectClose(shares({ top_p: 0.01 }), [0, 1, 0, 0, 0]);
  expectClose(shares({ top_p: 1 }), probabilities);
  // Of the two likeliest, the share counts within top_k.
  expectClose(shares({ top_k: 2, top_p: 0.4 }), [0, 1, 0, 0, 0]);
});

test('a draw depends on seed and position alone', () => {
  const draw = (seed: number): number[] =>
    Array.from({ length: 50 }, (_, position) =>
      sampler.sample(logits, padding, compileSampling({ seed }, 1), position),
    );
  expect(draw(1)).toEqual(draw(1));
  expect(draw(1)).not.toEqual(draw(2));
  expect(sampler.sample(logits, padding, compileSampling({}, 1), 9)).toBe(
    sampler.sample(logits, padding, compileSampling({ seed: 0 }, 1), 9),
  );
});

test('uniform numbers fill [0, 1) evenly', () => {
  const buckets = new Array<number>(10).fill(0);
  for (let i = 0; i < 20_000; i++) buckets[Math.floor(uniformAt(77, i) * 10)]! += 1;
  for (const count of buckets) expect(Math.abs(count - 2000)).toBeLessThan(200);
});

test('log-probabilities are those of the model, whatever the filters', () => {
  for (const [token, p] of probabilities.entries()) {
    expect(sampler.logProb(logits, padding, token)).toBeCloseTo(Math.log(p), 5);
    expect(sampler.logProb(logits, padding, token)).toBe(Math.fround(sampler.logProb(logits, padding, token)));
  }
});
