/**
 * Readers of single fields of data that somebody else made: each takes a map, a key and the map's path, and either
 * returns a value of the promised type and range or throws `<path>.<key>: expected …, got …`.
 *
 * Only own properties count, so nothing inherited can pose as a field. Paths are put together only when a check fails.
 */
import { argumentError, type HandoffError, type HandoffErrorCode } from './errors.js';
import { isRecord } from './json.js';

export type Fields = Readonly<Record<string, unknown>>;

/** The own value of `key`; `undefined` when it is absent. */
export function own(record: Fields, key: string): unknown {
  return Object.hasOwn(record, key) ? record[key] : undefined;
}

export function fieldError(
  path: string,
  key: string,
  expected: string,
  got: unknown,
  code: HandoffErrorCode,
): HandoffError {
  return argumentError(path === '' ? key : `${path}.${key}`, expected, got, code);
}

/** A safe integer in `[min, max]`. */
export function integerField(
  record: Fields,
  key: string,
  path: string,
  min: number,
  max: number,
  code: HandoffErrorCode = 'TICKET_INVALID',
): number {
  const value = own(record, key);
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= min && value <= max) return value;
  throw fieldError(path, key, `an integer in [${min}, ${max}]`, value, code);
}

/** A string of 1 to `lengthMax` characters. */
export function stringField(
  record: Fields,
  key: string,
  path: string,
  lengthMax: number,
  code: HandoffErrorCode = 'TICKET_INVALID',
): string {
  const value = own(record, key);
  if (typeof value === 'string' && value.length >= 1 && value.length <= lengthMax) return value;
  throw fieldError(path, key, `a string of 1 to ${lengthMax} characters`, value, code);
}

/** A string of 1 to `lengthMax` characters, or null when the key is absent or null. */
export function optionalStringField(
  record: Fields,
  key: string,
  path: string,
  lengthMax: number,
  code: HandoffErrorCode = 'TICKET_INVALID',
): string | null {
  const value = own(record, key);
  return value === undefined || value === null ? null : stringField(record, key, path, lengthMax, code);
}

export function recordField(
  record: Fields,
  key: string,
  path: string,
  code: HandoffErrorCode = 'TICKET_INVALID',
): Fields {
  const value = own(record, key);
  if (isRecord(value)) return value;
  throw fieldError(path, key, 'a map', value, code);
}

/** A list of at most `lengthMax` values, none of them left out: what a list has no entry for is undefined. */
export function listField(
  record: Fields,
  key: string,
  path: string,
  lengthMax: number,
  code: HandoffErrorCode = 'TICKET_INVALID',
): readonly unknown[] {
  const value = own(record, key);
  if (Array.isArray(value) && value.length <= lengthMax) return Array.from(value as unknown[]);
  throw fieldError(path, key, `a list of at most ${lengthMax}`, value, code);
}

const uint64Max = 0xffff_ffff_ffff_ffffn;

/** An unsigned 64-bit integer; a safe non-negative `number` is accepted, as some encodings give one for small values. */
export function uint64(value: unknown, path: string, code: HandoffErrorCode = 'TICKET_INVALID'): bigint {
  if (typeof value === 'bigint' && value >= 0n && value <= uint64Max) return value;
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return BigInt(value);
  throw argumentError(path, 'an unsigned 64-bit integer', value, code);
}
