/**
 * Living things by their ids, in the order in which they came, in arrays that stay. A `Map` whose entries come and go makes
 * a table every few hundred of them; each dead table that grew old keeps its successor alive, and with it everything that
 * was in that. Holds what it is given and nothing that was taken out.
 */

/** Places that a new table has; a power of two. */
const placesMin = 8;
const free = -1;

/** A table by ids that are integers in [0, 2^53 - 1]. */
export class IdTable<T extends object> {
  #size = 0;
  /** By place, in the order of their coming: an id, and what it names or null once that is gone. */
  #ids: number[] = [];
  #entries: (T | null)[] = [];
  /** Places in use, and before which of them nothing lives. */
  #used = 0;
  #first = 0;
  /** Open addressing over places, twice as many as there are. */
  #places = new Int32Array(2 * placesMin).fill(free);

  get size(): number {
    return this.#size;
  }

  get(id: number): T | undefined {
    const place = this.#places[this.#find(id)]!;
    return place === free ? undefined : this.#entries[place]!;
  }

  has(id: number): boolean {
    return this.#places[this.#find(id)] !== free;
  }

  /** The place of what has this id already stays. */
  set(id: number, entry: T): void {
    let at = this.#find(id);
    if (this.#places[at] !== free) {
      this.#entries[this.#places[at]!] = entry;
      return;
    }
    if (2 * this.#used === this.#places.length) {
      this.#makeRoom();
      at = this.#find(id);
    }
    this.#places[at] = this.#used;
    this.#ids[this.#used] = id;
    this.#entries[this.#used++] = entry;
    this.#size++;
  }

  /** @returns whether it was there */
  delete(id: number): boolean {
    const places = this.#places;
    let hole = this.#find(id);
    const place = places[hole]!;
    if (place === free) return false;
    this.#entries[place] = null;
    this.#size--;
    // What was displaced by the one that is gone moves up, so that every probe still ends at the first free place.
    for (let at = this.#after(hole); places[at] !== free; at = this.#after(at)) {
      const home = this.#homeOf(this.#ids[places[at]!]!);
      const isBehindHole = hole <= at ? home <= hole || home > at : home <= hole && home > at;
      if (!isBehindHole) continue;
      places[hole] = places[at]!;
      hole = at;
    }
    places[hole] = free;
    if (this.#size === 0) this.#used = this.#first = 0;
    return true;
  }

  /** The one that came first; null when there is none. */
  first(): T | null {
    for (; this.#first < this.#used; this.#first++) {
      const entry = this.#entries[this.#first]!;
      if (entry !== null) return entry;
    }
    return null;
  }

  /** Those that are there now, in the order in which they came. */
  values(): T[] {
    return this.#entries.slice(this.#first, this.#used).filter((entry) => entry !== null);
  }

  /** Closes the gaps; where few are, there are twice as many places afterwards. */
  #makeRoom(): void {
    const places = this.#places.length / 2;
    if (2 * this.#size > places) this.#places = new Int32Array(4 * places);
    this.#places.fill(free);
    const [ids, entries, used] = [this.#ids, this.#entries, this.#used];
    let to = 0;
    for (let from = this.#first; from < used; from++) {
      const entry = entries[from]!;
      if (entry === null) continue;
      ids[to] = ids[from]!;
      entries[to] = entry;
      this.#places[this.#find(ids[to]!)] = to++;
    }
    entries.fill(null, to, used);
    this.#used = to;
    this.#first = 0;
  }

  /** Where the id's place stands, or the free one where it would. */
  #find(id: number): number {
    const [places, ids] = [this.#places, this.#ids];
    let at = this.#homeOf(id);
    for (let place = places[at]!; place !== free && ids[place] !== id; place = places[at]!) at = this.#after(at);
    return at;
  }

  #homeOf(id: number): number {
    const low = id >>> 0;
    const high = ((id - low) / 2 ** 32) | 0;
    return (((Math.imul(low ^ Math.imul(high, 0x85ebca6b), 0x9e3779b1) >>> 0) / 2 ** 32) * this.#places.length) | 0;
  }

  #after(at: number): number {
    return at + 1 === this.#places.length ? 0 : at + 1;
  }
}
