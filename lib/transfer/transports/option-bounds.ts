/** Sizes, counts and times that a transport's maker may choose, each within bounds. */
import { argumentError } from '../../errors.js';

/** What a number is when nobody chose it, and between what it may lie. */
export interface OptionBounds {
  readonly fallback: number;
  readonly min: number;
  readonly max: number;
}

export const transfersBounds: OptionBounds = { fallback: 65_536, min: 1, max: 1_048_576 };
export const handshakeBounds: OptionBounds = { fallback: 5_000, min: 1, max: 600_000 };

/** @throws `ARGUMENT_INVALID` naming `options.NAME` */
export function boundedOption(name: string, value: number | undefined, { fallback, min, max }: OptionBounds): number {
  if (value === undefined) return fallback;
  if (Number.isInteger(value) && value >= min && value <= max) return value;
  throw argumentError(`options.${name}`, `an integer from ${min} to ${max}`, value);
}
