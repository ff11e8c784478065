/** Programs of blocks in random order on both sides, the same in every run. */
import type { CopyProgram, Loop } from '../../../lib/transfer/copy-program.js';
import { scattered } from '../../support/scattered.js';

/** `count` blocks in random order on both sides. */
export function scatteredBlocks(
  count: number,
  stride: { readonly source: number; readonly target: number },
  fragmentBytes: number,
  loops: readonly Loop[] = [],
): CopyProgram {
  return {
    rectangles: [
      {
        ...{ sourceRegion: 0, targetRegion: 0, table: 0, tableFrom: 0, tableCount: count },
        ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes, loops },
      },
    ],
    tables: [
      {
        ...{ source: scattered(count, count, 1), target: scattered(count, count, 2) },
        strides: { sourceBlock: stride.source, targetBlock: stride.target, sourceSub: 0, targetSub: 0 },
      },
    ],
  };
}
