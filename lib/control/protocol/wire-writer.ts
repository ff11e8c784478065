/**
 * Writes msgpack as the reference does (spec 1.3): the smallest integer form, float64, text and bytes apart, maps in
 * their own order. Refuses what the protocol cannot say: integers beyond 64 bits, text with lone surrogates, nesting that
 * the reader would refuse, values of other kinds.
 */
import { argumentError } from '../../errors.js';
import { Float64, type Opaque, type Wire } from './wire-value.js';
import { wireDepthMax } from './wire-reader.js';

const utf8 = new TextEncoder();
const uint64End = 1n << 64n;
const int64Start = -(1n << 63n);
/** The longest form without content: its first byte and eight more. */
const formBytesMax = 9;
/** What the one-byte head of a text can say. */
const shortTextMax = 31;

export class WireWriter {
  private bytes = new Uint8Array(256);
  private view = new DataView(this.bytes.buffer);
  private at = 0;

  /** What was written since the last call, as bytes of their own. */
  finish(): Uint8Array {
    const written = this.bytes.slice(0, this.at);
    this.at = 0;
    // One huge message should not keep its buffer for ever.
    if (this.bytes.length > 1 << 20) this.grow(256);
    return written;
  }

  /** Forgets what was written since the last {@link finish}. */
  discard(): void {
    this.at = 0;
  }

  listHead(length: number): void {
    this.head(length, 0x90, 15, 0xdb);
  }

  mapHead(length: number): void {
    this.head(length, 0x80, 15, 0xdd);
  }

  /** A value that is msgpack already. */
  opaque(value: Opaque): void {
    this.raw(value);
  }

  /**
   * @param path - the value's place in the message, for errors
   * @param key - its key in the map at `path`
   */
  value(value: Wire, path: string, depth = 0, key: string | null = null): void {
    switch (typeof value) {
      case 'number':
        if (Number.isSafeInteger(value)) return this.integer(value);
        if (Number.isInteger(value))
          throw argumentError(placeOf(path, key), 'a bigint for an integer beyond 2^53 - 1', value);
        return this.float(value);
      case 'bigint':
        return this.bigInteger(value, path, key);
      case 'string':
        return this.text(value, path, key);
      case 'boolean':
        return this.byte(value ? 0xc3 : 0xc2);
      case 'object':
        return value === null ? this.byte(0xc0) : this.object(value, path, key, depth);
      default:
        throw argumentError(placeOf(path, key), 'a value of the protocol', value);
    }
  }

  private object(
    value: Exclude<Wire, null | boolean | number | bigint | string>,
    parent: string,
    key: string | null,
    depth: number,
  ): void {
    if (value instanceof Float64) return this.float(value.value);
    if (value instanceof Uint8Array) return this.binary(value);
    const path = placeOf(parent, key);
    if (depth >= wireDepthMax) throw argumentError(path, `at most ${wireDepthMax} levels`, value);
    if (Array.isArray(value)) {
      const list = value as readonly Wire[];
      this.listHead(list.length);
      for (let index = 0; index < list.length; index++) this.value(list[index]!, path, depth + 1);
      return;
    }
    if (!(value instanceof Map)) throw argumentError(path, 'a value of the protocol', value);
    this.mapHead(value.size);
    for (const [innerKey, inner] of value as ReadonlyMap<unknown, Wire>) {
      if (typeof innerKey !== 'string') throw argumentError(path, 'keys that are strings', innerKey);
      this.text(innerKey, path, null);
      this.value(inner, path, depth + 1, innerKey);
    }
  }

  integer(value: number): void {
    this.room(formBytesMax);
    if (value >= 0) {
      if (value <= 0x7f) this.byte(value);
      else if (value <= 0xff) this.view.setUint8(this.form(0xcc, 1), value);
      else if (value <= 0xffff) this.view.setUint16(this.form(0xcd, 2), value);
      else if (value <= 0xffff_ffff) this.view.setUint32(this.form(0xce, 4), value);
      else this.view.setBigUint64(this.form(0xcf, 8), BigInt(value));
    } else if (value >= -0x20) this.byte(value & 0xff);
    else if (value >= -0x80) this.view.setInt8(this.form(0xd0, 1), value);
    else if (value >= -0x8000) this.view.setInt16(this.form(0xd1, 2), value);
    else if (value >= -0x8000_0000) this.view.setInt32(this.form(0xd2, 4), value);
    else this.view.setBigInt64(this.form(0xd3, 8), BigInt(value));
  }

