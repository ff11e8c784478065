/**
 * Plain values as bytes, for what ranks of one instance tell each other: JSON data, 64-bit integers, byte strings and
 * the two typed arrays of the schedule log. Lengths are big-endian, array elements little-endian.
 *
 * Refuses what is no plain value, and bytes that end early, go on too long, nest too deep or promise more than they hold.
 */
import { argumentError, type HandoffError } from '../../errors.js';
import { isRecord, setOwn } from '../../json.js';

/** Nesting of lists and maps. */
export const wireDepthMax = 64;

const tag = {
  null: 0,
  undefined: 1,
  false: 2,
  true: 3,
  int32: 4,
  float64: 5,
  int64: 6,
  uint64: 7,
  string: 8,
  bytes: 9,
  int32Array: 10,
  int64Array: 11,
  list: 12,
  map: 13,
} as const;

const int64Min = -(1n << 63n);
const int64Max = (1n << 63n) - 1n;
const uint64Max = (1n << 64n) - 1n;
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * The bytes of `value`.
 *
 * @param path - what the value is called in an error
 * @throws `ARGUMENT_INVALID` naming the part that is no plain value: a function, a symbol, an instance of a class, an
 *   integer beyond 64 bits, a cycle
 */
export function encodeWireValue(value: unknown, path = 'value'): Uint8Array {
  const writer = new Writer();
  write(writer, value, path, wireDepthMax);
  return writer.taken();
}

/**
 * What `encodeWireValue` wrote; all of it is new memory.
 *
 * @throws `ARGUMENT_INVALID` for any other bytes
 */
export function decodeWireValue(bytes: Uint8Array, path = 'value'): unknown {
  const reader = new Reader(bytes, path);
  const value = read(reader, wireDepthMax);
  if (reader.left > 0) throw reader.error('no more bytes', reader.left);
  return value;
}

function write(writer: Writer, value: unknown, path: string, depth: number): void {
  switch (typeof value) {
    case 'undefined':
      return writer.byte(tag.undefined);
    case 'boolean':
      return writer.byte(value ? tag.true : tag.false);
    case 'number':
      if ((value | 0) === value && !Object.is(value, -0)) return writer.int32(tag.int32, value);
      return writer.float64(tag.float64, value);
    case 'bigint':
      if (value < int64Min || value > uint64Max) throw argumentError(path, 'a 64-bit integer', value);
      return writer.int64(value > int64Max ? tag.uint64 : tag.int64, value);
    case 'string':
      return writer.string(tag.string, value);
    case 'object':
      return value === null ? writer.byte(tag.null) : writeObject(writer, value, path, depth);
    default:
      throw argumentError(path, 'plain data', value);
  }
}

function writeObject(writer: Writer, value: object, path: string, depth: number): void {
  if (value instanceof Int32Array) return writer.array(tag.int32Array, value);
  if (value instanceof BigInt64Array) return writer.array(tag.int64Array, value);
  if (value instanceof Uint8Array) return writer.array(tag.bytes, value);
  if (depth === 0) throw argumentError(path, `at most ${wireDepthMax} levels`, 'more');
  if (Array.isArray(value)) {
    writer.length(tag.list, value.length);
    for (let i = 0; i < value.length; i += 1) write(writer, value[i], `${path}[${i}]`, depth - 1);
    return;
  }
  if (!isRecord(value) || !isPlain(value)) throw argumentError(path, 'plain data', value);
  const keys = Object.keys(value);
  writer.length(tag.map, keys.length);
  for (const key of keys) {
    writer.text(key);
    write(writer, value[key], `${path}.${key}`, depth - 1);
  }
}

/** A map of another realm has that realm's Object.prototype, whose own prototype is null. */
function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

function read(reader: Reader, depth: number): unknown {
  const kind = reader.byte();
  switch (kind) {
    case tag.null:
      return null;
    case tag.undefined:
      return undefined;
    case tag.false:
      return false;
    case tag.true:
      return true;
    case tag.int32:
      return reader.take(4).getInt32(0);
    case tag.float64:
      return reader.take(8).getFloat64(0);
    case tag.int64:
      return reader.take(8).getBigInt64(0);
    case tag.uint64:
      return reader.take(8).getBigUint64(0);
    case tag.string:
      return reader.text();
    case tag.bytes:
      return reader.copy(1);
    case tag.int32Array:
      return new Int32Array(reader.copy(4).buffer);
    case tag.int64Array:
      return new BigInt64Array(reader.copy(8).buffer);
    case tag.list:
    case tag.map:
      if (depth === 0) throw reader.error(`at most ${wireDepthMax} levels`, 'more');
      return kind === tag.list ? readList(reader, depth) : readMap(reader, depth);
    default:
      throw reader.error('a known kind of value', kind);
  }
}

