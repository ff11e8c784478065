/**
 * Promises of the copy program as a value: each fault is refused by its own code and words, the normal form is what the
 * documentation says, a check costs nothing that grows with the number of fragments, and a program can be read aloud.
 */
import { checkProgram, type CheckOptions } from '../../lib/transfer/check-program.js';
import {
  describe as inWords,
  fragmentCount,
  programBytes,
  type CopyProgram,
  type Loop,
  type Rectangle,
  type Table,
} from '../../lib/transfer/copy-program.js';

const loop = (count: number, targetStride: number, sourceStride = targetStride): Loop => ({
  count,
  sourceStride,
  targetStride,
});

function rectangle(fields: Partial<Rectangle> = {}): Rectangle {
  return {
    ...{ sourceRegion: 0, targetRegion: 0, table: -1, tableFrom: 0, tableCount: 0 },
    ...{ sourceOffset: 0, targetOffset: 0, fragmentBytes: 10, loops: [], ...fields },
  };
}

function table(target: number[], targetBlock: number, fields: Partial<Table> = {}): Table {
  return {
    source: Int32Array.from(target, (_, row) => row),
    target: Int32Array.from(target),
    strides: { sourceBlock: 1, targetBlock, sourceSub: 0, targetSub: 0 },
    ...fields,
  };
}

const rows = (count: number, fields: Partial<Rectangle> = {}): Rectangle =>
  rectangle({ table: 0, tableCount: count, ...fields });

const program = (rectangles: Rectangle[], tables: Table[] = []): CopyProgram => ({ rectangles, tables });

const check = (of: CopyProgram, bytes = 1000, options: CheckOptions = {}): void =>
  checkProgram(of, [bytes], [bytes], options);

function refused(code: string, message: string): Error {
  return expect.objectContaining({ code, message, name: 'HandoffError' }) as Error;
}

describe('what is no program', () => {
  test.each<[string, Partial<Rectangle>, string]>([
    ['sourceRegion', { sourceRegion: -1 }, 'rectangles[0].sourceRegion: expected an integer of at least 0, got -1'],
    ['targetRegion', { targetRegion: 0.5 }, 'rectangles[0].targetRegion: expected an integer of at least 0, got 0.5'],
    ['table', { table: -2 }, 'rectangles[0].table: expected an integer of at least -1, got -2'],
    ['tableFrom', { table: 0, tableFrom: -1 }, 'rectangles[0].tableFrom: expected an integer of at least 0, got -1'],
    ['tableCount', { table: 0 }, 'rectangles[0].tableCount: expected an integer of at least 1, got 0'],
    ['sourceOffset', { sourceOffset: NaN }, 'rectangles[0].sourceOffset: expected an integer of at least 0, got NaN'],
    [
      'targetOffset',
      { targetOffset: 2 ** 53 },
      'rectangles[0].targetOffset: expected an integer of at least 0, got 9007199254740992',
    ],
    ['fragmentBytes', { fragmentBytes: 0 }, 'rectangles[0].fragmentBytes: expected an integer of at least 1, got 0'],
    ['count', { loops: [loop(0, 10)] }, 'rectangles[0].loops[0].count: expected an integer of at least 1, got 0'],
    [
      'sourceStride',
      { loops: [loop(2, 10, -1)] },
      'rectangles[0].loops[0].sourceStride: expected an integer of at least 0, got -1',
    ],
    [
      'targetStride',
      { loops: [loop(2, Infinity, 1)] },
      'rectangles[0].loops[0].targetStride: expected an integer of at least 0, got Infinity',
    ],
    [
      'loops',
      { loops: new Array<Loop>(6).fill(loop(1, 1)) },
      'rectangles[0].loops: expected at most 5 loops, got an array of 6',
    ],
  ])('%s', (_, fields, message) => {
    expect(() => check(program([rectangle(fields)], [table([0], 1)]))).toThrow(refused('ARGUMENT_INVALID', message));
  });

  test('columns of another kind or length', () => {
    const bad = (fields: object): CopyProgram => program([], [{ ...table([0, 1], 10), ...fields }]);
    const expected = 'expected an Int32Array as long as the source column';
    expect(() => check(bad({ target: Int32Array.of(1) }))).toThrow(
      refused('ARGUMENT_INVALID', `tables[0].target: ${expected}, got a Int32Array`),
    );
    expect(() => check(bad({ targetSub: [0, 1] }))).toThrow(
      refused('ARGUMENT_INVALID', `tables[0].targetSub: ${expected}, got an array of 2`),
    );
    expect(() => check(bad({ source: new Uint32Array(2) }))).toThrow(
      refused('ARGUMENT_INVALID', `tables[0].source: ${expected}, got a Uint32Array`),
    );
    expect(() => check(bad({ strides: { ...table([], 0).strides, targetBlock: -5 } }))).toThrow(
      refused('ARGUMENT_INVALID', 'tables[0].strides.targetBlock: expected an integer of at least 0, got -5'),
    );
  });

  test('sizes and wanted ranges that are none', () => {
    expect(() => checkProgram(program([]), [2 ** 52 + 1], [])).toThrow(
      refused('ARGUMENT_INVALID', 'sourceBytes[0]: expected a size of at most 2^52 bytes, got 4503599627370497'),
    );
    expect(() => checkProgram(program([]), [], [-1])).toThrow(
      refused('ARGUMENT_INVALID', 'targetBytes[0]: expected a size of at most 2^52 bytes, got -1'),
    );
    for (const wanted of [
      { region: 1, offset: 0, bytes: 1 },
      { region: 0, offset: 999, bytes: 2 },
      { region: 0, offset: -1, bytes: 1 },
      { region: 0, offset: 0, bytes: 0.5 },
    ]) {
      expect(() => check(program([]), 1000, { wanted: [wanted] })).toThrow(
        expect.objectContaining({ code: 'ARGUMENT_INVALID', message: expect.stringMatching(/^wanted\[0\]: expected/) }),
      );
    }
  });
});

