/** The runner by itself, on sections made up for it: what it counts, what it refuses, what it prints. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { HandoffError } from '../../../lib/errors.js';
import { runDirectory } from '../../../lib/conformance/run-directory.js';
import { runDocument } from '../../../lib/conformance/run-document.js';
import { expectEqual } from '../../../lib/conformance/mismatch.js';
import { expectError, expectResult, fieldsOf, integerOf, type Section } from '../../../lib/conformance/section.js';

const doubled: Section = {
  name: 'doubled',
  keys: ['columns'],
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['in', 'out'], ['name']);
      expectEqual('out', fields['out']!, integerOf(fields['in'], 'in') * 2);
    },
    errors: async () => {
      await Promise.resolve();
      throw new HandoffError('ARGUMENT_INVALID', 'no');
    },
    removal: () => {
      throw new TypeError('oops');
    },
  },
};
const whole: Section = {
  name: 'whole',
  keys: ['a', 'b'],
  groups: {},
  whole: { name: 'a → b', run: ({ a, b }) => expectEqual('b', b!, a) },
};
const known = [doubled, whole];
const run = (document: unknown) =>
  runDocument(typeof document === 'string' ? document : JSON.stringify(document), 'file', known);

describe('runDocument', () => {
  it('passes what holds', async () => {
    const result = await run({
      section: 'doubled',
      kind: 'ref',
      note: 'x',
      notes: [],
      columns: [],
      cases: [
        { in: 1, out: 2 },
        { name: 'b', in: 0, out: 0 },
      ],
    });
    expect(result).toEqual({ section: 'doubled', passed: 2, failures: [], defects: [], skipped: 0, isKnown: true });
    expect(await run({ section: 'whole', a: [1], b: [1] })).toMatchObject({ passed: 1, failures: [] });
  });

  it('names the first difference of each failing case', async () => {
    const { passed, failures } = await run({
      section: 'doubled',
      cases: [{ in: 1, out: 2 }, { name: 'wrong', in: 1, out: 3 }, { in: 1 }, { in: 1, out: 2, more: [1] }, 5],
      errors: [{}],
      removal: {},
    });
    expect(passed).toBe(1);
    expect(failures).toEqual([
      'cases[1] "wrong": out: expected 3, got 2',
      'cases[2]: out: expected a value, got nothing',
      'cases[3]: more: expected no such key, got [1]',
      'cases[4]: : expected a map, got 5',
      'errors[0]: expected no error, got ARGUMENT_INVALID (no)',
      'removal: expected no error, got TypeError: oops',
    ]);
    expect((await run({ section: 'whole', a: 1, b: 2 })).failures).toEqual(['a → b: b: expected 2, got 1']);
  });

  it.each<[unknown, string]>([
    [{ section: 'doubled', cases: [{ in: 1, out: 2 }], extra: 1 }, 'extra: expected no such key, got 1'],
    [{ section: 'doubled', cases: [] }, 'cases: expected at least one case, got []'],
    [{ section: 'doubled', cases: [{ in: 1, out: 2 }], errors: [] }, 'errors: expected at least one case, got []'],
    [{ section: 'doubled' }, 'expected at least one case, got none'],
    [{ section: 'doubled', cases: 3 }, 'cases: expected cases, got 3'],
    ['{"section":"doubled","cases":[{"in":1,"out":2.0}]}', 'cases[0]: out: expected 2.0, got 2'],
    ['{"section":"doubled","cases":[{"in":1.0,"out":2}]}', 'cases[0]: in: expected an integer, got 1.0'],
    ['{"section":"doubled","cases":1.0}', 'cases: expected cases, got 1.0'],
    [
      '{"section":"doubled","cases":[{"in":1,"out":2}],"cases":[]}',
      'expected JSON (line 1: expected the key "cases" once, got ":[]}")',
    ],
    ['{', 'expected JSON (line 1: expected a key, got the end)'],
    ['[]', 'expected a map, got []'],
    ['{}', 'section: expected a string, got nothing'],
    ['{"section":7}', 'section: expected a string, got 7'],
  ])('fails on %j', async (document, failure) => {
    expect((await run(document)).failures).toEqual([failure]);
  });

  it('counts the cases of a section it does not know by the common rule', async () => {
    const result = await run({
      section: 'other',
      cases: [1, 2],
      errors: [1],
      accepted: [1, 1],
      removal: {},
      values: {},
      registration: [],
      handoff: {},
      frames: [1, 2, 3],
    });
    expect(result).toEqual({ section: 'other', passed: 0, failures: [], defects: [], skipped: 8, isKnown: false });
  });
});

describe('expectError and expectResult', () => {
  const types = { ValueError: ['ARGUMENT_INVALID'] } as const;
  const refuse = () => {
    throw new HandoffError('ARGUMENT_INVALID', 'no');
  };

  it('tells errors apart', () => {
    expect(() => expectError({ type: 'ValueError' }, 'error', types, refuse)).not.toThrow();
    expect(() => expectError({ type: 'ValueError' }, 'error', types, () => 7)).toThrow(
      'error: expected ValueError (ARGUMENT_INVALID), got 7',
    );
    expect(() => expectError({ type: 'RuntimeError' }, 'error', types, refuse)).toThrow(
      'error: expected RuntimeError, which stands for no code here, got ARGUMENT_INVALID (no)',
    );
    expect(() => expectError({ type: 'toString' }, 'error', types, refuse)).toThrow('which stands for no code here');
    expect(() => expectError({ type: 'ValueError', more: 1 }, 'error', types, refuse)).toThrow(
      'error.more: expected no such key, got 1',
    );
    expect(() =>
      expectError({ type: 'ValueError' }, 'error', types, () => {
        throw new RangeError('crash');
      }),
    ).toThrow(RangeError);
  });

  it('compares results, and expects none beside an error', () => {
    expect(() => expectResult({ result: [1] }, 'step', types, () => [1])).not.toThrow();
    expect(() => expectResult({ result: [1] }, 'step', types, () => [2])).toThrow('step.result[0]: expected 1, got 2');
    expect(() => expectResult({ result: null }, 'step', types, refuse)).toThrow(HandoffError);
    expect(() => expectResult({ result: null, error: { type: 'ValueError' } }, 'step', types, refuse)).not.toThrow();
    expect(() => expectResult({ result: 1, error: { type: 'ValueError' } }, 'step', types, refuse)).toThrow(
      'step.result: expected 1, got null',
    );
  });
});

describe('runDirectory', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'vectors-'));
  });
  afterEach(() => rmSync(directory, { recursive: true }));

  const print = async () => {
    const lines: string[] = [];
    const status = await runDirectory(directory, known, (line) => lines.push(line));
    return { status, lines };
  };
  const write = (name: string, document: unknown) => writeFileSync(join(directory, name), JSON.stringify(document));

  it('prints a line a section, in the order of the files, and a total', async () => {
    write('b.json', { section: 'doubled', cases: [{ in: 1, out: 2 }] });
    write('a.json', { section: 'other', cases: [1, 2] });
    write('c.json', { section: 'whole', a: 1, b: 1 });
    write('readme.txt', 'no JSON');
    expect(await print()).toEqual({
      status: 0,
      lines: ['other: skipped', 'doubled: 1/1', 'whole: 1/1', 'conformance: 2 passed, 0 failed, 2 skipped'],
    });
  });

  it('prints what failed and ends with status 1', async () => {
    write('a.json', {
      section: 'doubled',
      cases: [
        { in: 1, out: 2 },
        { in: 1, out: 3 },
      ],
      extra: 1,
    });
    writeFileSync(join(directory, 'b.json'), '{');
    expect(await print()).toEqual({
      status: 1,
      lines: [
        'doubled: 1/3',
        '  extra: expected no such key, got 1',
        '  cases[1]: out: expected 3, got 2',
        'b: 0/1',
        '  expected JSON (line 1: expected a key, got the end)',
        'conformance: 1 passed, 3 failed, 0 skipped',
      ],
    });
  });

  it('does not call an empty or absent directory conformant', async () => {
    expect(await print()).toEqual({
      status: 1,
      lines: [`conformance: expected *.json files in ${directory}, got none`],
    });
    const { status } = await print();
    expect(status).toBe(1);
    const lines: string[] = [];
    expect(await runDirectory(join(directory, 'absent'), known, (line) => lines.push(line))).toBe(1);
    expect(lines).toHaveLength(1);
    expect(lines[0]).toContain('conformance: expected a directory of vectors, got ');
  });
});
