/**
 * Whether a rank's attention buffers hold all of its layers: each layer in exactly one buffer of each content and plane.
 * What lies in none would never move; what lies in two could not be told apart.
 */
import { axisSize, defaultContent, type BufferGeometry } from './axes-geometry.js';
import type { IndexRange } from './index-range.js';

/** What is wrong, for the error of whoever asked: a buffer starts where none may, or the last one ends elsewhere. */
export interface LayerCoverFault {
  readonly field: 'layerStarts' | 'buffers';
  readonly expected: string;
  readonly got: unknown;
}

/** @param layerStarts - by buffer, the first layer it holds, in the numbering of `owned` */
export function layerCoverFault(
  buffers: readonly BufferGeometry[],
  layerStarts: readonly number[],
  owned: IndexRange,
): LayerCoverFault | null {
  const kinds = new Map<string, IndexRange[]>();
  if (owned.to > owned.from) kinds.set(`${defaultContent} 0`, []);
  for (const [index, buffer] of buffers.entries()) {
    const from = layerStarts[index] as number;
    const { content = defaultContent, planeStart = 0 } = buffer;
    for (let plane = planeStart; plane < planeStart + axisSize(buffer, 'plane'); plane += 1) {
      const kind = `${content} ${plane}`;
      const ranges = kinds.get(kind) ?? [];
      ranges.push({ from, to: from + axisSize(buffer, 'layer') });
      kinds.set(kind, ranges);
    }
  }
  for (const ranges of kinds.values()) {
    let next = owned.from;
    for (const { from, to } of ranges.sort((a, b) => a.from - b.from)) {
      if (from !== next) {
        const expected = `a buffer that holds layer ${next}, and each layer once`;
        return { field: 'layerStarts', expected, got: layerStarts };
      }
      next = to;
    }
    if (next !== owned.to) {
      return { field: 'buffers', expected: `layers up to ${owned.to}, the layout's end`, got: next };
    }
  }
  return null;
}
