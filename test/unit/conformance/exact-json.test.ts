/** The JSON reader of the vectors: nothing is lost, nothing lenient. */
import fc from 'fast-check';
import { ExactJsonError, JsonFloat, parseExactJson } from '../../../lib/conformance/exact-json.js';

/** What `JSON.parse` would give. */
function plain(value: unknown): unknown {
  if (value instanceof JsonFloat) return value.value;
  if (typeof value === 'bigint') return Number(value);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, plain(inner)]));
}

describe('parseExactJson', () => {
  it.each([
    ['1', 1],
    ['-0', 0],
    ['1.0', new JsonFloat(1)],
    ['-0.0', new JsonFloat(-0)],
    ['1e2', new JsonFloat(100)],
    ['1E+2', new JsonFloat(100)],
    ['9007199254740991', 9007199254740991],
    ['9007199254740992', 9007199254740992n],
    ['-9223372036854775808', -9223372036854775808n],
    ['18446744073709551615', 18446744073709551615n],
    [' [ 1 , {"a" : null} , true,false ] ', [1, { a: null }, true, false]],
    ['"\\u03c0\\n\\"π"', 'π\n"π'],
    ['{}', {}],
    ['[]', []],
  ])('reads %s', (text, value) => {
    expect(parseExactJson(text)).toEqual(value);
  });

  it('reads what JSON.parse reads', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.constantFrom(0, 2), (value, indent) => {
        const text = JSON.stringify(value, null, indent);
        expect(plain(parseExactJson(text))).toEqual(JSON.parse(text));
      }),
    );
  });

  it('keeps a key named __proto__ a key', () => {
    expect(JSON.stringify(parseExactJson('{"__proto__":1}'))).toBe('{"__proto__":1}');
  });

  it.each([
    ['', 'line 1: expected a value, got the end'],
    ['{"a":1,\n"a":2}', 'line 2: expected the key "a" once, got ":2}"'],
    ['[1,]', 'line 1: expected a value, got "]"'],
    ['[1 2]', 'line 1: expected "," or "]", got "2]"'],
    ['{"a" 1}', 'line 1: expected ":", got "1}"'],
    ['{"a":1', 'line 1: expected "," or "}", got the end'],
    ['{a:1}', 'line 1: expected a key, got "a:1}"'],
    ['01', 'line 1: expected the end, got "1"'],
    ['+1', 'line 1: expected a value, got "+1"'],
    ['.5', 'line 1: expected a value, got ".5"'],
    ['1.', 'line 1: expected the end, got "."'],
    ['NaN', 'line 1: expected a value, got "NaN"'],
    ['tru', 'line 1: expected a value, got "tru"'],
    ['"\n"', 'line 1: expected a string, got "\\"\\n\\""'],
    ['"\\x"', 'line 1: expected a string, got "\\"\\\\x\\""'],
    ['1 1', 'line 1: expected the end, got "1"'],
    ['['.repeat(300), 'line 1: expected less nesting, got'],
  ])('refuses %j', (text, message) => {
    expect(() => parseExactJson(text)).toThrow(ExactJsonError);
    expect(() => parseExactJson(text)).toThrow(message);
  });
});
