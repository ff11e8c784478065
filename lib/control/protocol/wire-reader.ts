/**
 * Reads the control plane's msgpack from bytes that somebody else made. Every length is held against the bytes that are
 * left, against a depth and against a count of values before anything is allocated for it. Extension types, map keys that
 * are no strings, keys that stand twice and text that is no UTF-8 are refused.
 */
import { argumentError, HandoffError } from '../../errors.js';
import { integersFill } from './integer-run.js';
import { Float64, type Opaque, type Wire, type WireMap } from './wire-value.js';

/** Nesting of maps and lists in one message. */
export const wireDepthMax = 32;
/** Values that one message may make us build; what passes through as bytes does not count. */
const decodedValuesMax = 1 << 18;

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Short texts, keys above all, come again and again: their bytes and the string that was made of them. */
interface ShortText {
  readonly bytes: Uint8Array;
  readonly text: string;
}

const shortLengthMax = 32;
/** Two places for each hash, the one used last first: two texts of one hash do not drive each other out. */
const shortTexts: (ShortText | null)[] = new Array<null>(1024).fill(null);

export class WireReader {
  private at = 0;
  private madeView: DataView | null = null;
  private valuesLeft = decodedValuesMax;

  /** @param path - what error messages start with, for example `frames[0]` */
  constructor(
    private readonly bytes: Uint8Array,
    private readonly path: string,
  ) {}

  /** Most frames are read without it. */
  private get view(): DataView {
    const { bytes } = this;
    return (this.madeView ??= new DataView(bytes.buffer, bytes.byteOffset, bytes.length));
  }

  get atEnd(): boolean {
    return this.at === this.bytes.length;
  }

  /** @throws `MESSAGE_INVALID` when bytes are left */
  end(): void {
    if (!this.atEnd) throw this.error('the end', `${this.bytes.length - this.at} bytes more`);
  }

  /** The next byte as a number, without taking it; -1 at the end. */
  peek(): number {
    return this.bytes[this.at] ?? -1;
  }

  /** The next value as it stands, checked and not decoded. */
  opaque(depth = 0): Opaque {
    const from = this.at;
    if (from > 0 || !this.skipIntegers()) this.skip(depth);
    return from === 0 && this.atEnd ? this.bytes : this.bytes.subarray(from, this.at);
  }

  /** The bytes that are left, as they stand; they are not checked. */
  rest(): Uint8Array {
    const from = this.at;
    this.at = this.bytes.length;
    return this.bytes.subarray(from);
  }