describe('what leaves its region', () => {
  test.each<[string, CopyProgram, string]>([
    [
      'a source region',
      program([rectangle({ sourceRegion: 1 })]),
      'rectangles[0].sourceRegion: expected an index below 1, got 1',
    ],
    [
      'a target byte',
      program([rectangle({ targetOffset: 991 })]),
      "rectangles[0].targetRegion: expected bytes inside the region's 1000, got an end at 1001",
    ],
    [
      'a source loop',
      program([rectangle({ loops: [loop(5, 10, 250)] })]),
      "rectangles[0].sourceRegion: expected bytes inside the region's 1000, got an end at 1010",
    ],
    [
      'a table',
      program([rows(1, { table: 1 })], [table([0], 1)]),
      'rectangles[0].table: expected an index below 1, got 1',
    ],
    [
      'rows',
      program([rows(2, { tableFrom: 1 })], [table([0, 1], 10)]),
      "rectangles[0].tableFrom: expected rows inside the table's 2, got 2 from row 1",
    ],
    [
      'a negative id',
      program([rows(2)], [table([0, -1], 10)]),
      'tables[0]: expected ids of at least 0, got a negative one in row 1',
    ],
    [
      'a block',
      program([rows(2)], [table([0, 100], 10)]),
      "rectangles[0].targetRegion: expected bytes inside the region's 1000, got an end at 1010",
    ],
  ])('%s', (_, of, message) => {
    expect(() => check(of)).toThrow(refused('PROGRAM_OUT_OF_RANGE', message));
  });

  test('is told by the row that reaches furthest, not by the largest id and the largest sub of different rows', () => {
    const strides = { sourceBlock: 0, targetBlock: 100, sourceSub: 0, targetSub: 10 };
    const subs = table([0, 9], 0, { targetSub: Int32Array.of(9, 0), strides });
    check(program([rows(2)], [subs]), 910);
    expect(() => check(program([rows(2)], [subs]), 909)).toThrow(
      expect.objectContaining({ code: 'PROGRAM_OUT_OF_RANGE' }),
    );
    const last = table([9, 9], 0, { targetSub: Int32Array.of(0, 9), strides });
    check(program([rows(2)], [last]), 1000);
    expect(() => check(program([rows(2)], [last]), 999)).toThrow(
      expect.objectContaining({ code: 'PROGRAM_OUT_OF_RANGE' }),
    );
  });

  test('is found for products that no double holds', () => {
    for (const loops of [[loop(2 ** 52, 2 ** 52)], [loop(2 ** 30, 2 ** 30), loop(2 ** 30, 1)]]) {
      expect(() => check(program([rectangle({ loops })]), 2 ** 52)).toThrow(
        expect.objectContaining({ code: 'PROGRAM_OUT_OF_RANGE' }),
      );
    }
  });
});

