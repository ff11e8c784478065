/**
 * Goal: every option says what it wants, in one wording, and nothing unknown gets through. Method: each option with every
 * kind of wrong value, message compared in full.
 */
import { systemClock } from '../../lib/clock.js';
import type { HandoffError } from '../../lib/errors.js';
import { compileOptions, type StateHandoffOptions } from '../../lib/options.js';

function refusal(options: unknown): { code: string; message: string } | null {
  try {
    compileOptions(options as StateHandoffOptions, 31);
    return null;
  } catch (error) {
    const { code, message } = error as HandoffError;
    return { code, message };
  }
}

const refused = (message: string) => ({ code: 'OPTION_INVALID', message });

test('defaults', () => {
  const { instance, incarnation, ...rest } = compileOptions({}, 31);
  expect(rest).toEqual({
    epoch: 0,
    ticketSecret: null,
    deadlines: { queueMs: 120_000, handshakeMs: 10_000, transferMs: 30_000, pinMs: 480_000 },
    limits: { maxPinnedHandoffs: 1024, maxPinnedBlocks: 31, maxDeferred: 65_536, maxInFlightBytes: Infinity },
    clock: systemClock,
  });
  for (const name of [instance, incarnation]) expect(name).toMatch(/^[0-9a-f-]{36}$/);
  expect(compileOptions({}, 31).incarnation).not.toBe(incarnation);
});

const minimum = {
  deadlines: { queueMs: 0, handshakeMs: 1, transferMs: 1, pinMs: 1 },
  limits: { maxPinnedHandoffs: 1, maxPinnedBlocks: 1, maxDeferred: 0, maxInFlightBytes: 1 },
} as const;
const numbers = Object.entries(minimum).flatMap(([group, names]) =>
  Object.entries(names).map(([name, least]) => [group, name, least] as const),
);

describe.each(numbers)('options.%s.%s', (group, name, least) => {
  const nullable = group === 'deadlines';
  const wanted = `a number of at least ${least}${nullable ? ' or null' : ''}`;
  test.each<[unknown, string]>([
    [least - 1, String(least - 1)],
    [Number.NaN, 'NaN'],
    [-Infinity, '-Infinity'],
    ['5', '"5"'],
    [5n, '5n'],
    [true, 'true'],
    [{}, 'an object'],
    [[], 'an array of 0'],
    [() => 5, 'a function'],
  ])('%p is refused', (value, words) => {
    expect(refusal({ [group]: { [name]: value } })).toEqual(
      refused(`options.${group}.${name}: expected ${wanted}, got ${words}`),
    );
  });

  test('null', () => {
    const expected = nullable ? null : refused(`options.${group}.${name}: expected ${wanted}, got null`);
    expect(refusal({ [group]: { [name]: null } })).toEqual(expected);
  });

  test('the least value and those above are taken', () => {
    for (const value of [least, least + 1]) {
      const compiled = compileOptions({ [group]: { [name]: value } }, 31) as unknown as Record<
        string,
        Record<string, number>
      >;
      expect(compiled[group]![name]).toBe(value);
    }
  });
});

test('null means no deadline', () => {
  expect(compileOptions({ deadlines: { pinMs: null, queueMs: null } }, 1).deadlines).toMatchObject({
    pinMs: Infinity,
    queueMs: Infinity,
  });
});

test.each(['instance', 'incarnation'])('options.%s', (name) => {
  for (const value of ['a', 'x'.repeat(128), 'host-1:80/a'.replace('/', '@'), 'A.b_c:d@e-f'])
    expect(refusal({ [name]: value })).toBeNull();
  for (const [value, words] of [
    ['', '""'],
    ['a b', '"a b"'],
    ['a/b', '"a/b"'],
    ['a\n', '"a\\n"'],
    ['x'.repeat(129), `"${'x'.repeat(64)}"…`],
    [7, '7'],
    [null, 'null'],
  ])
    expect(refusal({ [name!]: value })).toEqual(
      refused(`options.${name}: expected 1 to 128 letters, digits or any of . _ : @ -, got ${words}`),
    );
});

test.each([
  [-1, '-1'],
  [1.5, '1.5'],
  [2 ** 53, '9007199254740992'],
  ['1', '"1"'],
  [1n, '1n'],
] as const)('options.epoch %p', (value, words) => {
  expect(refusal({ epoch: value })).toEqual(refused(`options.epoch: expected an integer of at least 0, got ${words}`));
});

test.each([{}, { now: 5 }])('options.clock %p', (clock) => {
  expect(refusal({ clock })).toEqual(refused('options.clock: expected an object with now(), got an object'));
});

test('unknown keys are refused at every level, with the known ones', () => {
  expect(refusal({ deadline: {} })).toEqual(
    refused(
      'options.deadline: expected one of instance, incarnation, epoch, ticketSecret, deadlines, limits, clock, got "deadline"',
    ),
  );
  expect(refusal({ deadlines: { queue: 5 } })).toEqual(
    refused('options.deadlines.queue: expected one of queueMs, handshakeMs, transferMs, pinMs, got "queue"'),
  );
  expect(refusal({ limits: { maxPins: 5 } })).toEqual(
    refused(
      'options.limits.maxPins: expected one of maxPinnedHandoffs, maxPinnedBlocks, maxDeferred, maxInFlightBytes, got "maxPins"',
    ),
  );
});

test.each(['deadlines', 'limits'])('options.%s must be an object', (group) => {
  expect(refusal({ [group]: 5 })).toEqual(refused(`options.${group}: expected an object, got 5`));
});
