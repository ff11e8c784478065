/**
 * What a copy program does, found the slow way: every fragment of every row, byte by byte. Knows nothing of nests or
 * normal forms, so that it can judge the checks; for small programs only.
 */
import type { CopyProgram } from '../../lib/transfer/copy-program.js';

export interface Expansion {
  /** A byte outside a region, a region, table or row that does not exist, or a negative id. */
  readonly outOfRange: boolean;
  /** Some target byte is written twice. */
  readonly overlaps: boolean;
  /** By target region: how often each byte is written. */
  readonly writes: readonly Uint32Array[];
}

/** Calls `emit` once for each fragment. */
export function eachFragment(
  program: CopyProgram,
  emit: (sourceRegion: number, source: number, targetRegion: number, target: number, bytes: number) => void,
): void {
  for (const rectangle of program.rectangles) {
    const table = rectangle.table < 0 ? null : program.tables[rectangle.table];
    if (table === undefined) throw new RangeError('table');
    const rowCount = table === null ? 1 : rectangle.tableCount;
    for (let index = 0; index < rowCount; index += 1) {
      let source = rectangle.sourceOffset;
      let target = rectangle.targetOffset;
      if (table !== null) {
        const row = rectangle.tableFrom + index;
        const [from, to] = [table.source[row], table.target[row]];
        const [fromSub, toSub] = [table.sourceSub?.[row] ?? 0, table.targetSub?.[row] ?? 0];
        if (from === undefined || to === undefined) throw new RangeError('row');
        if (from < 0 || to < 0 || fromSub < 0 || toSub < 0) throw new RangeError('id');
        source += from * table.strides.sourceBlock + fromSub * table.strides.sourceSub;
        target += to * table.strides.targetBlock + toSub * table.strides.targetSub;
      }
      const { loops, fragmentBytes, sourceRegion, targetRegion } = rectangle;
      const walk = (depth: number, sourceAt: number, targetAt: number): void => {
        const loop = loops[depth];
        if (loop === undefined) return emit(sourceRegion, sourceAt, targetRegion, targetAt, fragmentBytes);
        for (let turn = 0; turn < loop.count; turn += 1) {
          walk(depth + 1, sourceAt + turn * loop.sourceStride, targetAt + turn * loop.targetStride);
        }
      };
      walk(0, source, target);
    }
  }
}

export function expand(
  program: CopyProgram,
  sourceBytes: readonly number[],
  targetBytes: readonly number[],
): Expansion {
  const writes = targetBytes.map((bytes) => new Uint32Array(bytes));
  let overlaps = false;
  let outOfRange = false;
  try {
    eachFragment(program, (sourceRegion, source, targetRegion, target, bytes) => {
      const sourceSize = sourceBytes[sourceRegion];
      const written = writes[targetRegion];
      if (sourceSize === undefined || written === undefined) throw new RangeError('region');
      if (source + bytes > sourceSize || target + bytes > written.length) throw new RangeError('byte');
      for (let at = target; at < target + bytes; at += 1) {
        written[at] = (written[at] as number) + 1;
        overlaps ||= (written[at] as number) > 1;
      }
    });
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    outOfRange = true;
  }
  return { outOfRange, overlaps, writes };
}