describe('the normal form', () => {
  test('has its loops from the largest target stride to the smallest', () => {
    expect(() => check(program([rectangle({ loops: [loop(2, 10), loop(2, 20)] })]))).toThrow(
      refused(
        'PROGRAM_NOT_NORMAL',
        'rectangles[0].loops[1]: expected target strides from the largest to the smallest, got 20 after 10',
      ),
    );
    check(program([rectangle({ loops: [loop(2, 20), loop(2, 10)] })]));
  });

  test('has room for what lies inside each stride, exactly', () => {
    check(program([rectangle({ loops: [loop(3, 30), loop(3, 10)] })]));
    expect(() => check(program([rectangle({ loops: [loop(3, 29), loop(3, 10)] })]))).toThrow(
      refused(
        'PROGRAM_NOT_NORMAL',
        'rectangles[0]: expected every target stride to be at least the extent of what lies inside it, ' +
          'got a stride of 29 around 30 bytes',
      ),
    );
    expect(() => check(program([rectangle({ loops: [loop(2, 9)] })]))).toThrow(
      expect.objectContaining({ code: 'PROGRAM_NOT_NORMAL' }),
    );
  });

  test('sorts the block column in among the loops', () => {
    // Layers around blocks around tokens.
    const loops = [loop(2, 100), loop(2, 10)];
    check(program([rows(4, { loops })], [table([0, 4, 2, 3], 20)]));
    expect(() => check(program([rows(4, { loops })], [table([0, 5, 2, 3], 20)]))).toThrow(
      expect.objectContaining({ code: 'PROGRAM_NOT_NORMAL' }),
    );
    expect(() => check(program([rows(4, { loops })], [table([0, 1, 2, 3], 19)]))).toThrow(
      expect.objectContaining({ code: 'PROGRAM_NOT_NORMAL' }),
    );
  });

  test('does not mind loops of one turn, columns of one value, or any source strides', () => {
    check(program([rectangle({ loops: [loop(1, 3), loop(2, 50, 0), loop(1, 900), loop(2, 10, 400), loop(1, 0)] })]));
    check(program([rows(1)], [table([7], 0)]));
    check(program([rows(3)], [{ ...table([0, 1, 2], 10), source: Int32Array.of(5, 5, 5) }]));
  });
});

