/**
 * Promise: the check of a copy program says what a bitmap of every byte says, in TypeScript and in native code alike.
 *
 * Programs are generated, expanded byte by byte, and compared: one that is accepted and wrong fails here, and so does
 * one in normal form that is refused and right.
 */
import fc from 'fast-check';
import { isHandoffError } from '../../lib/errors.js';
import { addon } from '../../lib/native/addon.js';
import { native } from '../../lib/native/addon-errors.js';
import { encodePrograms } from '../../lib/native/encoded-program.js';
import { checkProgram, type WantedRange } from '../../lib/transfer/check-program.js';
import { programBytes } from '../../lib/transfer/copy-program.js';
import {
  garbage,
  interleavedNests,
  layoutBoxes,
  unrelatedNests,
  type SizedProgram,
} from '../support/program-arbitraries.js';
import { expand } from '../support/program-oracle.js';

function codeOf(call: () => void): string {
  try {
    call();
    return 'accepted';
  } catch (error) {
    if (isHandoffError(error)) return error.code;
    throw error;
  }
}

/** Both verdicts, which must be one. */
function verdict({ program, sourceBytes, targetBytes }: SizedProgram, wanted: readonly WantedRange[] = []): string {
  const ours = codeOf(() => checkProgram(program, sourceBytes, targetBytes, { wanted }));
  const theirs = codeOf(() => {
    const { rectangles, tables, rows } = encodePrograms([program]);
    const flat = Float64Array.from(wanted.flatMap(({ region, offset, bytes }) => [region, offset, bytes]));
    native(() =>
      addon().programCheck(
        rectangles,
        tables,
        rows,
        Float64Array.from(sourceBytes),
        Float64Array.from(targetBytes),
        flat,
      ),
    );
  });
  expect(theirs).toBe(ours);
  return ours;
}

const runs = { numRuns: 3_000 };

describe.each([
  ['nests of unlike strides', unrelatedNests],
  ['interleaved nests', interleavedNests],
  ['boxes of one layout', layoutBoxes],
])('%s', (_, arbitrary) => {
  test('are accepted if and only if no byte is written twice', () => {
    const seen = { accepted: 0, overlapping: 0 };
    fc.assert(
      fc.property(arbitrary, (sized) => {
        const truth = expand(sized.program, sized.sourceBytes, sized.targetBytes);
        expect(truth.outOfRange).toBe(false);
        expect(verdict(sized)).toBe(truth.overlaps ? 'PROGRAM_OVERLAP' : 'accepted');
        if (truth.overlaps) seen.overlapping += 1;
        else seen.accepted += 1;
      }),
      runs,
    );
    // The generator has to reach both sides of the line.
    expect(Math.min(seen.accepted, seen.overlapping)).toBeGreaterThan(runs.numRuns / 50);
  });

  test('one byte less of either region is refused as out of range', () => {
    fc.assert(
      fc.property(arbitrary, fc.boolean(), ({ program, sourceBytes, targetBytes }, source) => {
        const smaller = (sizes: readonly number[], cut: boolean): number[] => sizes.map((size) => size - (cut ? 1 : 0));
        expect(
          verdict({ program, sourceBytes: smaller(sourceBytes, source), targetBytes: smaller(targetBytes, !source) }),
        ).toBe('PROGRAM_OUT_OF_RANGE');
      }),
      { numRuns: 500 },
    );
  });

  test('say exactly which wanted ranges they fill', () => {
    fc.assert(
      fc.property(arbitrary, fc.array(fc.tuple(fc.nat(), fc.nat()), { minLength: 1, maxLength: 3 }), (sized, cuts) => {
        const truth = expand(sized.program, sized.sourceBytes, sized.targetBytes);
        fc.pre(!truth.overlaps);
        const writes = truth.writes[0] as Uint32Array;
        const wanted = cuts.map(([at, length]) => {
          const offset = at % writes.length;
          return { region: 0, offset, bytes: length % (Math.min(writes.length - offset, 12) + 1) };
        });
        const whole = wanted.every(({ offset, bytes }) =>
          writes.subarray(offset, offset + bytes).every((n) => n === 1),
        );
        expect(verdict(sized, wanted)).toBe(whole ? 'accepted' : 'PROGRAM_INCOMPLETE');
      }),
      { numRuns: 1_500 },
    );
  });

  test('move as many bytes as they say', () => {
    fc.assert(
      fc.property(arbitrary, ({ program, sourceBytes, targetBytes }) => {
        const { writes } = expand(program, sourceBytes, targetBytes);
        const total = writes.reduce((sum, bytes) => sum + bytes.reduce((part, count) => part + count, 0), 0);
        expect(programBytes(program)).toBe(total);
      }),
      { numRuns: 300 },
    );
  });
});

test('of garbage, what is accepted is right and what is refused is refused for what it is', () => {
  const seen = new Map<string, number>();
  fc.assert(
    fc.property(garbage, (sized) => {
      const said = verdict(sized);
      seen.set(said, (seen.get(said) ?? 0) + 1);
      if (said === 'ARGUMENT_INVALID' || said === 'PROGRAM_NOT_NORMAL') return;
      const truth = expand(sized.program, sized.sourceBytes, sized.targetBytes);
      if (said === 'accepted') expect(truth).toMatchObject({ outOfRange: false, overlaps: false });
      else if (said === 'PROGRAM_OVERLAP') expect(truth.overlaps || truth.outOfRange).toBe(true);
      else expect(truth.outOfRange).toBe(true);
    }),
    { numRuns: 10_000 },
  );
  const codes = ['ARGUMENT_INVALID', 'PROGRAM_NOT_NORMAL', 'PROGRAM_OUT_OF_RANGE', 'PROGRAM_OVERLAP', 'accepted'];
  expect([...seen.keys()].sort()).toEqual(codes.sort());
});
