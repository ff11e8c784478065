/**
 * One segment of the affinity table: open addressing with linear probing over typed arrays. A slot is a block hash and up
 * to eight holders; a block with more holders has several slots. Small enough that growing or sweeping one segment never
 * holds the router up. It knows which stamps are alive only by asking its table.
 */

/** Holders of one slot. */
const holdersPerSlot = 8;

/** Slots are filled up to this share, then the segment is rebuilt so that it is filled to `fillAfterRebuild`. */
const fillMax = 0.8;
const fillAfterRebuild = 0.67;
const slotsMin = 16;
/** A run that no honest set of hashes produces; what would lie behind it is not recorded. */
const probesMax = 1024;
/** Of a segment that holds all it may, this share stays. */
const keptWhenFull = 0.8;
const ageClasses = 64;

/** What a segment needs of its table. */
export interface SegmentTable {
  /** Whether a holder's stamp still counts. */
  isAlive(column: number, stamp: number): boolean;
  /** How many stamps ago this one was the newest. */
  age(stamp: number): number;
  /** Where probing for a hash begins, in [0, 1). */
  place(low: number, high: number): number;
}

/** Stamps: 16 bits where they expire, 32 where they count recordings. */
export type StampArrayType = typeof Uint16Array | typeof Uint32Array;

/** Told of each living holder that a lookup meets. */
export type HolderSink = (column: number, stamp: number) => void;

/** The entries whose hash falls into one range. */
export class AffinitySegment {
  /** Slots in use, dead ones too. */
  used = 0;
  #slots = 0;
  /** Low and high word of each slot's hash; both 0: the slot is free. */
  #keys = new Int32Array(0);
  #stamps: Uint16Array | Uint32Array;
  /** The column of each holder; null while holder i of every slot is column i. */
  #columns: Uint8Array | null = null;

  /**
   * @param slotsMax - living slots beyond which the oldest are dropped
   */
  constructor(
    private readonly table: SegmentTable,
    private readonly stampType: StampArrayType,
    private readonly slotsMax: number,
  ) {
    this.#stamps = new stampType(0);
  }

  /** Bytes of the arrays. */
  get bytes(): number {
    return this.#keys.byteLength + this.#stamps.byteLength + (this.#columns?.byteLength ?? 0);
  }

  /** Calls `sink` for every living holder of a hash; `place` is the table's for it. */
  visit(low: number, high: number, place: number, sink: HolderSink): void {
    const slots = this.#slots;
    if (slots === 0) return;
    let slot = Math.floor(place * slots);
    for (;;) {
      const keyLow = this.#keys[2 * slot]!;
      const keyHigh = this.#keys[2 * slot + 1]!;
      if (keyLow === 0 && keyHigh === 0) return;
      if (keyLow === low && keyHigh === high && !this.#visitSlot(slot, sink)) return;
      if (++slot === slots) slot = 0;
    }
  }

  /** @returns whether there may be a further slot for the same hash */
  #visitSlot(slot: number, sink: HolderSink): boolean {
    const from = slot * holdersPerSlot;
    const columns = this.#columns;
    let full = columns !== null;
    for (let way = 0; way < holdersPerSlot; way++) {
      const stamp = this.#stamps[from + way]!;
      if (stamp === 0) {
        full = false;
        continue;
      }
      const column = columns === null ? way : columns[from + way]!;
      if (this.table.isAlive(column, stamp)) sink(column, stamp);
    }
    return full;
  }

