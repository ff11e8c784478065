/** Programs of blocks in random order on both sides, the same in every run. */
import type { CopyProgram, Loop } from '../../../lib/transfer/copy-program.js';

function shuffled(count: number, seed: number): Int32Array {
  const ids = Int32Array.from({ length: count }, (_, index) => index);
  let state = seed;
  for (let at = count - 1; at > 0; at -= 1) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const other = state % (at + 1);
    [ids[at], ids[other]] = [ids[other]!, ids[at]!];
  }
  return ids;
}

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
        ...{ source: shuffled(count, 1), target: shuffled(count, 2) },
        strides: { sourceBlock: stride.source, targetBlock: stride.target, sourceSub: 0, targetSub: 0 },
      },
    ],
  };
}
