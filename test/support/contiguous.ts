/** A program of one run of bytes, from the beginning of a region to that of another: what slices are measured against. */
import type { CopyProgram } from '../../lib/transfer/copy-program.js';

export function contiguous(bytes: number): CopyProgram {
  return {
    rectangles: [
      {
        ...{ sourceRegion: 0, targetRegion: 0, table: -1, tableFrom: 0, tableCount: 0 },
        ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: bytes, loops: [] },
      },
    ],
    tables: [],
  };
}
