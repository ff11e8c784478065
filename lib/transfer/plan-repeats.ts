/**
 * Pairs of buffers that look like a pair before them: an engine with a buffer for each layer has hundreds, all of one shape.
 * The first pair's rectangle is then every other's, but for regions, offsets and the layers it speaks of.
 */
import type { BufferGeometry } from '../memory/axes-geometry.js';
import type { IndexRange } from '../memory/index-range.js';
import type { KvLayout } from '../memory/kv-layout.js';
import type { RectangleLabel } from './program-label.js';
import type { RectangleTemplate } from './rectangle.js';

/** What one buffer holds of the model. */
export interface HeldPart {
  readonly buffer: BufferGeometry;
  /** Of its rank. */
  readonly layout: KvLayout;
  readonly content: string;
  readonly layers: IndexRange;
  readonly planes: IndexRange;
}

interface KnownPair {
  readonly from: HeldPart;
  readonly to: HeldPart;
  readonly template: RectangleTemplate;
}

/** Contents, each perhaps with buffers of two shapes. */
const pairsKept = 8;

/** Of one source rank and one target rank. */
export class RepeatedPairs {
  private readonly known: KnownPair[] = [];

  /** The rectangle between buffers that overlap, if a pair of just these shapes and windows was kept; else null. */
  find(from: HeldPart, to: HeldPart): RectangleTemplate | null {
    for (const pair of this.known)
      if (isLike(pair.from, from) && isLike(pair.to, to) && isShifted(pair, from, to)) return shifted(pair, from, to);
    return null;
  }

  keep(from: HeldPart, to: HeldPart, template: RectangleTemplate): void {
    if (this.known.length < pairsKept) this.known.push({ from, to, template });
  }
}

/** The same shape, and with it the same numbers of layers and planes, wherever they begin. */
function isLike(a: HeldPart, b: HeldPart): boolean {
  if (a.content !== b.content || a.buffer.elementBytes !== b.buffer.elementBytes) return false;
  const [one, two] = [a.buffer.axes, b.buffer.axes];
  if (one.length !== two.length) return false;
  for (let index = 0; index < one.length; index += 1) {
    const [left, right] = [one[index]!, two[index]!];
    if (left.name !== right.name || left.size !== right.size || left.strideBytes !== right.strideBytes) return false;
  }
  return true;
}

/** What both hold begins at the same places of both. */
function isShifted(pair: KnownPair, from: HeldPart, to: HeldPart): boolean {
  return (
    pair.from.layers.from - pair.to.layers.from === from.layers.from - to.layers.from &&
    pair.from.planes.from - pair.to.planes.from === from.planes.from - to.planes.from
  );
}

function shifted({ template, ...known }: KnownPair, from: HeldPart, to: HeldPart): RectangleTemplate {
  const { rectangle, tableStrides } = template;
  const { sourceOffset, targetOffset, fragmentBytes, loops, label } = rectangle;
  const move = from.layers.from - known.from.layers.from;
  return {
    rectangle: {
      sourceRegion: from.buffer.region,
      targetRegion: to.buffer.region,
      sourceOffset: sourceOffset + from.buffer.offsetBytes - known.from.buffer.offsetBytes,
      targetOffset: targetOffset + to.buffer.offsetBytes - known.to.buffer.offsetBytes,
      fragmentBytes,
      loops,
      label: moved(label as RectangleLabel, move),
    },
    tableStrides,
  };
}

function moved(label: RectangleLabel, layers: number): RectangleLabel {
  const { sourceRank, targetRank, state, part, sourceUnits, targetUnits, shape, requests } = label;
  const { from, to } = label.layers;
  const here = { from: from + layers, to: to + layers };
  return { sourceRank, targetRank, state, part, layers: here, sourceUnits, targetUnits, shape, requests };
}
