/**
 * What a rectangle means: whose layers and heads it moves, to whom. Words for people and the order of descriptor lists
 * follow from it; checks and copies never look at it.
 */
import { rangeSize, type IndexRange } from '../memory/index-range.js';
import type { Loop } from './copy-program.js';

/** Meaning of one rectangle. */
export interface RectangleLabel {
  readonly sourceRank: number;
  readonly targetRank: number;
  readonly state: 'attention' | 'conv' | 'recurrent';
  /** Attention: the buffers' content, `kv` where nothing else was said. SSM: the band. */
  readonly part: string;
  /** In the numbering of the whole model. */
  readonly layers: IndexRange;
  /** Heads, or channels of the conv state: in the source's buffer and in the target's. */
  readonly sourceUnits: IndexRange;
  readonly targetUnits: IndexRange;
  /**
   * What one row of the table moves, as the tensor of the reference: `[planes, layers, tokens, heads, dim]`, or
   * `[channels or heads, dim]` of each layer.
   */
  readonly shape: readonly number[];
  /** Each turn of this loop is a request of its own in the reference's order (spec 7.3); null: all in one. */
  readonly requests: Loop | null;
}

/** `layers 0-15, heads 0-3 of rank 2 go to heads 4-7 of rank 0` */
export function labelInWords({ layers, sourceUnits, targetUnits, ...label }: RectangleLabel): string {
  const noun = label.state === 'conv' ? `${label.part} channel` : 'head';
  const kind = label.state === 'attention' ? '' : 'SSM ';
  const content = label.state === 'attention' && label.part !== 'kv' ? `${label.part} of ` : '';
  return (
    `${content}${kind}${indexes('layer', layers)}, ${indexes(noun, sourceUnits)} of rank ${label.sourceRank} ` +
    `go to ${indexes(noun, targetUnits)} of rank ${label.targetRank}`
  );
}

function indexes(noun: string, range: IndexRange): string {
  return rangeSize(range) === 1 ? `${noun} ${range.from}` : `${noun}s ${range.from}-${range.to - 1}`;
}
