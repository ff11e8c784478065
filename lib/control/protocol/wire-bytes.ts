/**
 * Values still in their msgpack bytes: whole ones made and read, and parts of maps read or replaced without decoding the
 * rest. What passes through a coordinator passes through here unchanged.
 */
import { argumentError } from '../../errors.js';
import type { Opaque, Wire, WireMap } from './wire-value.js';
import { WireReader } from './wire-reader.js';
import { WireWriter } from './wire-writer.js';

const writer = new WireWriter();

/** @throws `ARGUMENT_INVALID` for what the protocol cannot say */
export function encodeValue(value: Wire, path = 'value'): Opaque {
  try {
    writer.value(value, path);
  } catch (error) {
    writer.discard();
    throw error;
  }
  return writer.finish();
}

/** @throws `MESSAGE_INVALID` for bytes that are not exactly one value */
export function decodeValue(bytes: Uint8Array, path = 'value'): Wire {
  const reader = new WireReader(bytes, path);
  const value = reader.value();
  reader.end();
  return value;
}

/**
 * The values of a map, each in its bytes, in their order; null when `bytes` is another kind of value.
 *
 * @throws `MESSAGE_INVALID` for bytes that are no value, keys that are no strings or stand twice
 */
export function mapParts(bytes: Opaque, path = 'value'): ReadonlyMap<string, Opaque> | null {
  if (!isMapForm(bytes[0])) return null;
  const reader = new WireReader(bytes, path);
  const parts = new Map<string, Opaque>();
  for (let left = reader.mapLength(); left > 0; left--) {
    const key = reader.key();
    if (parts.has(key)) throw argumentError(`${path}.${key}`, 'this key once', 'it twice', 'MESSAGE_INVALID');
    parts.set(key, reader.opaque(1));
  }
  reader.end();
  return parts;
}

/** A map of parts in their order. */
export function joinMap(parts: ReadonlyMap<string, Opaque>): Opaque {
  writer.mapHead(parts.size);
  for (const [key, part] of parts) {
    writer.value(key, 'key');
    writer.opaque(part);
  }
  return writer.finish();
}

/**
 * `map` with one part more at its end; every byte of the others stays.
 *
 * @param map - a map that does not have `key`
 */
export function appendPart(map: Opaque, key: string, part: Opaque): Opaque {
  const reader = new WireReader(map, 'value');
  const size = reader.mapLength();
  writer.mapHead(size + 1);
  writer.opaque(reader.rest());
  writer.value(key, 'key');
  writer.opaque(part);
  return writer.finish();
}

/** `map` with some of its values replaced or added at the end; what is not named keeps its bytes. */
export function replaceParts(map: Opaque, parts: ReadonlyMap<string, Opaque>, path = 'value'): Opaque {
  const present = mapParts(map, path);
  if (present === null) throw argumentError(path, 'a map', `0x${map[0]?.toString(16)}`, 'MESSAGE_INVALID');
  return joinMap(new Map([...present, ...parts]));
}

/** Whether a value that starts with `byte` is a map. */
export function isMapForm(byte: number | undefined): boolean {
  return byte !== undefined && ((byte >= 0x80 && byte <= 0x8f) || byte === 0xde || byte === 0xdf);
}

/** Whether a value that starts with `byte` is a list. */
export function isListForm(byte: number | undefined): boolean {
  return byte !== undefined && ((byte >= 0x90 && byte <= 0x9f) || byte === 0xdc || byte === 0xdd);
}

/** Whether a value that starts with `byte` is text. */
export function isTextForm(byte: number | undefined): boolean {
  return byte !== undefined && ((byte >= 0xa0 && byte <= 0xbf) || (byte >= 0xd9 && byte <= 0xdb));
}

/** A map of plain entries, for callers that hold one. */
export function wireMap(entries: Readonly<Record<string, Wire>>): WireMap {
  return new Map(Object.entries(entries));
}
