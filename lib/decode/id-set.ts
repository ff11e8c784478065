/**
 * A set of ids that are minted ascending and nearly all end up in it: kept as runs, so that it stays as small as the
 * number of ids still missing, however many are in.
 */
export class IdSet {
  /** Run `i` holds `#first[i] … #last[i]`; runs ascend and never touch. */
  readonly #first: number[] = [];
  readonly #last: number[] = [];

  /** Runs of neighbouring ids: what this set costs. */
  get runCount(): number {
    return this.#first.length;
  }

  has(id: number): boolean {
    const run = this.#runAtOrBefore(id);
    return run >= 0 && id <= this.#last[run]!;
  }

  /** False when it was in already. */
  add(id: number): boolean {
    const run = this.#runAtOrBefore(id);
    if (run >= 0 && id <= this.#last[run]!) return false;
    const joinsBefore = run >= 0 && this.#last[run] === id - 1;
    const joinsAfter = this.#first[run + 1] === id + 1;
    if (joinsBefore && joinsAfter) {
      this.#last[run] = this.#last[run + 1]!;
      this.#first.splice(run + 1, 1);
      this.#last.splice(run + 1, 1);
    } else if (joinsBefore) {
      this.#last[run] = id;
    } else if (joinsAfter) {
      this.#first[run + 1] = id;
    } else {
      this.#first.splice(run + 1, 0, id);
      this.#last.splice(run + 1, 0, id);
    }
    return true;
  }

  /** The last run that starts at or before `id`, or -1. New ids are the highest, so the end is looked at first. */
  #runAtOrBefore(id: number): number {
    let low = 0;
    let high = this.#first.length - 1;
    if (high < 0 || this.#first[high]! <= id) return high;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#first[middle]! <= id) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}
