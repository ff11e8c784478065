/**
 * Comparing what a vector expects with what the library gave, and saying where they first differ.
 *
 * Integers and floats are never equal. What the library gives is an integer if it is a whole `number` or a `bigint`; a
 * float is a `JsonFloat` or a number with a fraction. A 64-bit integer may be written as one, as a decimal string or as
 * `{"$int64": "…"}`.
 */
import { isRecord } from '../json.js';
import { JsonFloat, type ExactValue } from './exact-json.js';

/** The first difference of a case; the runner prints it. */
export class Mismatch extends Error {
  override readonly name = 'Mismatch';

  constructor(path: string, expected: string, got: string) {
    super(`${path}: expected ${expected}, got ${got}`);
  }
}

/** @throws {@link Mismatch} at the first difference, depth first, keys in the order of `expected` */
export function expectEqual(path: string, expected: ExactValue, got: unknown): void {
  if (Array.isArray(expected)) {
    const list: unknown = ArrayBuffer.isView(got) ? Array.from(got as Int32Array) : got;
    if (!Array.isArray(list)) throw differs(path, expected, got);
    const length = Math.min(expected.length, list.length);
    for (let index = 0; index < length; index++)
      expectEqual(`${path}[${index}]`, expected[index] as ExactValue, list[index]);
    if (expected.length !== list.length) throw new Mismatch(`${path}.length`, `${expected.length}`, `${list.length}`);
    return;
  }
  if (typeof got === 'bigint') {
    if (int64Of(expected) !== got) throw differs(path, expected, got);
    return;
  }
  if (expected instanceof JsonFloat || got instanceof JsonFloat) {
    if (!Object.is(floatOf(expected), floatOf(got)) || floatOf(got) === undefined) throw differs(path, expected, got);
    return;
  }
  if (isRecord(expected)) {
    if (!isRecord(got) || got instanceof Map || got instanceof Set) throw differs(path, expected, got);
    for (const [key, value] of Object.entries(expected)) {
      if (!Object.hasOwn(got, key)) throw new Mismatch(`${path}.${key}`, render(value), 'nothing');
      expectEqual(`${path}.${key}`, value, got[key]);
    }
    for (const key of Object.keys(got)) {
      if (!Object.hasOwn(expected, key)) throw new Mismatch(`${path}.${key}`, 'nothing', render(got[key]));
    }
    return;
  }
  if (expected !== got) throw differs(path, expected, got);
}

/** The integer that a vector writes in one of its three ways; undefined for anything else. */
export function int64Of(value: ExactValue): bigint | undefined {
  const text =
    isRecord(value) && !(value instanceof JsonFloat) && Object.keys(value).length === 1 ? value['$int64'] : value;
  if (typeof text === 'bigint') return text;
  if (typeof text === 'number' && Number.isSafeInteger(text)) return BigInt(text);
  return typeof text === 'string' && /^(?:0|-?[1-9]\d*)$/.test(text) ? BigInt(text) : undefined;
}

function floatOf(value: unknown): number | undefined {
  if (value instanceof JsonFloat) return value.value;
  return typeof value === 'number' && !Number.isInteger(value) ? value : undefined;
}

function differs(path: string, expected: ExactValue, got: unknown): Mismatch {
  return new Mismatch(path, render(expected), render(got));
}

/** A short rendering in which `1.0` and `1`, text and number look different. */
export function render(value: unknown): string {
  const text = renderWhole(value, 0);
  return text.length > 200 ? `${text.slice(0, 200)}…` : text;
}

function renderWhole(value: unknown, depth: number): string {
  if (value === undefined) return 'nothing';
  if (typeof value === 'bigint') return String(value);
  if (value instanceof JsonFloat || (typeof value === 'number' && !Number.isInteger(value))) {
    const float = value instanceof JsonFloat ? value.value : value;
    return Number.isInteger(float) ? `${Object.is(float, -0) ? '-0' : float}.0` : String(float);
  }
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? String(value);
  if (depth > 6) return '…';
  if (ArrayBuffer.isView(value)) return renderWhole(Array.from(value as Int32Array), depth);
  if (Array.isArray(value)) return `[${value.map((entry) => renderWhole(entry, depth + 1)).join(', ')}]`;
  return `{${Object.entries(value)
    .map(([key, inner]) => `${JSON.stringify(key)}: ${renderWhole(inner, depth + 1)}`)
    .join(', ')}}`;
}