  private bigInteger(value: bigint, path: string, key: string | null): void {
    this.room(formBytesMax);
    const number = Number(value);
    if (Number.isSafeInteger(number)) return this.integer(number);
    if (value >= 0n && value < uint64End) this.view.setBigUint64(this.form(0xcf, 8), value);
    else if (value < 0n && value >= int64Start) this.view.setBigInt64(this.form(0xd3, 8), value);
    else throw argumentError(placeOf(path, key), 'an integer of 64 bits', value);
  }

  private float(value: number): void {
    this.room(formBytesMax);
    this.view.setFloat64(this.form(0xcb, 8), value);
  }

  private text(value: string, path: string, key: string | null): void {
    this.room(5 + value.length * 3);
    if (value.length <= shortTextMax && this.shortAscii(value)) return;
    if (!isWellFormed(value)) throw argumentError(placeOf(path, key), 'text without lone surrogates', value);
    // The head's size depends on the length in bytes, which is known for short ASCII only after writing it.
    const headAt = this.at;
    const guess = value.length <= 31 ? 1 : value.length <= 0xff ? 2 : value.length <= 0xffff ? 3 : 5;
    const { written } = utf8.encodeInto(value, this.bytes.subarray(headAt + guess));
    const size = written <= 31 ? 1 : written <= 0xff ? 2 : written <= 0xffff ? 3 : 5;
    if (size !== guess) this.bytes.copyWithin(headAt + size, headAt + guess, headAt + guess + written);
    if (size === 1) this.byte(0xa0 | written);
    else if (size === 2) this.view.setUint8(this.form(0xd9, 1), written);
    else if (size === 3) this.view.setUint16(this.form(0xda, 2), written);
    else this.view.setUint32(this.form(0xdb, 4), written);
    this.at += written;
  }

  /** Most keys and names are this; @returns false, with nothing written, for those that are not. */
  private shortAscii(value: string): boolean {
    const { bytes } = this;
    let at = this.at + 1;
    for (let index = 0; index < value.length; index++) {
      const code = value.charCodeAt(index);
      if (code > 0x7f) return false;
      bytes[at++] = code;
    }
    bytes[this.at] = 0xa0 | value.length;
    this.at = at;
    return true;
  }

  private binary(value: Uint8Array): void {
    this.room(formBytesMax);
    if (value.length <= 0xff) this.view.setUint8(this.form(0xc4, 1), value.length);
    else if (value.length <= 0xffff) this.view.setUint16(this.form(0xc5, 2), value.length);
    else this.view.setUint32(this.form(0xc6, 4), value.length);
    this.raw(value);
  }

  /** The head of a list or map: in the byte itself, or with 16 or 32 bits after `long + 1` or `long + 2`. */
  private head(length: number, short: number, shortMax: number, long: number): void {
    this.room(formBytesMax);
    if (length <= shortMax) this.byte(short | length);
    else if (length <= 0xffff) this.view.setUint16(this.form(long + 1, 2), length);
    else this.view.setUint32(this.form(long + 2, 4), length);
  }

  private raw(value: Uint8Array): void {
    this.room(value.length);
    this.bytes.set(value, this.at);
    this.at += value.length;
  }

  private byte(value: number): void {
    this.room(1);
    this.bytes[this.at++] = value;
  }

  /**
   * Writes `first`, leaves `count` bytes after it, and says where they begin. The caller has made room: `this.view` is read
   * before its arguments are, and growing would replace it.
   */
  private form(first: number, count: number): number {
    this.bytes[this.at] = first;
    const from = this.at + 1;
    this.at = from + count;
    return from;
  }

  private room(count: number): void {
    if (this.at + count > this.bytes.length) this.grow(Math.max(this.bytes.length * 2, this.at + count));
  }

  private grow(size: number): void {
    const larger = new Uint8Array(size);
    larger.set(this.bytes.subarray(0, this.at));
    this.bytes = larger;
    this.view = new DataView(larger.buffer);
  }
}

function placeOf(path: string, key: string | null): string {
  return key === null ? path : `${path}.${key}`;
}

function isWellFormed(text: string): boolean {
  return (text as string & { isWellFormed(): boolean }).isWellFormed();
}
