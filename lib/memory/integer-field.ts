/** The one check of sizes and ranks that layouts and geometries are made of; what is no such integer is refused by name. */
import { argumentError } from '../errors.js';

/** @throws `ARGUMENT_INVALID` naming `field` */
export function requireInteger(
  field: string,
  value: unknown,
  least: number,
  most: number = Number.MAX_SAFE_INTEGER,
): asserts value is number {
  if (Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most) return;
  const limit = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `in [${least}, ${most}]`;
  throw argumentError(field, `an integer ${limit}`, value);
}
