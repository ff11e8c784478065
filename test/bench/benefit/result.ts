/** What came out of `bench:benefit`, in words: one table, and where splitting loses and where it wins. */
import type { Point, Quantiles } from './measure.js';

/** What differs by less is called equal. */
const margin = 0.1;

const digits = (value: number): string => (value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString());
const pair = (quantiles: Quantiles | null): string =>
  quantiles === null ? '' : `${digits(quantiles.p50)} / ${digits(quantiles.p99)}`;

/** Cells, the head first; times in ms. */
export function resultTable(points: readonly Point[]): string[][] {
  const head = [
    ...['requests', 'engines', 'rate', 'TTFT p50 / p99', 'of it prefill', 'take-over', 'ITL p50 / p99'],
    ...['tokens/s', 'in transfer'],
  ];
  const sorted = [...points].sort((a, b) => (a.mix < b.mix ? -1 : a.mix > b.mix ? 1 : a.rate - b.rate));
  return [
    head,
    ...sorted.map(({ mix, split, rate, ttft, prefill, takeOver, itl, tokensPerSecond, transferShare }) => [
      ...[mix, split, `${digits(rate)}/s`, pair(ttft), pair(prefill), pair(takeOver), pair(itl)],
      ...[digits(tokensPerSecond), prefill === null ? '' : `${digits(transferShare * 100)} %`],
    ]),
  ];
}

interface Measure {
  readonly name: string;
  readonly of: (point: Point) => number;
  /** Whether more is better. */
  readonly moreIsBetter?: true;
}

const measures: readonly Measure[] = [
  { name: 'TTFT p50', of: ({ ttft }) => ttft.p50 },
  { name: 'TTFT p99', of: ({ ttft }) => ttft.p99 },
  { name: 'ITL p50', of: ({ itl }) => itl.p50 },
  { name: 'ITL p99', of: ({ itl }) => itl.p99 },
  { name: 'tokens/s', of: ({ tokensPerSecond }) => tokensPerSecond, moreIsBetter: true },
];

/** One line a split, mix and rate: what it loses to the aggregated engines and what it wins, by which factor. */
export function lossLines(points: readonly Point[]): string[] {
  return points
    .filter(({ prefill }) => prefill !== null)
    .map((point) => {
      const base = points.find(
        ({ prefill, mix, rate }) => prefill === null && mix === point.mix && rate === point.rate,
      );
      const said = { loses: [] as string[], wins: [] as string[] };
      for (const { name, of, moreIsBetter } of base === undefined ? [] : measures) {
        const [ours, theirs] = [of(point), of(base!)];
        const worse = moreIsBetter === true ? theirs / ours : ours / theirs;
        if (worse > 1 + margin) said.loses.push(`${name} (${digits(worse)} times)`);
        else if (worse < 1 - margin) said.wins.push(`${name} (${digits(1 / worse)} times)`);
      }
      const text = (words: readonly string[]): string => (words.length === 0 ? 'nothing' : words.join(', '));
      return `${point.split}, ${point.mix} at ${digits(point.rate)}/s: loses ${text(said.loses)}; wins ${text(said.wins)}`;
    });
}
