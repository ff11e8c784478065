/** The drawing of `bench:benefit`: for each mix, TTFT and ITL against the rate, a line a split, p50 whole and p99 dashed. */
import type { Point, Quantiles } from './measure.js';

const [width, height, left, top, gap] = [360, 220, 60, 40, 70];
const colours = ['#1f6feb', '#d1242f', '#1a7f37', '#9a6700', '#8250df', '#57606a', '#bf3989', '#0a3069'];

const panels: readonly { readonly title: string; readonly of: (point: Point) => Quantiles }[] = [
  { title: 'time to first token, ms', of: ({ ttft }) => ttft },
  { title: 'between tokens, ms', of: ({ itl }) => itl },
];

const escaped = (text: string): string => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
const digits = (value: number): string => Number(value.toPrecision(3)).toString();

/** A whole SVG document. */
export function drawing(points: readonly Point[]): string {
  const mixNames = [...new Set(points.map(({ mix }) => mix))];
  const splitNames = [...new Set(points.map(({ split }) => split))];
  const total = {
    width: left + panels.length * (width + gap),
    height: top + mixNames.length * (height + gap) + 24 * splitNames.length,
  };
  const parts = mixNames.flatMap((mix, row) =>
    panels.map((panel, column) => {
      const own = points.filter((point) => point.mix === mix);
      const place = `translate(${left + column * (width + gap)} ${top + row * (height + gap)})`;
      return `<g transform="${place}">\n${panelOf(own, splitNames, `${mix}: ${panel.title}`, panel.of)}</g>\n`;
    }),
  );
  const legend = splitNames.map((name, index) => {
    const y = top + mixNames.length * (height + gap) + 24 * index;
    return (
      `<line x1="${left}" y1="${y}" x2="${left + 30}" y2="${y}" stroke="${colourOf(index)}" stroke-width="2"/>` +
      `<text x="${left + 38}" y="${y + 4}">${escaped(name)} (p50; p99 dashed)</text>\n`
    );
  });
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${total.width} ${total.height}" ` +
    `font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#ffffff"/>\n` +
    `${parts.join('')}${legend.join('')}</svg>\n`
  );
}

const colourOf = (index: number): string => colours[index % colours.length]!;

/** One panel; values on a scale of powers of ten, which a queue that grows needs. */
function panelOf(
  points: readonly Point[],
  splitNames: readonly string[],
  title: string,
  of: (point: Point) => Quantiles,
): string {
  const values = points.flatMap((point) => [of(point).p50, of(point).p99]).map((value) => Math.max(value, 0.01));
  const [low, high] = [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)) + 1e-9)];
  const rateMax = Math.max(...points.map(({ rate }) => rate)) * 1.05;
  const x = (rate: number): number => (rate / rateMax) * width;
  const y = (value: number): number => height * (1 - (Math.log10(Math.max(value, 0.01)) - low) / (high - low));
  const grid = Array.from({ length: high - low + 1 }, (_, index) => {
    const at = y(10 ** (low + index)).toFixed(1);
    return (
      `<line x1="0" y1="${at}" x2="${width}" y2="${at}" stroke="#d0d7de"/>` +
      `<text x="-6" y="${at}" text-anchor="end" dominant-baseline="middle">${digits(10 ** (low + index))}</text>\n`
    );
  });
  const ticks = [...new Set(points.map(({ rate }) => rate))].map(
    (rate) => `<text x="${x(rate).toFixed(1)}" y="${height + 18}" text-anchor="middle">${digits(rate)}/s</text>\n`,
  );
  const lines = splitNames.flatMap((name, index) => {
    const own = points.filter(({ split }) => split === name).sort((a, b) => a.rate - b.rate);
    return (['p50', 'p99'] as const).map((which) => {
      const at = own.map((point) => `${x(point.rate).toFixed(1)},${y(of(point)[which]).toFixed(1)}`);
      const dots = at.map((each) => {
        const [cx, cy] = each.split(',');
        return `<circle cx="${cx}" cy="${cy}" r="3" fill="${colourOf(index)}"/>`;
      });
      const dash = which === 'p99' ? ' stroke-dasharray="6 4"' : '';
      return `<polyline points="${at.join(' ')}" fill="none" stroke="${colourOf(index)}" stroke-width="2"${dash}/>${dots.join('')}\n`;
    });
  });
  return `<text x="0" y="-14" font-weight="bold">${escaped(title)}</text>\n${grid.join('')}${ticks.join('')}${lines.join('')}`;
}
