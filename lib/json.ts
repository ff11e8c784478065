/**
 * Plain data that survives JSON and structured clone, and the same with 64-bit integers in it.
 */
export type JsonValue = null | boolean | number | string | readonly JsonValue[] | { readonly [key: string]: JsonValue };
/** A map of JSON data. */
export type JsonObject = { readonly [key: string]: JsonValue };

/** What control messages carry: JSON data, and 64-bit integers as `bigint`. */
export type WireValue =
  null | boolean | number | bigint | string | readonly WireValue[] | { readonly [key: string]: WireValue };
/** A map of JSON data and 64-bit integers. */
export type WireObject = { readonly [key: string]: WireValue };

/** True for a map, false for lists, typed arrays and everything else. */
export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !ArrayBuffer.isView(value);
}

/** Sets an own property whatever its name; a plain assignment to `__proto__` would set the prototype instead. */
export function setOwn(target: Record<string, unknown>, key: string, value: unknown): void {
  if (key === '__proto__') {
    Object.defineProperty(target, key, { value, enumerable: true, configurable: true, writable: true });
  } else {
    target[key] = value;
  }
}

/** Freezes plain data and all that it holds, and gives it back. */
export function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !ArrayBuffer.isView(value)) {
    for (const inner of Object.values(value)) deepFreeze(inner);
    Object.freeze(value);
  }
  return value;
}
