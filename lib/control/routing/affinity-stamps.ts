/**
 * The logical time of the affinity table: one stamp is shared by all that was recorded close together, so that an entry
 * needs no clock value of its own. Stamps come round again; liveness is judged by full counts, and what is dead must be
 * swept before its stamp returns.
 */

/** How long entries live, and how many stamps there are before the first comes again. */
export interface StampOptions {
  /** Milliseconds; null: nothing expires, and every recording has a stamp of its own (spec 1.6, Gen B's recency). */
  readonly ttlMs: number | null;
  /** Stamps are 1 … `modulus`. */
  readonly modulus: number;
  /** Stamps that must never be alive together with the newest, so that sweeping has time. */
  readonly margin: number;
}

/** An entry expires up to this part of its time early: what is recorded within it shares a stamp. */
const partsOfTtl = 4096;

/** Counts recordings (nothing expires) or short slices of time (with a time to live). */
export class AffinityStamps {
  /** The full count of the newest stamp; -1 before the first. */
  newest = -1;
  /** The full count of the oldest stamp that is not expired. */
  oldest = 0;
  readonly #ttlMs: number | null;
  readonly #modulus: number;
  readonly #aliveMax: number;
  /** When each living stamp began; only with a time to live. */
  readonly #begins: Float64Array;
  /** The stamp of `newest`: dividing takes longer than all the rest of a comparison. */
  #newestStamp = 0;
  #fresh = true;

  constructor({ ttlMs, modulus, margin }: StampOptions) {
    this.#ttlMs = ttlMs;
    this.#modulus = modulus;
    this.#aliveMax = modulus - margin;
    this.#begins = new Float64Array(ttlMs === null ? 0 : modulus);
  }

  /** The stamp (1 … modulus) of a full count. */
  stampOf(count: number): number {
    return (count % this.#modulus) + 1;
  }

  /** The full count of a stamp that is in the table: the newest that it can be. */
  countOf(stamp: number): number {
    const behind = this.#newestStamp - stamp;
    return this.newest - (behind < 0 ? behind + this.#modulus : behind);
  }

  /** Expires what is too old. @returns whether anything did */
  expire(nowMs: number): boolean {
    if (this.#ttlMs === null) return false;
    const before = this.oldest;
    while (this.oldest <= this.newest && nowMs - this.#begins[this.oldest % this.#modulus]! >= this.#ttlMs) {
      this.oldest++;
    }
    return this.oldest !== before;
  }

  /** The stamp for what is recorded now. @returns whether it is a new one */
  advance(nowMs: number): boolean {
    if (this.#ttlMs !== null) {
      this.expire(nowMs);
      const begun = this.newest < this.oldest ? -Infinity : this.#begins[this.newest % this.#modulus]!;
      if (!this.#fresh && nowMs - begun < this.#ttlMs / partsOfTtl) return false;
      this.#fresh = false;
    }
    this.newest++;
    this.#newestStamp = this.stampOf(this.newest);
    if (this.#ttlMs !== null) this.#begins[this.newest % this.#modulus] = nowMs;
    // So many stamps live that the oldest would soon come again: it is given up early.
    this.oldest = Math.max(this.oldest, this.newest - this.#aliveMax);
    return true;
  }

  /** What is recorded from now on has a later stamp than all before. @returns the smallest count that it can have */
  separate(): number {
    this.#fresh = true;
    return this.newest + 1;
  }
}