function readList(reader: Reader, depth: number): unknown[] {
  const count = reader.count(1);
  const list: unknown[] = [];
  for (let i = 0; i < count; i += 1) list.push(read(reader, depth - 1));
  return list;
}

function readMap(reader: Reader, depth: number): Record<string, unknown> {
  const count = reader.count(5);
  const map: Record<string, unknown> = {};
  for (let i = 0; i < count; i += 1) {
    const key = reader.text();
    if (Object.hasOwn(map, key)) throw reader.error('each key once', key);
    setOwn(map, key, read(reader, depth - 1));
  }
  return map;
}

class Writer {
  private bytes = Buffer.allocUnsafe(256);
  private used = 0;

  taken(): Uint8Array {
    return this.bytes.subarray(0, this.used);
  }

  byte(value: number): void {
    const at = this.room(1);
    this.bytes[at] = value;
  }

  int32(kind: number, value: number): void {
    const at = this.room(5);
    this.bytes[at] = kind;
    this.bytes.writeInt32BE(value, at + 1);
  }

  float64(kind: number, value: number): void {
    const at = this.room(9);
    this.bytes[at] = kind;
    this.bytes.writeDoubleBE(value, at + 1);
  }

  /** Two's complement: the same eight bytes for both kinds of 64-bit integers. */
  int64(kind: number, value: bigint): void {
    const at = this.room(9);
    this.bytes[at] = kind;
    this.bytes.writeBigUInt64BE(BigInt.asUintN(64, value), at + 1);
  }

  length(kind: number, count: number): void {
    const at = this.room(5);
    this.bytes[at] = kind;
    this.bytes.writeUInt32BE(count, at + 1);
  }

  string(kind: number, text: string): void {
    this.byte(kind);
    this.text(text);
  }

  text(text: string): void {
    const size = Buffer.byteLength(text);
    const at = this.room(4 + size);
    this.bytes.writeUInt32BE(size, at);
    this.bytes.write(text, at + 4);
  }

  array(kind: number, array: Int32Array | BigInt64Array | Uint8Array): void {
    this.length(kind, array.length);
    const at = this.room(array.byteLength);
    this.bytes.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at);
  }

  /** Where the next `size` bytes go. It may move `bytes`, so it comes first. */
  private room(size: number): number {
    const at = this.used;
    this.used += size;
    if (this.used > this.bytes.length) {
      const grown = Buffer.allocUnsafe(Math.max(this.used, this.bytes.length * 2));
      grown.set(this.bytes.subarray(0, at));
      this.bytes = grown;
    }
    return at;
  }
}

class Reader {
  private readonly view: DataView;
  private at = 0;

  constructor(
    private readonly bytes: Uint8Array,
    private readonly path: string,
  ) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get left(): number {
    return this.bytes.length - this.at;
  }

  byte(): number {
    return this.take(1).getUint8(0);
  }

  take(size: number): DataView {
    if (this.left < size) throw this.error(`${size} more bytes`, this.left);
    this.at += size;
    return new DataView(this.view.buffer, this.view.byteOffset + this.at - size, size);
  }

  /** How many entries follow, each at least `entryBytes` long; no more than can be there. */
  count(entryBytes: number): number {
    const count = this.take(4).getUint32(0);
    if (count * entryBytes > this.left)
      throw this.error(`at most ${Math.floor(this.left / entryBytes)} entries`, count);
    return count;
  }

  copy(elementBytes: number): Uint8Array<ArrayBuffer> {
    const size = this.count(elementBytes) * elementBytes;
    this.at += size;
    return Uint8Array.from(this.bytes.subarray(this.at - size, this.at));
  }

  text(): string {
    const size = this.count(1);
    const bytes = this.bytes.subarray(this.at, this.at + size);
    this.at += size;
    try {
      return utf8.decode(bytes);
    } catch {
      throw this.error('UTF-8', bytes);
    }
  }

  error(expected: string, got: unknown): HandoffError {
    return argumentError(`${this.path} at byte ${this.at}`, expected, got);
  }
}
