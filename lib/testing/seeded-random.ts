/**
 * A small random generator with a seed: the same seed gives the same run on every machine and version of Node.
 *
 * It is sfc32 (Chris Doty-Humphrey's "small fast counter", 128 bits of state), seeded by splitmix32. Not for secrets.
 */
import { argumentError } from '../errors.js';

/** Draws integers, chances, picks and shuffles from one seed. */
export class SeededRandom {
  #a: number;
  #b: number;
  #c: number;
  #counter = 1;

  /** @param seed - any safe integer */
  constructor(readonly seed: number) {
    if (!Number.isSafeInteger(seed)) throw argumentError('seed', 'an integer', seed);
    let mixed = seed | 0;
    const splitmix32 = (): number => {
      mixed = (mixed + 0x9e3779b9) | 0;
      let word = mixed ^ (mixed >>> 16);
      word = Math.imul(word, 0x21f0aaad);
      word ^= word >>> 15;
      word = Math.imul(word, 0x735a2d97);
      return word ^ (word >>> 15);
    };
    this.#a = splitmix32();
    mixed ^= Math.floor(seed / 2 ** 32);
    this.#b = splitmix32();
    this.#c = splitmix32();
    for (let i = 0; i < 12; i++) this.uint32();
  }

  /** An integer in [0, 2^32). */
  uint32(): number {
    const sum = (((this.#a + this.#b) | 0) + this.#counter) | 0;
    this.#counter = (this.#counter + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = ((this.#c << 21) | (this.#c >>> 11)) + sum;
    this.#c |= 0;
    return sum >>> 0;
  }

  /** A float in [0, 1) with 32 random bits. */
  float(): number {
    return this.uint32() / 2 ** 32;
  }

  /**
   * An integer in [min, max], both ends included.
   *
   * @throws `ARGUMENT_INVALID` when the range is empty or wider than 2^32
   */
  int(min: number, max: number): number {
    if (!Number.isSafeInteger(min)) throw argumentError('min', 'an integer', min);
    if (!Number.isSafeInteger(max) || max < min || max - min >= 2 ** 32) {
      throw argumentError('max', `an integer in [${min}, ${min + 2 ** 32 - 1}]`, max);
    }
    return min + Math.floor(this.float() * (max - min + 1));
  }

  /** True with probability `p`; 0 never, 1 always. */
  chance(p: number): boolean {
    return this.float() < p;
  }

  /** @throws `ARGUMENT_INVALID` when `items` is empty */
  pick<T>(items: readonly T[]): T {
    if (items.length === 0) throw argumentError('items', 'at least one item', items);
    return items[this.int(0, items.length - 1)]!;
  }

  /** A new array with the same items in random order. */
  shuffle<T>(items: readonly T[]): T[] {
    const shuffled = items.slice();
    for (let i = shuffled.length - 1; i > 0; i--) {
      const j = this.int(0, i);
      const item = shuffled[i]!;
      shuffled[i] = shuffled[j]!;
      shuffled[j] = item;
    }
    return shuffled;
  }

  /** An independent generator: more draws here do not disturb the draws there. */
  fork(): SeededRandom {
    return new SeededRandom(this.uint32());
  }
}
