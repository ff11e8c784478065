/**
 * The outermost checks of what a caller hands in: that it is an object, a list, a function at all. What stands inside is
 * checked where it is used.
 */
import { argumentError } from './errors.js';

/** @throws `ARGUMENT_INVALID` naming `path` for what is no object, or is a list */
export function requireObject<T>(path: string, value: T, expected = 'an object'): asserts value is T & object {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw argumentError(path, expected, value);
}

/** @throws `ARGUMENT_INVALID` naming `path` for what is no array */
export function requireList(path: string, value: unknown, expected = 'a list'): asserts value is readonly unknown[] {
  if (!Array.isArray(value)) throw argumentError(path, expected, value);
}

/** @throws `ARGUMENT_INVALID` naming `path` for what is no text */
export function requireText(path: string, value: unknown): asserts value is string {
  if (typeof value !== 'string') throw argumentError(path, 'text', value);
}
