/** The comparison: what counts as equal, and how a difference reads. */
import { JsonFloat, type ExactValue } from '../../../lib/conformance/exact-json.js';
import { expectEqual, render } from '../../../lib/conformance/mismatch.js';

const message = (expected: ExactValue, got: unknown): string | null => {
  try {
    expectEqual('x', expected, got);
    return null;
  } catch (error) {
    return (error as Error).message;
  }
};

describe('expectEqual', () => {
  it.each<[ExactValue, unknown]>([
    [1, 1],
    [1, 1n],
    [null, null],
    ['a', 'a'],
    [new JsonFloat(1), new JsonFloat(1)],
    [new JsonFloat(0.5), 0.5],
    [new JsonFloat(0.5), new JsonFloat(0.5)],
    [9223372036854775807n, 9223372036854775807n],
    ['9223372036854775807', 9223372036854775807n],
    [{ $int64: '9223372036854775807' }, 9223372036854775807n],
    [{ $int64: '5' }, { $int64: '5' }],
    [[1, 2], Int32Array.of(1, 2)],
    [['1', 2], BigInt64Array.of(1n, 2n)],
    [
      { a: 1, b: [] },
      { b: [], a: 1 },
    ],
  ])('takes %p for %p', (expected, got) => {
    expect(message(expected, got)).toBeNull();
  });

  it.each<[ExactValue, unknown, string]>([
    [1, new JsonFloat(1), 'x: expected 1, got 1.0'],
    [new JsonFloat(1), 1, 'x: expected 1.0, got 1'],
    [new JsonFloat(1), 1n, 'x: expected 1.0, got 1'],
    [new JsonFloat(0), new JsonFloat(-0), 'x: expected 0.0, got -0.0'],
    [new JsonFloat(0.5), 0.25, 'x: expected 0.5, got 0.25'],
    [new JsonFloat(0.5), 'a', 'x: expected 0.5, got "a"'],
    [1, 2, 'x: expected 1, got 2'],
    [1, '1', 'x: expected 1, got "1"'],
    ['1', 1, 'x: expected "1", got 1'],
    ['01', 1n, 'x: expected "01", got 1'],
    ['', 0n, 'x: expected "", got 0'],
    [1, true, 'x: expected 1, got true'],
    [null, undefined, 'x: expected null, got nothing'],
    [{ $int64: '1', more: 1 }, 1n, 'x: expected {"$int64": "1", "more": 1}, got 1'],
    [[1, 2], [1], 'x.length: expected 2, got 1'],
    [[1], [1, 2], 'x.length: expected 1, got 2'],
    [[1, 2], [2, 2, 3], 'x[0]: expected 1, got 2'],
    [[], {}, 'x: expected [], got {}'],
    [{}, [], 'x: expected {}, got []'],
    [{}, new Map(), 'x: expected {}, got {}'],
    [{}, null, 'x: expected {}, got null'],
    [{ a: { b: 1 } }, { a: {} }, 'x.a.b: expected 1, got nothing'],
    [{ a: {} }, { a: { b: [1] } }, 'x.a.b: expected nothing, got [1]'],
    [{ a: 1 }, { a: undefined }, 'x.a: expected 1, got nothing'],
  ])('tells %p from %p', (expected, got, text) => {
    expect(message(expected, got)).toBe(text);
  });
});

describe('render', () => {
  it('is short', () => {
    expect(render(Array.from({ length: 1000 }, () => 1))).toHaveLength(201);
    expect(render('x'.repeat(198))).toBe(`"${'x'.repeat(198)}"`);
    expect(render([[[[[[[[1]]]]]]]])).toBe('[[[[[[[…]]]]]]]');
    expect(render({ a: { a: { a: { a: { a: { a: { a: [] } } } } } } })).toContain('{"a": …}');
    expect(render(BigUint64Array.of(1n))).toBe('[1]');
  });
});
