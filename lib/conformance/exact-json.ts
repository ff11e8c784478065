/**
 * JSON read without loss, for test vectors: `1` and `1.0` stay two things, integers keep all their digits, a key that
 * stands twice is an error. For small trusted-by-eye files; what peers send is read elsewhere.
 */
import { setOwn } from '../json.js';

/** A number that was written with a point or an exponent. */
export class JsonFloat {
  constructor(readonly value: number) {}
}

/** Integers are numbers while those hold them exactly, else bigints. */
export type ExactValue = null | boolean | number | bigint | string | JsonFloat | readonly ExactValue[] | ExactObject;
export type ExactObject = { readonly [key: string]: ExactValue };

/** Text that is no JSON; the message says where. */
export class ExactJsonError extends Error {
  override readonly name = 'ExactJsonError';
}

const depthMax = 200;

/** @throws {@link ExactJsonError} */
export function parseExactJson(text: string): ExactValue {
  const reader = new Reader(text);
  const value = reader.value(0);
  reader.end();
  return value;
}

class Reader {
  private at = 0;

  constructor(private readonly text: string) {}

  value(depth: number): ExactValue {
    if (depth > depthMax) throw this.error('less nesting');
    this.space();
    switch (this.text[this.at]) {
      case '{':
        return this.object(depth);
      case '[':
        return this.array(depth);
      case '"':
        return this.string();
      case 't':
        return this.word('true', true);
      case 'f':
        return this.word('false', false);
      case 'n':
        return this.word('null', null);
      default:
        return this.number();
    }
  }

  end(): void {
    this.space();
    if (this.at < this.text.length) throw this.error('the end');
  }

  private object(depth: number): ExactObject {
    const object: Record<string, ExactValue> = {};
    this.at++;
    if (this.takes('}')) return object;
    do {
      this.space();
      if (this.text[this.at] !== '"') throw this.error('a key');
      const key = this.string();
      if (Object.hasOwn(object, key)) throw this.error(`the key ${JSON.stringify(key)} once`);
      if (!this.takes(':')) throw this.error('":"');
      setOwn(object, key, this.value(depth + 1));
    } while (this.takes(','));
    if (!this.takes('}')) throw this.error('"," or "}"');
    return object;
  }

  private array(depth: number): ExactValue[] {
    const array: ExactValue[] = [];
    this.at++;
    if (this.takes(']')) return array;
    do array.push(this.value(depth + 1));
    while (this.takes(','));
    if (!this.takes(']')) throw this.error('"," or "]"');
    return array;
  }

  private string(): string {
    const token = this.match(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*"/y);
    if (token === null) throw this.error('a string');
    return JSON.parse(token) as string;
  }

  private number(): number | bigint | JsonFloat {
    const token = this.match(/-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y);
    if (token === null) throw this.error('a value');
    if (/[.eE]/.test(token)) return new JsonFloat(Number(token));
    const integer = BigInt(token);
    const number = Number(integer);
    return Number.isSafeInteger(number) ? number : integer;
  }

  private word<T>(word: string, value: T): T {
    if (!this.text.startsWith(word, this.at)) throw this.error('a value');
    this.at += word.length;
    return value;
  }

  private match(pattern: RegExp): string | null {
    pattern.lastIndex = this.at;
    const token = pattern.exec(this.text)?.[0] ?? null;
    if (token !== null) this.at += token.length;
    return token;
  }

  private takes(character: string): boolean {
    this.space();
    if (this.text[this.at] !== character) return false;
    this.at++;
    return true;
  }

  private space(): void {
    while (this.at < this.text.length && ' \t\n\r'.includes(this.text[this.at]!)) this.at++;
  }

  private error(expected: string): ExactJsonError {
    const line = this.text.slice(0, this.at).split('\n').length;
    const got = this.at < this.text.length ? JSON.stringify(this.text.slice(this.at, this.at + 20)) : 'the end';
    return new ExactJsonError(`line ${line}: expected ${expected}, got ${got}`);
  }
}