describe('what would be written twice', () => {
  test('by two rows of a table', () => {
    expect(() => check(program([rows(3)], [table([4, 2, 4], 10)]))).toThrow(
      refused(
        'PROGRAM_OVERLAP',
        'tables[0]: expected each target once in the rows of rectangles[0], got block 4 twice',
      ),
    );
    // The same rows in different rectangles are compared by what these write.
    check(
      program(
        [rows(2, { fragmentBytes: 4 }), rows(1, { tableFrom: 2, fragmentBytes: 4, targetOffset: 5 })],
        [table([4, 2, 4], 10)],
      ),
    );
  });

  test.each<[string, number[], number[], string | null]>([
    ['close to each other', [31, 32, 63, 0, 32], [], '32'],
    ['far from each other', [5, 90_000, 7, 90_000], [], '90000'],
    ['but for their unit', [0, 31, 0, 31, 15], [0, 0, 1, 1, 0], null],
    ['and their unit', [0, 31, 0, 31, 0], [0, 0, 1, 1, 1], '0'],
    ['and their unit, far from each other', [70_000, 9, 70_000], [2, 2, 2], '70000'],
    ['but for their unit, far from each other', [70_000, 9, 70_000], [2, 2, 1], null],
  ])('by rows whose blocks are the same, %s', (_, blocks, subs, twice) => {
    const each = table(blocks, 30);
    const columns = subs.length === 0 ? {} : { targetSub: Int32Array.from(subs) };
    const tables = [{ ...each, ...columns, strides: { ...each.strides, targetSub: 10 } }];
    const checked = (): void => check(program([rows(blocks.length)], tables), 30 * 90_001);
    if (twice === null) return checked();
    expect(checked).toThrow(
      refused(
        'PROGRAM_OVERLAP',
        `tables[0]: expected each target once in the rows of rectangles[0], got block ${twice} twice`,
      ),
    );
  });

  test('by the rows of one rectangle, whatever rows the one before it uses', () => {
    const before = rows(2, { fragmentBytes: 2 });
    const after = rows(3, { fragmentBytes: 2, targetOffset: 4 });
    const blocks = [table([4, 2, 4], 10)];
    const message = 'tables[0]: expected each target once in the rows of rectangles[1], got block 4 twice';
    expect(() => check(program([before, after, before], blocks))).toThrow(refused('PROGRAM_OVERLAP', message));
    check(program([before, { ...after, tableFrom: 1, tableCount: 2 }, { ...before, targetOffset: 8 }], blocks));
    expect(() =>
      check(program([before, { ...before, tableFrom: 1, targetOffset: 10 }], [table([1, 2, 4], 10)]), 51),
    ).toThrow(refused('PROGRAM_OUT_OF_RANGE', expect.stringContaining('rectangles[1].targetRegion') as string));
    const second = { ...before, table: 1 };
    expect(() => check(program([before, second], [table([1, 2], 10), table([7, 7], 10)]))).toThrow(
      refused(
        'PROGRAM_OVERLAP',
        'tables[1]: expected each target once in the rows of rectangles[1], got block 7 twice',
      ),
    );
  });

  test('by two rectangles, named in order', () => {
    const [a, b] = [rectangle({ targetOffset: 100 }), rectangle({ targetOffset: 109 })];
    const message = 'rectangles[1] writes target bytes that rectangles[0] writes too; every byte may be written once';
    expect(() => check(program([a, b]))).toThrow(refused('PROGRAM_OVERLAP', message));
    expect(() => check(program([b, a]))).toThrow(refused('PROGRAM_OVERLAP', message));
    check(program([a, { ...b, targetOffset: 110 }]));
    checkProgram(program([a, { ...b, targetRegion: 1 }]), [1000], [1000, 1000]);
  });

  test('but not by head slices that interleave in the same blocks', () => {
    const slices = [0, 1, 2, 3].map((head) =>
      rows(3, { targetOffset: head * 10, loops: [loop(4, 40)], fragmentBytes: 10 }),
    );
    const blocks = [table([5, 0, 3], 160)];
    check(program(slices, blocks));
    expect(() => check(program([...slices, rows(3, { targetOffset: 15, loops: [loop(4, 40)] })], blocks))).toThrow(
      expect.objectContaining({ code: 'PROGRAM_OVERLAP' }),
    );
  });
});

