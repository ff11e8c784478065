/**
 * Plain data of `StateHandoff` (records, 64-bit integers as `bigint`) and the wire's values, into each other. Owns nothing
 * of what they mean; refuses what the wire cannot say.
 */
import { argumentError } from '../errors.js';
import { isRecord, setOwn } from '../json.js';
import { Float64, type Wire, type WireMap } from './protocol/wire-value.js';

/** @throws `ARGUMENT_INVALID` for what is no plain data; keys whose value is `undefined` are left out */
export function plainToWire(value: unknown, path: string): Wire {
  if (value === null || ['boolean', 'number', 'bigint', 'string'].includes(typeof value)) return value as Wire;
  if (value instanceof Uint8Array) return value;
  if (Array.isArray(value)) return value.map((entry, index) => plainToWire(entry, `${path}[${index}]`));
  if (!isRecord(value)) throw argumentError(path, 'plain data', value);
  return new Map(
    Object.entries(value)
      .filter(([, entry]) => entry !== undefined)
      .map(([key, entry]) => [key, plainToWire(entry, `${path}.${key}`)]),
  );
}

/** Floats become numbers, maps become records with own keys only. */
export function wireToPlain(value: Wire): unknown {
  if (value instanceof Float64) return value.value;
  if (Array.isArray(value)) return (value as readonly Wire[]).map(wireToPlain);
  return value instanceof Map ? wireToRecord(value as WireMap) : value;
}

/** {@link wireToPlain} of a map. */
export function wireToRecord(map: WireMap): Readonly<Record<string, unknown>> {
  const record: Record<string, unknown> = {};
  for (const [key, entry] of map) setOwn(record, key, wireToPlain(entry));
  return record;
}
