/** Plain data: what counts as a map, keys that would be more than keys, and freezing. */
import { deepFreeze, isRecord, setOwn } from '../../lib/json.js';

describe('setOwn', () => {
  it('sets any key as an ordinary own property', () => {
    const target: Record<string, unknown> = {};
    for (const key of ['a', '__proto__', 'constructor']) {
      setOwn(target, key, 1);
      setOwn(target, key, { polluted: key });
    }
    expect(Object.getPrototypeOf(target)).toBe(Object.prototype);
    expect(Object.entries(target)).toEqual(['a', '__proto__', 'constructor'].map((key) => [key, { polluted: key }]));
    expect(delete target['__proto__']).toBe(true);
  });
});

describe('isRecord', () => {
  it('takes maps and nothing else', () => {
    expect([{}, Object.create(null), { length: 1 }].map(isRecord)).toEqual([true, true, true]);
    expect([null, undefined, [], 'a', 1, 1n, () => 1, new Uint8Array(1)].map(isRecord)).toEqual(Array(8).fill(false));
  });
});

describe('deepFreeze', () => {
  it('freezes everything that can be, and gives back what it got', () => {
    const value = { list: [{ a: 1 }], nothing: null, bytes: new Uint8Array(1) };
    expect(deepFreeze(value)).toBe(value);
    for (const part of [value, value.list, value.list[0]]) expect(Object.isFrozen(part)).toBe(true);
    value.bytes[0] = 7;
    expect(value.bytes[0]).toBe(7);
  });
});
