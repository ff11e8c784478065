/**
 * What the control plane's callers hand in, checked before anything is opened: each error names the option, what was expected
 * and what came.
 */
import { argumentError } from '../errors.js';

/** The longest that a timer can wait. */
const waitMsMax = 2 ** 31 - 1;

/** @throws `OPTION_INVALID` */
export function checkOptions<T>(options: T, path = 'options'): asserts options is T & object {
  if (typeof options !== 'object' || options === null || Array.isArray(options))
    throw argumentError(path, 'an object', options, 'OPTION_INVALID');
}

/** @throws `OPTION_INVALID`; absent is well */
export function checkProfile(profile: unknown): void {
  if (profile !== undefined && profile !== 'multi-frame' && profile !== 'single-frame')
    throw argumentError('options.profile', 'multi-frame or single-frame', profile, 'OPTION_INVALID');
}

/** @throws `OPTION_INVALID`; absent is well */
export function checkConnectMs(connectMs: unknown): void {
  if (connectMs === undefined) return;
  if (typeof connectMs !== 'number' || !(connectMs >= 0) || connectMs > waitMsMax)
    throw argumentError('options.connectMs', `a number in [0, ${waitMsMax}]`, connectMs, 'OPTION_INVALID');
}

/** @throws `OPTION_INVALID` */
export function requireFunction(value: unknown, path: string): void {
  if (typeof value !== 'function') throw argumentError(path, 'a function', value, 'OPTION_INVALID');
}

/** Those of `names` that are there are functions. @throws `OPTION_INVALID` */
export function checkFunctions(options: object, names: readonly string[], path = 'options.'): void {
  for (const name of names) {
    const value = (options as Readonly<Record<string, unknown>>)[name];
    if (value !== undefined) requireFunction(value, `${path}${name}`);
  }
}
