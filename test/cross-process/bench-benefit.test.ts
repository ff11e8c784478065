/**
 * `bench:benefit` end to end, as small as it goes: real engines in processes of their own, aggregated and split, every
 * request to its last token. No figure is judged, only that each is there, and what is said of them.
 */
import { drawing, lossLines, quickRun, resultTable, run, splitsOf } from '../bench/benefit/bench.js';
import type { Point } from '../bench/benefit/measure.js';
import { Router } from '../bench/benefit/router.js';

const mix = { name: 'small <ones>', promptTokens: 40, outputTokens: 6 };

test('both settings do all requests of every mix at every rate, and each figure is there', async () => {
  const said: string[] = [];
  const options = { ...quickRun, rateShares: [0.5, 1], calibration: 3, requestsMin: 4, mixes: [mix] };
  const points = await run({ ...options, seconds: 0.1 }, (what) => said.push(what));
  expect(points.map(({ split }) => split)).toEqual([
    ...['2 aggregated', '2 aggregated'],
    ...['1 prefill + 1 decode', '1 prefill + 1 decode'],
  ]);
  for (const { ttft, itl, tokensPerSecond, rate, requests } of points) {
    for (const value of [ttft.p50, ttft.p99, itl.p50, itl.p99, tokensPerSecond, rate]) expect(value).toBeGreaterThan(0);
    expect(ttft.p99).toBeGreaterThanOrEqual(ttft.p50);
    expect(requests).toBe(Math.max(4, Math.round(rate * 0.1)));
  }
  const last = points.at(-1)!;
  expect(said.at(-1)).toBe(
    `4 of 4: 1 prefill + 1 decode, small <ones>, ${last.requests} requests at ${last.rate.toFixed(1)} a second`,
  );
  const [aggregated, , split] = points as [Point, Point, Point];
  expect([aggregated.prefill, aggregated.takeOver, aggregated.transferShare]).toEqual([null, null, 0]);
  expect(split.transferShare).toBeGreaterThan(0);
  expect(split.transferShare).toBeLessThan(1);
  expect(split.ttft.p99).toBeGreaterThan(split.prefill!.p50);
  expect(said.join('\n')).toContain('small <ones>: 2 aggregated can do');
  const svg = drawing(points);
  expect(svg.match(/<polyline/g)).toHaveLength(2 * 2 * 2);
  expect(svg).not.toMatch(/NaN|Infinity|<ones>/);
  expect(svg).toContain('small &lt;ones>');
}, 180_000);

test('an engine that cannot go on ends the run with its reason', async () => {
  const wrong = { layers: 2, maxRequests: 4, blocks: 0 };
  await expect(Router.open({ both: 1, prefill: 0, decode: 0 }, wrong)).rejects.toThrow(/the both engine/);
}, 180_000);

const point = (split: string, rate: number, better: number): Point => {
  const quantiles = { p50: 10 * better, p99: 20 * better };
  const isSplit = split.includes('prefill');
  return {
    ...{ split, mix: 'm', rate, requests: 9, ttft: quantiles, itl: { p50: 5, p99: 50 / better } },
    ...{ prefill: isSplit ? quantiles : null, takeOver: isSplit ? quantiles : null },
    ...{ tokensPerSecond: 100 / better, transferShare: 0.25 },
  };
};

test('what splitting loses and wins is said for each rate, against the same rate', () => {
  const points = [point('2 aggregated', 1, 1), point('2 aggregated', 2, 3), point('1 prefill + 1 decode', 1, 2)];
  expect(lossLines([...points, point('1 prefill + 1 decode', 2, 3)])).toEqual([
    '1 prefill + 1 decode, m at 1/s: loses TTFT p50 (2 times), TTFT p99 (2 times), tokens/s (2 times); wins ITL p99 (2 times)',
    '1 prefill + 1 decode, m at 2/s: loses nothing; wins nothing',
  ]);
  const table = resultTable(points);
  expect(table.map((row) => row.length)).toEqual([9, 9, 9, 9]);
  expect(table[2]).toEqual([
    ...['m', '1 prefill + 1 decode', '1/s', '20 / 40', '20 / 40', '20 / 40', '5 / 25', '50', '25 %'],
  ]);
});

test('so many engines are split in every way', () => {
  expect(splitsOf(4).map(({ both, prefill, decode }) => [both, prefill, decode])).toEqual([
    ...[
      [4, 0, 0],
      [0, 1, 3],
      [0, 2, 2],
      [0, 3, 1],
    ],
  ]);
});