describe('what is left out', () => {
  test('is counted against the wanted ranges', () => {
    const of = program([rows(2, { loops: [loop(2, 20)] })], [table([1, 3], 100)]);
    const wanted = [100, 120, 300, 320].map((offset) => ({ region: 0, offset, bytes: 10 }));
    check(of, 1000, { wanted });
    expect(() => check(of, 1000, { wanted: [...wanted, { region: 0, offset: 315, bytes: 10 }] })).toThrow(
      expect.objectContaining({
        code: 'PROGRAM_INCOMPLETE',
        message: 'wanted[4]: expected all 10 bytes to be written, got 5',
        details: { region: 0, offset: 315, bytes: 10, written: 5 },
      }),
    );
  });
});

describe('cost', () => {
  // Each of these would take years, one fragment at a time.
  const huge = 2 ** 44;
  test('does not grow with the number of fragments', () => {
    const slice = (head: number): Rectangle =>
      rectangle({ targetOffset: head * 4, fragmentBytes: 4, loops: [loop(2 ** 20, 2 ** 24), loop(2 ** 20, 16)] });
    const slices = [slice(0), slice(1), slice(2), slice(3)];
    check(program(slices), huge, { wanted: [{ region: 0, offset: 0, bytes: huge }] });
    expect(() => check(program([...slices, slice(0.75)]), huge)).toThrow(
      expect.objectContaining({ code: 'PROGRAM_OVERLAP' }),
    );
    expect(() => check(program(slices.slice(1)), huge, { wanted: [{ region: 0, offset: 0, bytes: huge }] })).toThrow(
      refused('PROGRAM_INCOMPLETE', `wanted[0]: expected all ${huge} bytes to be written, got ${(huge / 4) * 3}`),
    );
  });

  test('is bounded where it cannot be small: long loops without a common measure are refused', () => {
    const a = rectangle({ fragmentBytes: 1, loops: [loop(2 ** 20, 1_000_003)] });
    const b = rectangle({ fragmentBytes: 1, targetOffset: 17, loops: [loop(2 ** 20, 999_983)] });
    expect(() => check(program([a, b]), huge)).toThrow(
      refused(
        'PROGRAM_NOT_NORMAL',
        'rectangles[1] and rectangles[0] interleave in a way that cannot be decided in bounded steps; ' +
          'give both the strides of one layout',
      ),
    );
  });
});

describe('field report 91: many fragments', () => {
  test('are one rectangle and one table, whatever their order', () => {
    const count = 20_000;
    const ids = Array.from({ length: count }, (_, row) => (row * 7919) % count);
    const of = program([rows(count, { fragmentBytes: 2, loops: [loop(2, 4)] })], [table(ids, 8)]);
    check(of, count * 8);
    expect([of.rectangles.length, of.tables.length, fragmentCount(of.rectangles[0] as Rectangle)]).toEqual([
      1, 1, 40_000,
    ]);
  });
});

describe('in words', () => {
  test('reads like a sentence', () => {
    const of = program(
      [
        rows(2048, { fragmentBytes: 1024, loops: [loop(16, 2048), loop(1, 1)], sourceRegion: 2, targetOffset: 65_536 }),
        rectangle({ fragmentBytes: 1 }),
      ],
      [table([], 1)],
    );
    expect(programBytes(of)).toBe(2048 * 16 * 1024 + 1);
    expect(inWords(of)).toBe(
      'Copies 32.0 MiB in 32,769 fragments, described by 2 rectangles. ' +
        'From region 2 at 0 to region 0 at 65,536: 16 × 1 KiB, for each of 2,048 blocks (rows 0 to 2047 of table 0). ' +
        'From region 0 at 0 to region 0 at 0: 1 byte, once.',
    );
  });

  test('is short for long programs and for none', () => {
    expect(inWords(program([]))).toBe('Copies nothing.');
    const of = program(
      Array.from({ length: 5 }, () => rows(1, { tableFrom: 3 })),
      [table([], 1)],
    );
    expect(inWords(of)).toMatch(
      /^Copies 50 bytes in 5 fragments, described by 5 rectangles\. .*And 2 rectangles more\.$/,
    );
    expect(inWords(of)).toContain('10 bytes, for 1 block (row 3 of table 0).');
  });
});
