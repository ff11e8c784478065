/**
 * One segment of the affinity table: open addressing with linear probing over typed arrays. A slot is a block hash and some
 * holders; a block with more holders has several slots. So small that growing or sweeping one is over in some microseconds.
 * It knows which stamps are alive only by asking its table.
 */

/** Holders of one slot: columns 0 to 7 in their order, or any columns, which are then named beside the stamps. */
const orderedHolders = 8;
const namedHolders = 4;

/** Slots are filled up to this share, then the segment is rebuilt so that it is filled to `fillAfterRebuild`: at most 39 bytes a slot. */
const fillMax = 0.85;
const fillAfterRebuild = 0.63;
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
  /** Columns from here on hold nothing. */
  readonly columnsEnd: number;
  /** How many stamps ago this one was the newest. */
  age(stamp: number): number;
  /** Living slots of a segment beyond which the oldest are dropped; infinite where it can be split. */
  slotsMaxAt(depth: number): number;
  /** 32 bits that say where a hash lies: the first ones in which segment, the next ones where in it. */
  mix(low: number, high: number): number;
}

/** Stamps: 16 bits where they expire, 32 where they count recordings. */
export type StampArrayType = typeof Uint16Array | typeof Uint32Array;

/** Living holders that a lookup found; room for one of each column. */
export interface FoundHolders {
  readonly columns: Int32Array;
  readonly stamps: Uint32Array;
}

/** The entries whose mixed hash begins with the same bits. */
export class AffinitySegment {
  /** Slots in use, dead ones too. */
  used = 0;
  #slots = 0;
  /** Low and high word of each slot's hash; both 0: the slot is free. */
  #keys = new Int32Array(0);
  #stamps: Uint16Array | Uint32Array;
  /** The column of each holder; null while the holders of every slot are columns 0 to 7. */
  #columns: Uint8Array | null = null;
  /** Holders of each slot. */
  #ways = orderedHolders;
  /** The fill at which it is rebuilt, in slots. */
  #usedMax = 0;

  /**
   * @param depth - how many bits of their mixed hash all entries share
   */
  constructor(
    private readonly table: SegmentTable,
    private readonly stampType: StampArrayType,
    readonly depth: number,
  ) {
    this.#stamps = new stampType(0);
  }

  /** Bytes of the arrays. */
  get bytes(): number {
    return this.#keys.byteLength + this.#stamps.byteLength + (this.#columns?.byteLength ?? 0);
  }

  /**
   * Writes every living holder of a hash to `found`; `mixed` is the table's for it.
   *
   * @returns how many there are
   */
  find(low: number, high: number, mixed: number, found: FoundHolders): number {
    const slots = this.#slots;
    if (slots === 0) return 0;
    const [keys, stamps, columns, ways] = [this.#keys, this.#stamps, this.#columns, this.#ways];
    let count = 0;
    let slot = this.#slotOf(mixed, slots);
    for (;;) {
      const keyLow = keys[2 * slot]!;
      const keyHigh = keys[2 * slot + 1]!;
      if (keyLow === 0 && keyHigh === 0) return count;
      if (keyLow === low && keyHigh === high) {
        const from = slot * ways;
        if (columns === null) return this.#findOrdered(from, found);
        let isFull = true;
        for (let at = from; at < from + ways; at++) {
          const stamp = stamps[at]!;
          if (stamp === 0) {
            isFull = false;
            continue;
          }
          const column = columns[at]!;
          if (!this.table.isAlive(column, stamp)) continue;
          found.columns[count] = column;
          found.stamps[count++] = stamp;
        }
        if (!isFull) return count;
      }
      if (++slot === slots) slot = 0;
    }
  }

  /** The living holders of the one slot that a block has while holders are ordered. */
  #findOrdered(from: number, found: FoundHolders): number {
    const [stamps, table] = [this.#stamps, this.table];
    const end = Math.min(orderedHolders, table.columnsEnd);
    let count = 0;
    for (let column = 0; column < end; column++) {
      const stamp = stamps[from + column]!;
      if (stamp === 0 || !table.isAlive(column, stamp)) continue;
      found.columns[count] = column;
      found.stamps[count++] = stamp;
    }
    return count;
  }

  /** Reads where a hash would lie, and nothing more: see the table's `#readAhead`. */
  touch(mixed: number): number {
    const slots = this.#slots;
    if (slots === 0) return 0;
    const slot = this.#slotOf(mixed, slots);
    return this.#keys[2 * slot]! ^ this.#stamps[slot * this.#ways]!;
  }

  /** Whether it has to be rebuilt or split before anything more is recorded. */
  get isFull(): boolean {
    return this.used >= this.#usedMax;
  }

  #slotOf(mixed: number, slots: number): number {
    return Math.floor((((mixed << this.depth) >>> 0) / 2 ** 32) * slots);
  }

