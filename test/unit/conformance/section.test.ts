/** The readers of what cases hold: each takes its own kind and names what it got instead. */
import { JsonFloat, type ExactValue } from '../../../lib/conformance/exact-json.js';
import {
  at,
  bigintOf,
  booleanOf,
  fieldsOf,
  integerOf,
  integersOf,
  listOf,
  objectOf,
  stringOf,
} from '../../../lib/conformance/section.js';

const half = new JsonFloat(0.5);

describe('readers of cases', () => {
  it('give back what they are for', () => {
    expect(integerOf(-3, 'x')).toBe(-3);
    expect(integersOf([1, 2], 'x')).toEqual([1, 2]);
    expect(booleanOf(false, 'x')).toBe(false);
    expect(stringOf('', 'x')).toBe('');
    expect(listOf([half], 'x')).toEqual([half]);
    expect(objectOf({ a: 1 }, 'x')).toEqual({ a: 1 });
    expect(fieldsOf({ a: 1, b: 2 }, 'x', ['a'], ['b', 'c'])).toEqual({ a: 1, b: 2 });
    for (const value of [5, 5n, '5', { $int64: '5' }]) expect(bigintOf(value, 'x')).toBe(5n);
    expect(bigintOf(-(1n << 63n), 'x')).toBe(-(1n << 63n));
    expect(bigintOf('18446744073709551615', 'x')).toBe((1n << 64n) - 1n);
    expect([at('', 'key'), at('path', 'key')]).toEqual(['key', 'path.key']);
  });

  it.each<[(value: ExactValue | undefined, path: string) => unknown, ExactValue | undefined, string]>([
    [integerOf, new JsonFloat(1), 'x: expected an integer, got 1.0'],
    [integerOf, 1n << 60n, 'x: expected an integer, got 1152921504606846976'],
    [integerOf, '1', 'x: expected an integer, got "1"'],
    [integersOf, [1, half], 'x[1]: expected an integer, got 0.5'],
    [bigintOf, half, 'x: expected a 64-bit integer, got 0.5'],
    [bigintOf, undefined, 'x: expected a 64-bit integer, got nothing'],
    [bigintOf, 1n << 64n, 'x: expected a 64-bit integer, got 18446744073709551616'],
    [bigintOf, -(1n << 63n) - 1n, 'x: expected a 64-bit integer, got -9223372036854775809'],
    [bigintOf, 'five', 'x: expected a 64-bit integer, got "five"'],
    [booleanOf, 0, 'x: expected true or false, got 0'],
    [stringOf, null, 'x: expected a string, got null'],
    [listOf, { length: 0 }, 'x: expected a list, got {"length": 0}'],
    [objectOf, half, 'x: expected a map, got 0.5'],
    [objectOf, [], 'x: expected a map, got []'],
    [(value, path) => fieldsOf(value, path, ['a']), { b: 1 }, 'x.a: expected a value, got nothing'],
    [(value, path) => fieldsOf(value, path, ['a']), { a: 1, b: 1 }, 'x.b: expected no such key, got 1'],
    [(value, path) => fieldsOf(value, path, ['toString']), {}, 'x.toString: expected a value, got nothing'],
  ])('name what they got instead: %#', (read, value, message) => {
    expect(() => read(value, 'x')).toThrow(message);
  });
});
