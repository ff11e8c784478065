/**
 * The plans as one SVG picture: prefill ranks on the left with what they hold, decode ranks on the right with what they
 * get and from whom, and a line for each pair, in the colour of its source.
 */
import type { InstancePlan } from './plan-drawing.js';

const width = 980;
const [boxWidth, leftX, rightX] = [380, 20, 580];
const [lineHeight, gap, titleHeight] = [18, 14, 46];
/** Told apart by colour-blind readers, too (Okabe and Ito). */
const colours = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000', '#999933'];

interface Box {
  readonly x: number;
  readonly y: number;
  readonly lines: readonly { readonly text: string; readonly colour: string }[];
}

const ink = '#222222';
const heightOf = (box: Box): number => box.lines.length * lineHeight + 12;

export function planPicture(plans: readonly InstancePlan[]): string {
  let y = 10;
  const parts: string[] = [];
  for (const plan of plans) {
    const drawn = drawPlan(plan, y);
    parts.push(drawn.svg);
    y = drawn.end;
  }
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${y}" viewBox="0 0 ${width} ${y}" ` +
      'font-family="sans-serif" font-size="13">',
    `<rect width="${width}" height="${y}" fill="#ffffff"/>`,
    ...parts,
    '</svg>',
    '',
  ].join('\n');
}

function drawPlan({ title, sources, targets, links }: InstancePlan, top: number): { svg: string; end: number } {
  const colourOf = (rank: number): string => colours[rank % colours.length]!;
  const first = top + titleHeight;
  const left = stack(leftX, first, sources, (held, rank) => [
    { text: `prefill rank ${rank}`, colour: colourOf(rank) },
    ...held.map((text) => ({ text, colour: ink })),
  ]);
  const right = stack(rightX, first, targets, (_, rank) => [
    { text: `decode rank ${rank}`, colour: ink },
    ...links
      .filter(({ target }) => target === rank)
      .flatMap(({ source, parts }) =>
        parts.map((text) => ({ text: `from ${source}: ${text}`, colour: colourOf(source) })),
      ),
  ]);
  const curves = links.map(({ source, target }) => {
    const [from, to] = [left.boxes[source]!, right.boxes[target]!];
    const line = to.lines.findIndex(({ text }) => text.startsWith(`from ${source}:`));
    const [x1, y1] = [leftX + boxWidth, from.y + heightOf(from) / 2];
    const [x2, y2] = [rightX, to.y + 6 + (line + 0.5) * lineHeight];
    const middle = (x1 + x2) / 2;
    const path = `M ${x1} ${y1} C ${middle} ${y1}, ${middle} ${y2}, ${x2} ${y2}`;
    return `<path d="${path}" fill="none" stroke="${colourOf(source)}" stroke-width="2"/>`;
  });
  const heading = `<text x="${leftX}" y="${top + 26}" font-size="16" fill="${ink}">${escaped(title)}</text>`;
  const svg = [heading, ...curves, ...[...left.boxes, ...right.boxes].map(drawBox)].join('\n');
  return { svg, end: Math.max(left.end, right.end) + gap };
}

function stack<Rank>(
  x: number,
  top: number,
  ranks: readonly Rank[],
  linesOf: (rank: Rank, index: number) => Box['lines'],
): { boxes: Box[]; end: number } {
  let y = top;
  const boxes = ranks.map((rank, index) => {
    const box = { x, y, lines: linesOf(rank, index) };
    y += heightOf(box) + gap;
    return box;
  });
  return { boxes, end: y };
}

function drawBox(box: Box): string {
  const { x, y, lines } = box;
  const frame = `<rect x="${x}" y="${y}" width="${boxWidth}" height="${heightOf(box)}" rx="6" fill="#f6f6f6" stroke="#bbbbbb"/>`;
  const texts = lines.map(
    ({ text, colour }, index) =>
      `<text x="${x + 10}" y="${y + 18 + index * lineHeight}" fill="${colour}">${escaped(text)}</text>`,
  );
  return [frame, ...texts].join('\n');
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
