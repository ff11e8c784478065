/** The last so many of what peers have named: a set that nobody can make grow beyond that. */

const most = 65_536;

export class Remembered<T> {
  readonly #values = new Set<T>();

  /** Named once more it counts as the latest. */
  add(value: T): void {
    this.#values.delete(value);
    this.#values.add(value);
    if (this.#values.size <= most) return;
    for (const oldest of this.#values) {
      this.#values.delete(oldest);
      return;
    }
  }

  has(value: T): boolean {
    return this.#values.has(value);
  }
}
