/**
 * Goal: no field report is forgotten. Method: test/field-reports.md lists every row of the collection once; a row that it
 * calls tested is in the name of a test somewhere, and every other row has a reason.
 */
import { readProjectFile, sourceFiles } from '../support/source-files.js';

/** Every row of the collection of reports, sections A to M. */
const allRows = [
  1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 40, 41, 43, 44, 46,
  47, 49, 50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 76, 77, 79, 80, 82, 83, 85, 86, 88, 89,
  91, 92, 94, 95, 97, 98, 100, 101, 103, 104, 106, 107, 109, 110, 112, 113,
];

const listed = readProjectFile('test/field-reports.md')
  .split('\n')
  .flatMap((line) => {
    const match = /^\|\s*(\d+)\s*\|\s*(test|cannot occur)\s*\|\s*(.*?)\s*\|$/.exec(line);
    return match === null ? [] : [{ row: Number(match[1]), where: match[2]!, reason: match[3]! }];
  });

/** Rows in names of tests: `'field report 7: …'`, `'… (field report 65)'`, or `test.each([8, 94])('field report %p: …'`. */
function testedRows(text: string): number[] {
  const named = text.matchAll(/['"`][^'"`\n]*field reports? (\d+)(?: and (\d+))?/g);
  const tables = text.matchAll(/\.each\(\[([\d, ]+)\]\)\(\s*['"`]field report %p/g);
  return [
    ...[...named].flatMap(([, ...numbers]) => numbers.filter((number) => number !== undefined).map(Number)),
    ...[...tables].flatMap(([, numbers]) => numbers!.split(',').map(Number)),
  ];
}

const tested = new Set(
  sourceFiles()
    .filter(({ path }) => path.endsWith('.test.ts') && !path.endsWith('field-reports-list.test.ts'))
    .flatMap(({ text }) => testedRows(text)),
);

test('names of tests are found, and nothing else', () => {
  expect(testedRows('test(\'field report 7: x\', f); it("y (field report 65)", f);')).toEqual([7, 65]);
  expect(testedRows("test.each([8, 94])('field report %p: x', f);")).toEqual([8, 94]);
  expect(testedRows('// field report 9\nconst x = 1;')).toEqual([]);
});

test('every row is listed once, in order', () => {
  expect(listed.map(({ row }) => row)).toEqual(allRows);
});

test.each(listed.filter(({ where }) => where === 'test').map(({ row }) => row))(
  'row %p is in the name of a test',
  (row) => {
    expect(tested.has(row)).toBe(true);
  },
);

test.each(listed.filter(({ where }) => where !== 'test').map(({ row, reason }) => [row, reason] as const))(
  'row %p has a reason instead',
  (_row, reason) => {
    expect(reason.length).toBeGreaterThan(20);
  },
);