  /** Whether every slot has a place for `column`; otherwise {@link nameHolders} comes first. */
  canHold(column: number): boolean {
    return column < orderedHolders || this.#columns !== null;
  }

  /** From now on any column can hold a hash. */
  nameHolders(): void {
    this.rebuild(namedHolders);
  }

  /** Records that `column`, which it can hold, holds a hash; it is not full. @returns false when there was no place for it */
  put(low: number, high: number, mixed: number, column: number, stamp: number): boolean {
    const [keys, stamps, columns, ways, slots] = [this.#keys, this.#stamps, this.#columns, this.#ways, this.#slots];
    let slot = this.#slotOf(mixed, slots);
    let reusable = -1;
    for (let probe = 0; probe < probesMax; probe++) {
      const keyLow = keys[2 * slot]!;
      const keyHigh = keys[2 * slot + 1]!;
      const isFree = keyLow === 0 && keyHigh === 0;
      if (isFree && reusable >= 0) break;
      if (isFree) {
        keys[2 * slot] = low;
        keys[2 * slot + 1] = high;
        this.used++;
      }
      if (isFree || (keyLow === low && keyHigh === high)) {
        const from = slot * ways;
        if (columns === null) {
          stamps[from + column] = stamp;
          return true;
        }
        let full = true;
        for (let at = from; at < from + ways; at++) {
          const known = stamps[at]!;
          if (known !== 0 && columns[at] === column) {
            stamps[at] = stamp;
            return true;
          }
          if (known === 0) full = false;
          if (reusable < 0 && (known === 0 || !this.table.isAlive(columns[at]!, known))) reusable = at;
        }
        if (!full) break;
      }
      if (++slot === slots) slot = 0;
    }
    if (reusable < 0) return false;
    columns![reusable] = column;
    stamps[reusable] = stamp;
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
    return this.#columns === null ? at % orderedHolders : this.#columns[at]!;
  }

  /** Drops what is dead, and the oldest slots where too many live; afterwards there is room for at least one more. */
  rebuild(ways = this.#ways): void {
    const extra = this.#findAges(ways);
    this.#refill(this, markYoungest(this.#slots, this.table.slotsMaxAt(this.depth)), extra, ways);
  }

  /** Two segments with what lives in this one, by the next bit of its mixed hash. */
  split(): [AffinitySegment, AffinitySegment] {
    const extra = this.#findAges(this.#ways);
    const halves = [0, 1].map((bit) => {
      const half = new AffinitySegment(this.table, this.stampType, this.depth + 1);
      let kept = 0;
      for (let slot = 0; slot < this.#slots; slot++) {
        keeps[slot] = 0;
        if (ages[slot] === Infinity) continue;
        const mixed = this.table.mix(this.#keys[2 * slot]!, this.#keys[2 * slot + 1]!);
        if (((mixed >>> (31 - this.depth)) & 1) === bit) kept += keeps[slot] = 1;
      }
      half.#refill(this, kept, extra, this.#ways);
      return half;
    });
    return halves as [AffinitySegment, AffinitySegment];
  }

  /** Takes over the slots of `source` that {@link keeps} marks, `kept` in all, in arrays of its own. */
  #refill(source: AffinitySegment, kept: number, extra: number, ways: number): void {
    const [keys, stamps, columns, slots] = [source.#keys, source.#stamps, source.#columns, source.#slots];
    const waysBefore = source.#ways;
    const size = Math.max(slotsMin, Math.ceil((kept + extra + 1) / fillAfterRebuild));
    this.#slots = size;
    this.#ways = ways;
    this.#usedMax = Math.floor(size * fillMax);
    const { BYTES_PER_ELEMENT: stampBytes } = this.stampType;
    const stampsFrom = 8 * size;
    const columnsFrom = stampsFrom + stampBytes * ways * size;
    const areNamed = ways === namedHolders;
    // One buffer for all three: whoever collects garbage goes through every buffer, and a large table has many segments.
    const buffer = new ArrayBuffer(columnsFrom + (areNamed ? ways * size : 0));
    this.#keys = new Int32Array(buffer, 0, 2 * size);
    this.#stamps = new this.stampType(buffer, stampsFrom, ways * size);
    this.#columns = areNamed ? new Uint8Array(buffer, columnsFrom) : null;
    this.used = 0;
    for (let slot = 0; slot < slots; slot++) {
      if (keeps[slot] === 0) continue;
      const [low, high] = [keys[2 * slot]!, keys[2 * slot + 1]!];
      const mixed = this.table.mix(low, high);
      for (let way = 0, at = slot * waysBefore; way < waysBefore; way++, at++) {
        const stamp = stamps[at]!;
        if (stamp === 0) continue;
        const column = columns === null ? way : columns[at]!;
        if (this.table.isAlive(column, stamp)) this.put(low, high, mixed, column, stamp);
      }
    }
  }

  /**
   * Writes the age of each slot's youngest living holder to {@link ages}, infinite where none lives.
   *
   * @returns how many slots more than now it takes when a slot has room for `ways` holders only
   */
  #findAges(ways: number): number {
    const [stamps, table, slots] = [this.#stamps, this.table, this.#slots];
    if (ages.length < slots) {
      ages = new Float64Array(2 * slots);
      keeps = new Uint8Array(2 * slots);
    }
    let extra = 0;
    for (let slot = 0, at = 0; slot < slots; slot++) {
      let age = Infinity;
      let holders = 0;
      for (let way = 0; way < this.#ways; way++, at++) {
        const stamp = stamps[at]!;
        if (stamp === 0 || !table.isAlive(this.#columnAt(at), stamp)) continue;
        holders++;
        age = Math.min(age, table.age(stamp));
      }
      ages[slot] = age;
      if (holders > ways) extra += Math.ceil(holders / ways) - 1;
    }
    return extra;
  }
}

/** Of the segment that is being rebuilt, by slot. Both stay from one to the next: they would be garbage at once. */
let ages = new Float64Array(0);
let keeps = new Uint8Array(0);

/**
 * Marks the slots with finite ages in {@link keeps}; beyond `most`, a good part of them is dropped, the oldest first.
 *
 * @returns how many are marked
 */
function markYoungest(slots: number, most: number): number {
  let [living, ageMax] = [0, 0];
  for (let at = 0; at < slots; at++) {
    const age = ages[at]!;
    keeps[at] = age === Infinity ? 0 : 1;
    if (age === Infinity) continue;
    living++;
    if (age > ageMax) ageMax = age;
  }
  if (living < most) return living;
  const classOf = (age: number): number => Math.floor((age / (ageMax + 1)) * ageClasses);
  const counts = new Uint32Array(ageClasses);
  for (let at = 0; at < slots; at++) if (keeps[at] === 1) counts[classOf(ages[at]!)]!++;
  let room = Math.floor(most * keptWhenFull);
  let last = 0;
  while (counts[last]! <= room) room -= counts[last++]!;
  for (let at = 0; at < slots; at++) {
    const age = ages[at]!;
    if (keeps[at] === 0 || classOf(age) < last || (classOf(age) === last && room-- > 0)) continue;
    keeps[at] = 0;
    living--;
  }
  return living;
}