  /** Records that `column` holds a hash. @returns false when there was no place for it */
  put(low: number, high: number, place: number, column: number, stamp: number): boolean {
    if (this.used >= Math.floor(this.#slots * fillMax)) this.rebuild();
    if (column >= holdersPerSlot) this.#columns ??= identityColumns(this.#slots);
    return this.#put(low, high, place, column, stamp);
  }

  #put(low: number, high: number, place: number, column: number, stamp: number): boolean {
    const slots = this.#slots;
    const columns = this.#columns;
    let slot = Math.floor(place * slots);
    let reusable = -1;
    for (let probe = 0; probe < probesMax; probe++) {
      const keyLow = this.#keys[2 * slot]!;
      const keyHigh = this.#keys[2 * slot + 1]!;
      const isFree = keyLow === 0 && keyHigh === 0;
      if (isFree && reusable >= 0) break;
      if (isFree) {
        this.#keys[2 * slot] = low;
        this.#keys[2 * slot + 1] = high;
        this.used++;
      }
      if (isFree || (keyLow === low && keyHigh === high)) {
        const from = slot * holdersPerSlot;
        if (columns === null) {
          this.#stamps[from + column] = stamp;
          return true;
        }
        let full = true;
        for (let way = from; way < from + holdersPerSlot; way++) {
          const known = this.#stamps[way]!;
          if (known !== 0 && columns[way] === column) {
            this.#stamps[way] = stamp;
            return true;
          }
          if (known === 0) full = false;
          if (reusable < 0 && (known === 0 || !this.table.isAlive(columns[way]!, known))) reusable = way;
        }
        if (!full) break;
      }
      if (++slot === slots) slot = 0;
    }
    if (reusable < 0) return false;
    columns![reusable] = column;
    this.#stamps[reusable] = stamp;
    return true;
  }

  /** Whether any holder in here is dead, so that a rebuild would give memory back. */
  hasDead(): boolean {
    for (let at = 0; at < this.#stamps.length; at++) {
      const stamp = this.#stamps[at]!;
      if (stamp !== 0 && !this.table.isAlive(this.#columnAt(at), stamp)) return true;
    }
    return false;
  }

  #columnAt(at: number): number {
    return this.#columns === null ? at % holdersPerSlot : this.#columns[at]!;
  }

  /** Drops what is dead, and the oldest slots where too many live; afterwards there is room for at least one more. */
  rebuild(): void {
    const [keys, stamps, columns, slots] = [this.#keys, this.#stamps, this.#columns, this.#slots];
    const ages = this.#youngestHolders();
    const keeps = youngest(ages, this.slotsMax);
    const kept = keeps.reduce((sum, keep) => sum + keep, 0);
    const size = Math.max(slotsMin, Math.ceil((kept + 1) / fillAfterRebuild));
    this.#slots = size;
    this.#keys = new Int32Array(2 * size);
    this.#stamps = new this.stampType(holdersPerSlot * size);
    this.#columns = columns === null ? null : new Uint8Array(holdersPerSlot * size);
    this.used = 0;
    for (let slot = 0; slot < slots; slot++) {
      if (keeps[slot] === 0) continue;
      const [low, high] = [keys[2 * slot]!, keys[2 * slot + 1]!];
      const place = this.table.place(low, high);
      for (let way = 0; way < holdersPerSlot; way++) {
        const at = slot * holdersPerSlot + way;
        const column = columns === null ? way : columns[at]!;
        const stamp = stamps[at]!;
        if (stamp !== 0 && this.table.isAlive(column, stamp)) this.#put(low, high, place, column, stamp);
      }
    }
  }

  /** The age of each slot's youngest living holder; infinite where none lives. */
  #youngestHolders(): Float64Array {
    const ages = new Float64Array(this.#slots).fill(Infinity);
    for (let at = 0; at < this.#stamps.length; at++) {
      const stamp = this.#stamps[at]!;
      if (stamp === 0 || !this.table.isAlive(this.#columnAt(at), stamp)) continue;
      const slot = Math.floor(at / holdersPerSlot);
      ages[slot] = Math.min(ages[slot]!, this.table.age(stamp));
    }
    return ages;
  }
}

function identityColumns(slots: number): Uint8Array {
  return new Uint8Array(slots * holdersPerSlot).map((_, at) => at % holdersPerSlot);
}

/** Marks the entries with finite ages; beyond `most`, a good part of them is dropped, the oldest first. */
function youngest(ages: Float64Array, most: number): Uint8Array {
  const keeps = new Uint8Array(ages.length);
  let [living, ageMax] = [0, 0];
  for (const [at, age] of ages.entries()) {
    if (age === Infinity) continue;
    keeps[at] = 1;
    living++;
    ageMax = Math.max(ageMax, age);
  }
  if (living < most) return keeps;
  const classOf = (age: number): number => Math.floor((age / (ageMax + 1)) * ageClasses);
  const counts = new Uint32Array(ageClasses);
  for (const [at, age] of ages.entries()) if (keeps[at] === 1) counts[classOf(age)]!++;
  let room = Math.floor(most * keptWhenFull);
  let last = 0;
  while (counts[last]! <= room) room -= counts[last++]!;
  for (const [at, age] of ages.entries()) {
    if (keeps[at] === 0 || classOf(age) < last) continue;
    keeps[at] = classOf(age) === last && room-- > 0 ? 1 : 0;
  }
  return keeps;
}
