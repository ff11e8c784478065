/**
 * Bytes as tokens: 0-255 are the bytes of UTF-8 text, then a few specials. Works on any file and has no vocabulary to
 * load, so that two processes always agree.
 */

export const specialTokens = { begin: 256, end: 257, pad: 258 } as const;

/** A multiple of eight, so that a vocabulary can be split evenly. */
export const vocabSize = 264;

/** UTF-8 bytes, after a begin token when `begin` is set. */
export function encode(text: string, begin = false): Int32Array {
  const bytes = new TextEncoder().encode(text);
  const tokens = new Int32Array(bytes.length + (begin ? 1 : 0));
  if (begin) tokens[0] = specialTokens.begin;
  tokens.set(bytes, begin ? 1 : 0);
  return tokens;
}

/** The bytes of `tokens`; specials stand for nothing. */
export function bytesOf(tokens: Iterable<number>): Uint8Array {
  const bytes: number[] = [];
  for (const token of tokens) if (token < 256) bytes.push(token);
  return Uint8Array.from(bytes);
}

/** Text of `tokens`; a byte sequence that is not UTF-8 becomes U+FFFD. */
export function decode(tokens: Iterable<number>): string {
  return new TextDecoder().decode(bytesOf(tokens));
}