  value(depth = 0): Wire {
    if (--this.valuesLeft < 0) throw this.error(`at most ${decodedValuesMax} values`, 'more');
    const byte = this.byte();
    if (byte <= 0x7f) return byte;
    if (byte >= 0xe0) return byte - 0x100;
    if (byte <= 0x8f) return this.map(byte & 0x0f, depth);
    if (byte <= 0x9f) return this.list(byte & 0x0f, depth);
    if (byte <= 0xbf) return this.text(byte & 0x1f);
    switch (byte) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.binary(this.length(byte - 0xc4));
      case 0xca:
        return new Float64(this.view.getFloat32(this.advance(4)));
      case 0xcb:
        return new Float64(this.view.getFloat64(this.advance(8)));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.text(this.length(byte - 0xd9));
      case 0xdc:
      case 0xdd:
        return this.list(this.length(byte - 0xdb), depth);
      case 0xde:
      case 0xdf:
        return this.map(this.length(byte - 0xdd), depth);
      default:
        return this.integer(byte);
    }
  }

  /** The head of a list, whose entries are then read one by one. */
  listLength(): number {
    const byte = this.byte();
    if (byte >= 0x90 && byte <= 0x9f) return this.fits(byte & 0x0f, 1);
    if (byte === 0xdc || byte === 0xdd) return this.fits(this.length(byte - 0xdb), 1);
    throw this.errorAt(this.at - 1, 'a list');
  }

  /** The head of a map, whose keys and values are then read one by one. */
  mapLength(): number {
    const byte = this.byte();
    if (byte >= 0x80 && byte <= 0x8f) return this.fits(byte & 0x0f, 2);
    if (byte === 0xde || byte === 0xdf) return this.fits(this.length(byte - 0xdd), 2);
    throw this.errorAt(this.at - 1, 'a map');
  }

  key(): string {
    const byte = this.byte();
    if (byte >= 0xa0 && byte <= 0xbf) return this.text(byte & 0x1f);
    if (byte >= 0xd9 && byte <= 0xdb) return this.text(this.length(byte - 0xd9));
    throw this.errorAt(this.at - 1, 'a key that is a string');
  }

  /** A list of 64-bit integers, as signed ones. */
  int64List(): BigInt64Array {
    const count = this.listLength();
    const list = new BigInt64Array(count);
    // As two words each: a bigint made for every hash costs more than all the rest.
    const words = new Int32Array(list.buffer);
    const { view } = this;
    for (let index = 0; index < count; index++) {
      const form = this.bytes[this.at];
      if (form === 0xcf || form === 0xd3) {
        const from = this.advance(9) + 1;
        const high = view.getInt32(from);
        if (form === 0xcf && high < 0) throw this.error('a signed 64-bit integer', 'a larger one');
        words[2 * index] = view.getInt32(from + 4);
        words[2 * index + 1] = high;
      } else {
        list[index] = BigInt(this.small());
      }
    }
    return list;
  }

  /** Whether the next value is a list of integers that a number holds exactly; it is taken, and not built. */
  isIntegerList(): boolean {
    const byte = this.peek();
    const isList = (byte >= 0x90 && byte <= 0x9f) || byte === 0xdc || byte === 0xdd;
    if (!isList) this.skip(0);
    let areIntegers = isList;
    for (let left = isList ? this.listLength() : 0; left > 0; left--) {
      const form = this.peek();
      if (form === 0xcf || form === 0xd3) {
        areIntegers = typeof this.value(1) === 'number' && areIntegers;
        continue;
      }
      areIntegers &&= (form >= 0 && form <= 0x7f) || form >= 0xe0 || (form >= 0xcc && form <= 0xd2);
      this.skip(1);
    }
    return areIntegers;
  }

  private small(): number {
    const from = this.at;
    const value = this.value();
    if (typeof value !== 'number') throw this.errorAt(from, 'an integer');
    return value;
  }

  /** Skips a long list of integers that is all there is. @returns false, with nothing skipped, for anything else */
  private skipIntegers(): boolean {
    const { bytes } = this;
    const isLong = bytes[0] === 0xdc && bytes.length >= 3;
    if (!isLong && !(bytes[0] === 0xdd && bytes.length >= 5)) return false;
    const count = isLong ? (bytes[1]! << 8) | bytes[2]! : new DataView(bytes.buffer, bytes.byteOffset).getUint32(1);
    if (!integersFill(bytes, isLong ? 3 : 5, count)) return false;
    this.at = bytes.length;
    return true;
  }

  private skip(depth: number): void {
    const byte = this.byte();
    if (byte <= 0x7f || byte >= 0xe0) return;
    if (byte <= 0x8f) return this.skipMany((byte & 0x0f) * 2, depth);
    if (byte <= 0x9f) return this.skipMany(byte & 0x0f, depth);
    if (byte <= 0xbf) return void this.advance(byte & 0x1f);
    switch (byte) {
      case 0xc0:
      case 0xc2:
      case 0xc3:
        return;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return void this.advance(this.length(byte - 0xc4));
      case 0xcc:
      case 0xd0:
        return void this.advance(1);
      case 0xcd:
      case 0xd1:
        return void this.advance(2);
      case 0xca:
      case 0xce:
      case 0xd2:
        return void this.advance(4);
      case 0xcb:
      case 0xcf:
      case 0xd3:
        return void this.advance(8);
      case 0xd9:
      case 0xda:
      case 0xdb:
        return void this.advance(this.length(byte - 0xd9));
      case 0xdc:
      case 0xdd:
        return this.skipMany(this.length(byte - 0xdb), depth);
      case 0xde:
      case 0xdf:
        return this.skipMany(this.length(byte - 0xdd) * 2, depth);
      default:
        throw this.errorAt(this.at - 1, 'a value');
    }
  }

  private skipMany(count: number, depth: number): void {
    this.nested(depth);
    this.fits(count, 1);
    const { bytes } = this;
    const end = bytes.length;
    let { at } = this;
    for (let left = count; left > 0; left--) {
      // Token ids and block ids, the long lists, are these three forms.
      const byte = at < end ? bytes[at]! : 0xc1;
      if (byte === 0xcd && at + 3 <= end) at += 3;
      else if (byte === 0xce && at + 5 <= end) at += 5;
      else if (byte <= 0x7f) at += 1;
      else {
        this.at = at;
        this.skip(depth + 1);
        at = this.at;
      }
    }
    this.at = at;
  }

  private list(count: number, depth: number): Wire[] {
    this.nested(depth);
    this.fits(count, 1);
    const list: Wire[] = [];
    for (let index = 0; index < count; index++) list.push(this.value(depth + 1));
    return list;
  }

  private map(count: number, depth: number): WireMap {
    this.nested(depth);
    this.fits(count, 2);
    const map = new Map<string, Wire>();
    for (let index = 0; index < count; index++) {
      const key = this.key();
      if (map.has(key)) throw this.error(`the key ${JSON.stringify(key.slice(0, 64))} once`, 'it twice');
      map.set(key, this.value(depth + 1));
    }
    return map;
  }

  private integer(byte: number): number | bigint {
    switch (byte) {
      case 0xcc:
        return this.view.getUint8(this.advance(1));
      case 0xcd:
        return this.view.getUint16(this.advance(2));
      case 0xce:
        return this.view.getUint32(this.advance(4));
      case 0xcf:
        return narrowed(this.view.getBigUint64(this.advance(8)));
      case 0xd0:
        return this.view.getInt8(this.advance(1));
      case 0xd1:
        return this.view.getInt16(this.advance(2));
      case 0xd2:
        return this.view.getInt32(this.advance(4));
      case 0xd3:
        return narrowed(this.view.getBigInt64(this.advance(8)));
      default:
        throw this.errorAt(this.at - 1, 'a value');
    }
  }

  private text(length: number): string {
    const from = this.advance(length);
    if (length <= shortLengthMax) return this.shortText(from, length);
    try {
      return utf8.decode(this.bytes.subarray(from, this.at));
    } catch {
      throw this.errorAt(from, 'text in UTF-8');
    }
  }

  private shortText(from: number, length: number): string {
    const { bytes } = this;
    let hash = length;
    for (let index = from; index < this.at; index++) hash = (Math.imul(hash, 31) + bytes[index]!) & 511;
    const place = 2 * hash;
    const first = shortTexts[place]!;
    if (first !== null && this.isAt(from, length, first.bytes)) return first.text;
    const second = shortTexts[place + 1]!;
    shortTexts[place + 1] = first;
    if (second !== null && this.isAt(from, length, second.bytes)) {
      shortTexts[place] = second;
      return second.text;
    }
    let text: string;
    try {
      text = utf8.decode(bytes.subarray(from, this.at));
    } catch {
      throw this.errorAt(from, 'text in UTF-8');
    }
    shortTexts[place] = { bytes: new Uint8Array(bytes.subarray(from, this.at)), text };
    return text;
  }

  private isAt(from: number, length: number, expected: Uint8Array): boolean {
    const { bytes } = this;
    if (expected.length !== length) return false;
    for (let index = 0; index < length; index++) if (expected[index] !== bytes[from + index]) return false;
    return true;
  }

  /** A length in 1, 2 or 4 bytes, for 0, 1 and 2. */
  private length(form: number): number {
    const { bytes } = this;
    const from = this.advance(2 ** form);
    if (form === 0) return bytes[from]!;
    const high = (bytes[from]! << 8) | bytes[from + 1]!;
    return form === 1 ? high : high * 2 ** 16 + ((bytes[from + 2]! << 8) | bytes[from + 3]!);
  }

  private binary(length: number): Uint8Array {
    const from = this.advance(length);
    return new Uint8Array(this.bytes.subarray(from, this.at));
  }

  private byte(): number {
    return this.bytes[this.advance(1)]!;
  }

  private advance(count: number): number {
    const from = this.at;
    if (count > this.bytes.length - from) throw this.error(`${count} bytes more`, `${this.bytes.length - from}`);
    this.at = from + count;
    return from;
  }

  private fits(count: number, bytesEach: number): number {
    if (count * bytesEach > this.bytes.length - this.at)
      throw this.error(`at most ${this.bytes.length - this.at} bytes of entries`, `${count} entries`);
    return count;
  }

  private nested(depth: number): void {
    if (depth >= wireDepthMax) throw this.error(`at most ${wireDepthMax} levels`, 'more');
  }

  private error(expected: string, got: string): HandoffError {
    return new HandoffError('MESSAGE_INVALID', `${this.path} at byte ${this.at}: expected ${expected}, got ${got}`, {
      details: { path: this.path },
    });
  }

  private errorAt(offset: number, expected: string): HandoffError {
    const byte = this.bytes[offset];
    return argumentError(`${this.path} at byte ${offset}`, expected, byte, 'MESSAGE_INVALID');
  }
}

function narrowed(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}
