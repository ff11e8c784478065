/** A copy program with one number of it changed, and whether the change makes any difference to what is copied. */
import type { SeededRandom } from '../../lib/testing/seeded-random.js';
import type { CopyProgram, Loop, Rectangle, Table } from '../../lib/transfer/copy-program.js';
import { eachFragment } from './program-oracle.js';

export interface ChangedProgram {
  readonly program: CopyProgram;
  readonly original: CopyProgram;
  /** In words. */
  readonly what: string;
}

type Numbers<T> = { -readonly [Key in keyof T]: T[Key] };

/** @param regions - a changed region number is none below it */
export function changedProgram(original: CopyProgram, random: SeededRandom, regions: number): ChangedProgram {
  const program = {
    rectangles: original.rectangles.map((rectangle): Numbers<Rectangle> => ({ ...rectangle })),
    tables: original.tables.map((table): Numbers<Table> => ({ ...table })),
  };
  const index = random.int(0, program.rectangles.length - 1);
  const rectangle = program.rectangles[index]!;
  const tableIndex = rectangle.table;
  const table = program.tables[tableIndex]!;
  const step = random.pick([1, -1, 1, rectangle.fragmentBytes, -rectangle.fragmentBytes, 2, 64]);
  let what: string;
  switch (random.int(0, 4)) {
    case 0: {
      const field = random.pick(['sourceOffset', 'targetOffset', 'fragmentBytes', 'tableFrom', 'tableCount'] as const);
      rectangle[field] += step;
      what = `rectangles[${index}].${field} + ${step}`;
      break;
    }
    case 1: {
      const field = random.pick(['sourceRegion', 'targetRegion', 'table'] as const);
      rectangle[field] = regions + program.tables.length;
      what = `rectangles[${index}].${field}`;
      break;
    }
    case 2: {
      const column = random.pick(['source', 'target', 'sourceSub', 'targetSub'] as const);
      const copy = Int32Array.from(table[column] ?? table.source);
      const row = random.int(0, copy.length - 1);
      copy[row]! += random.pick([1, -1, 2]);
      table[column] = copy;
      what = `tables[${tableIndex}].${column}[${row}]`;
      break;
    }
    case 3: {
      const field = random.pick(['sourceBlock', 'targetBlock', 'sourceSub', 'targetSub'] as const);
      table.strides = { ...table.strides, [field]: table.strides[field] + step };
      what = `tables[${tableIndex}].strides.${field} + ${step}`;
      break;
    }
    default: {
      const loops: Numbers<Loop>[] = rectangle.loops.map((loop) => ({ ...loop }));
      if (loops.length === 0) {
        rectangle.fragmentBytes += 1;
        what = `rectangles[${index}].fragmentBytes + 1`;
        break;
      }
      const depth = random.int(0, loops.length - 1);
      const field = random.pick(['count', 'sourceStride', 'targetStride'] as const);
      loops[depth]![field] += field === 'count' ? random.pick([1, -1]) : step;
      rectangle.loops = loops;
      what = `rectangles[${index}].loops[${depth}].${field} + ${step}`;
    }
  }
  return { program, original, what };
}

/** Whether both copy the same source byte to each target byte. */
export function isSameCopy(a: CopyProgram, b: CopyProgram): boolean {
  const [left, right] = [bytesOf(a), bytesOf(b)];
  if (left.size !== right.size) return false;
  for (const [target, source] of left) if (right.get(target) !== source) return false;
  return true;
}

function bytesOf(program: CopyProgram): Map<number, number> {
  const copied = new Map<number, number>();
  eachFragment(program, (sourceRegion, source, targetRegion, target, bytes) => {
    for (let byte = 0; byte < bytes; byte++) {
      copied.set(targetRegion * 2 ** 32 + target + byte, sourceRegion * 2 ** 32 + source + byte);
    }
  });
  return copied;
}
