/** Values of the vectors as values of the wire: `1.0` a float64, `{"$int64": …}` an integer, maps in order. */
import { Float64, type Wire } from '../control/protocol/wire-value.js';
import { isRecord } from '../json.js';
import { JsonFloat, type ExactObject, type ExactValue } from './exact-json.js';
import { int64Of } from './mismatch.js';

/**
 * @param like - the same value from elsewhere. Integer-like keys have lost their order in `value`; where they occur, the
 * keys stand as they do here.
 */
export function wireOf(value: ExactValue, like?: Wire): Wire {
  if (value instanceof JsonFloat) return new Float64(value.value);
  if (Array.isArray(value)) {
    const others = Array.isArray(like) ? (like as readonly Wire[]) : [];
    return (value as readonly ExactValue[]).map((entry, index) => wireOf(entry, others[index]));
  }
  if (!isRecord(value)) return value as Exclude<ExactValue, JsonFloat | readonly ExactValue[] | ExactObject>;
  if (Object.hasOwn(value, '$int64') && int64Of(value) !== undefined) return int64Of(value)!;
  const other = like instanceof Map ? (like as ReadonlyMap<string, Wire>) : new Map<string, Wire>();
  const keys = Object.keys(value);
  if (keys.some((key) => /^\d+$/.test(key)) && keys.length === other.size && keys.every((key) => other.has(key)))
    return new Map([...other].map(([key, inner]) => [key, wireOf(value[key]!, inner)]));
  return new Map(keys.map((key) => [key, wireOf(value[key]!, other.get(key))]));
}
