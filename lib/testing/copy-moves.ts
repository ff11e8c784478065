/**
 * Expands copy programs into plain byte moves, for transports that run in JavaScript.
 *
 * It takes nothing on trust: a range that leaves its region is refused before a byte is copied. Order is part of the
 * result (rectangles, then table rows, then loops from the outside in), since both ends of a push walk it alike.
 */
import { HandoffError } from '../errors.js';
import type { CopyProgram, Rectangle } from '../transfer/copy-program.js';

/** Byte ranges in order, five numbers each: source region and offset, target region and offset, length. */
export type Moves = readonly number[];

/** Numbers a move takes in {@link Moves}. */
export const moveStride = 5;

/**
 * The moves of `programs`, neighbours merged.
 *
 * @param sourceBytes - byte length of each source region, or null when the far side checks them
 * @param targetBytes - byte length of each target region, or null when the far side checks them
 * @throws `PROGRAM_OUT_OF_RANGE` when a move leaves its region
 */
export function expandMoves(
  programs: readonly CopyProgram[],
  sourceBytes: readonly number[] | null,
  targetBytes: readonly number[] | null,
): Moves {
  const moves: number[] = [];
  for (const program of programs) {
    for (const rectangle of program.rectangles) {
      const { sourceRegion, targetRegion } = rectangle;
      expandRectangle(program, rectangle, (source, target) => {
        const bytes = rectangle.fragmentBytes;
        requireRange('source', sourceBytes, sourceRegion, source, bytes);
        requireRange('target', targetBytes, targetRegion, target, bytes);
        append(moves, sourceRegion, source, targetRegion, target, bytes);
      });
    }
  }
  return moves;
}

/** Sum of the lengths. */
export function movedBytes(moves: Moves): number {
  let bytes = 0;
  for (let at = 4; at < moves.length; at += moveStride) bytes += moves[at]!;
  return bytes;
}

/**
 * Where the `sent` moves read from joined with where the `received` moves write to, byte by byte in order. Null when
 * the two streams differ in length.
 */
export function joinMoves(sent: Moves, received: Moves): Moves | null {
  if (movedBytes(sent) !== movedBytes(received)) return null;
  const joined: number[] = [];
  let sentUsed = 0;
  let receivedUsed = 0;
  for (let from = 0, to = 0; from < sent.length && to < received.length;) {
    const bytes = Math.min(sent[from + 4]! - sentUsed, received[to + 4]! - receivedUsed);
    append(joined, sent[from]!, sent[from + 1]! + sentUsed, received[to + 2]!, received[to + 3]! + receivedUsed, bytes);
    sentUsed += bytes;
    receivedUsed += bytes;
    if (sentUsed === sent[from + 4]) {
      from += moveStride;
      sentUsed = 0;
    }
    if (receivedUsed === received[to + 4]) {
      to += moveStride;
      receivedUsed = 0;
    }
  }
  return joined;
}

function expandRectangle(
  program: CopyProgram,
  rectangle: Rectangle,
  emit: (source: number, target: number) => void,
): void {
  const { loops, sourceOffset, targetOffset } = rectangle;
  const walk = (depth: number, source: number, target: number): void => {
    const loop = loops[depth];
    if (loop === undefined) return emit(source, target);
    for (let i = 0; i < loop.count; i++)
      walk(depth + 1, source + i * loop.sourceStride, target + i * loop.targetStride);
  };
  if (rectangle.table < 0) return walk(0, sourceOffset, targetOffset);
  const table = program.tables[rectangle.table];
  const end = rectangle.tableFrom + rectangle.tableCount;
  if (table === undefined || end > table.source.length || end > table.target.length) {
    throw new HandoffError(
      'PROGRAM_OUT_OF_RANGE',
      `rectangle.table: expected ${end} rows in table ${rectangle.table}, got fewer`,
    );
  }
  const { sourceBlock, targetBlock, sourceSub, targetSub } = table.strides;
  for (let row = rectangle.tableFrom; row < end; row++) {
    walk(
      0,
      sourceOffset + table.source[row]! * sourceBlock + (table.sourceSub?.[row] ?? 0) * sourceSub,
      targetOffset + table.target[row]! * targetBlock + (table.targetSub?.[row] ?? 0) * targetSub,
    );
  }
}

function requireRange(
  side: string,
  regions: readonly number[] | null,
  region: number,
  offset: number,
  bytes: number,
): void {
  if (regions === null) return;
  const size = regions[region];
  if (size !== undefined && offset >= 0 && offset + bytes <= size) return;
  throw new HandoffError(
    'PROGRAM_OUT_OF_RANGE',
    `${side} range: expected bytes within region ${region} of ${size ?? 'no'} bytes, got [${offset}, ${offset + bytes})`,
    { details: { side, region, offset, bytes } },
  );
}

function append(
  moves: number[],
  sourceRegion: number,
  source: number,
  targetRegion: number,
  target: number,
  bytes: number,
): void {
  const last = moves.length - moveStride;
  if (
    last >= 0 &&
    moves[last] === sourceRegion &&
    moves[last + 2] === targetRegion &&
    moves[last + 1]! + moves[last + 4]! === source &&
    moves[last + 3]! + moves[last + 4]! === target
  ) {
    moves[last + 4]! += bytes;
    return;
  }
  moves.push(sourceRegion, source, targetRegion, target, bytes);
}
