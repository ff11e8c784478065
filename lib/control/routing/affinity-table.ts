/**
 * Which engines probably hold which prompt blocks: what the router assigned to them lately (spec 1.6). A hint, bounded in
 * memory: a lost entry costs a worse choice, nothing else. Losing an engine takes constant time; its entries are dead from
 * then on and swept as the table is used.
 */
import { argumentError } from '../../errors.js';
import { AffinitySegment, type FoundHolders, type SegmentTable } from './affinity-segment.js';
import { AffinityStamps } from './affinity-stamps.js';

/** How the table is laid out. */
export interface AffinityTableOptions {
  /** After this time an entry no longer counts; null: never, and entries are as recent as their recording's number. */
  readonly ttlMs: number | null;
  /** Blocks that are remembered, about, fewer when many engines hold each; beyond, the oldest are forgotten. */
  readonly blocksMax: number;
  /** Keeps peers that choose their hashes from choosing where they lie; any two 32-bit numbers, secret. */
  readonly seed?: readonly [number, number];
}

/** An engine's place in the table, while it is there. */
export type AffinityColumn = number;

/** One living entry of a block. */
export interface AffinityHolder {
  readonly column: AffinityColumn;
  /** The number of the recording, from 1; with a time to live, that of a slice of time. */
  readonly recency: number;
}

/** Engines that the table can tell apart. */
export const affinityColumnsMax = 256;

/** A segment is rebuilt in one go; that takes some tens of microseconds. */
const blocksPerSegment = 1024;
/** So that all segments are swept, one with each stamp, well before the stamps come round. */
const depthMaxMax = 14;
/** Segments that one recording may rebuild or split, and one more for each so many blocks. Then it leaves blocks out. */
const rebuildsMin = 16;
const blocksPerRebuild = 16;
const blocksMaxMax = 2 ** 26;

/** Prompt blocks and the engines that were assigned them. Hashes are those of spec 3; a hash of 0 names nothing. */
export class AffinityTable implements SegmentTable {
  /** By the first `#depth` bits of a mixed hash; a segment that was split less often stands here several times. */
  #directory: AffinitySegment[];
  #depth = 0;
  readonly #depthMax: number;
  readonly #slotsMax: number;
  readonly #stamps: AffinityStamps;
  /** For each column the smallest count that is its engine's own; what is below was an engine's before it. */
  readonly #since = new Float64Array(affinityColumnsMax);
  readonly #taken = new Uint8Array(affinityColumnsMax);
  #columnsEnd = 0;
  readonly #seed: readonly [number, number];
  readonly #expires: boolean;
  #sweepAt = 0;
  /** Of {@link AffinityTable.leadingDepths}' blocks; what was read is kept so that reading it is not optimized away. */
  #mixed = new Int32Array(64);
  #lastRead = 0;
  /** Of the recording that is under way. */
  #rebuildsLeft = 0;
  readonly #found: FoundHolders = {
    columns: new Int32Array(affinityColumnsMax),
    stamps: new Uint32Array(affinityColumnsMax),
  };

  /** @throws `OPTION_INVALID` */
  constructor({ ttlMs, blocksMax, seed = [0x2545f491, 0x4f6cdd1d] }: AffinityTableOptions) {
    if (ttlMs !== null && !(ttlMs > 0 && ttlMs < Infinity))
      throw argumentError('affinity.ttlMs', 'more than 0, or null', ttlMs, 'OPTION_INVALID');
    if (!Number.isSafeInteger(blocksMax) || blocksMax < 1 || blocksMax > blocksMaxMax)
      throw argumentError('affinity.blocksMax', `an integer in [1, ${blocksMaxMax}]`, blocksMax, 'OPTION_INVALID');
    this.#seed = seed;
    this.#expires = ttlMs !== null;
    this.#depthMax = Math.min(depthMaxMax, Math.ceil(Math.log2(Math.max(1, blocksMax / blocksPerSegment))));
    const count = 2 ** this.#depthMax;
    this.#stamps = new AffinityStamps({
      ttlMs,
      modulus: ttlMs === null ? 2 ** 32 - 1 : 2 ** 16 - 1,
      margin: count + 1,
    });
    const stampType = ttlMs === null ? Uint32Array : Uint16Array;
    this.#slotsMax = Math.ceil(blocksMax / count);
    this.#directory = [new AffinitySegment(this, stampType, 0)];
  }

  /** Blocks remembered, those of lost engines and expired ones that were not swept yet among them. */
  get size(): number {
    let size = 0;
    for (const { used } of this.#segments()) size += used;
    return size;
  }

  /** Bytes of the table's arrays. */
  get bytes(): number {
    let sum = 0;
    for (const { bytes } of this.#segments()) sum += bytes;
    return sum;
  }

  /** A column for a new engine; null when {@link affinityColumnsMax} engines are there. */
  join(): AffinityColumn | null {
    const column = this.#taken.indexOf(0);
    if (column < 0) return null;
    this.#taken[column] = 1;
    this.#columnsEnd = Math.max(this.#columnsEnd, column + 1);
    return column;
  }

  /** The engine is gone, and with it all that it held. Takes the same time whatever that is. */
  leave(column: AffinityColumn): void {
    this.#taken[column] = 0;
    this.#since[column] = this.#stamps.separate();
  }

  /** These blocks were assigned to the engine, as one recording. */
  record(column: AffinityColumn, hashes: BigInt64Array, nowMs: number): void {
    const isNew = this.#stamps.advance(nowMs);
    const stamp = this.#stamps.stampOf(this.#stamps.newest);
    const words = wordsOf(hashes);
    this.#rebuildsLeft = rebuildsMin + Math.floor(hashes.length / blocksPerRebuild);
    for (let at = 0; at < words.length; at += 2) {
      const [low, high] = [words[at]!, words[at + 1]!];
      if (low === 0 && high === 0) continue;
      const mixed = this.mix(low, high);
      let segment = this.#directory[this.#indexOf(mixed)]!;
      if (segment.isFull || !segment.canHold(column)) {
        if (this.#rebuildsLeft <= 0) continue;
        if (!segment.canHold(column)) this.#name(segment);
        if (segment.isFull) segment = this.#makeRoom(segment, mixed);
      }
      segment.put(low, high, mixed, column, stamp);
    }
    if (isNew && this.#expires) this.#sweep();
  }

  /**
   * How many leading blocks of a prompt each engine holds without a gap.
   *
   * @param depths - by column; overwritten
   */
  leadingDepths(hashes: BigInt64Array, nowMs: number, depths: Int32Array): void {
    this.#stamps.expire(nowMs);
    depths.fill(0);
    const words = wordsOf(hashes);
    const mixed = this.#readAhead(words);
    const { columns } = this.#found;
    let deepest = 0;
    for (let block = 0; 2 * block < words.length && deepest === block; block++) {
      const count = this.#find(words[2 * block]!, words[2 * block + 1]!, mixed[block]!);
      for (let at = 0; at < count; at++) {
        const column = columns[at]!;
        if (depths[column] === block) deepest = depths[column] = block + 1;
      }
    }
  }

  /**
   * The last of a prompt's blocks that any engine holds, whether or not the blocks before it are held (Gen B).
   *
   * @param recencies - by column, the recording with which an engine was assigned that block, 0 where it was not;
   * overwritten
   * @returns how many blocks lead up to it, itself included; 0 when no block is held
   */
  deepestBlock(hashes: BigInt64Array, nowMs: number, recencies: Float64Array): number {
    this.#stamps.expire(nowMs);
    recencies.fill(0);
    const words = wordsOf(hashes);
    const { columns, stamps } = this.#found;
    for (let block = hashes.length; block > 0; block--) {
      const count = this.#find(words[2 * block - 2]!, words[2 * block - 1]!);
      for (let at = 0; at < count; at++) recencies[columns[at]!] = this.#stamps.countOf(stamps[at]!) + 1;
      if (count > 0) return block;
    }
    return 0;
  }

  /** Who holds one block, by column. */
  holders(hash: bigint, nowMs: number): AffinityHolder[] {
    this.#stamps.expire(nowMs);
    const words = wordsOf(BigInt64Array.of(hash));
    const count = this.#find(words[0]!, words[1]!);
    const { columns, stamps } = this.#found;
    return Array.from({ length: count }, (_, at) => {
      return { column: columns[at]!, recency: this.#stamps.countOf(stamps[at]!) + 1 };
    }).sort((a, b) => a.column - b.column);
  }

  /** For the segments. @internal */
  get columnsEnd(): number {
    return this.#columnsEnd;
  }

  /** For the segments. @internal */
  isAlive(column: number, stamp: number): boolean {
    const count = this.#stamps.countOf(stamp);
    return count >= this.#stamps.oldest && count >= this.#since[column]!;
  }

  /** For the segments. @internal */
  age(stamp: number): number {
    return this.#stamps.newest - this.#stamps.countOf(stamp);
  }

  /** For the segments. @internal */
  slotsMaxAt(depth: number): number {
    return depth < this.#depthMax ? Infinity : this.#slotsMax;
  }

  /**
   * Brings the blocks' slots near. Looked up one after another, each of them would be waited for by itself; these reads do
   * not depend on each other, and a large table is slow for nothing but such waits.
   *
   * @returns the mixed hash of each block
   */
  #readAhead(words: Int32Array): Int32Array {
    const blocks = words.length / 2;
    if (this.#mixed.length < blocks) this.#mixed = new Int32Array(2 * blocks);
    const all = this.#mixed;
    let read = 0;
    for (let block = 0; block < blocks; block++) {
      const mixed = (all[block] = this.mix(words[2 * block]!, words[2 * block + 1]!));
      read ^= this.#directory[this.#indexOf(mixed)]!.touch(mixed);
    }
    this.#lastRead = read;
    return all;
  }

  #find(low: number, high: number, mixed = this.mix(low, high)): number {
    if (low === 0 && high === 0) return 0;
    return this.#directory[this.#indexOf(mixed)]!.find(low, high, mixed, this.#found);
  }

  /** Room in the segment where `mixed` lies: rebuilt, or split in two while there may be more of them. */
  #makeRoom(segment: AffinitySegment, mixed: number): AffinitySegment {
    const { depth } = segment;
    this.#rebuildsLeft--;
    if (depth === this.#depthMax || segment.used < this.#slotsMax) {
      segment.rebuild();
      return segment;
    }
    if (depth === this.#depth) {
      this.#directory = Array.from({ length: 2 * this.#directory.length }, (_, at) => this.#directory[at >> 1]!);
      this.#depth++;
      this.#sweepAt *= 2;
    }
    const halves = segment.split();
    const span = 2 ** (this.#depth - depth);
    const from = Math.floor(this.#indexOf(mixed) / span) * span;
    for (let at = 0; at < span; at++) this.#directory[from + at] = halves[at < span / 2 ? 0 : 1];
    const half = this.#directory[this.#indexOf(mixed)]!;
    // All of it may lie in one half.
    return half.isFull ? this.#makeRoom(half, mixed) : half;
  }

  #name(segment: AffinitySegment): void {
    this.#rebuildsLeft--;
    segment.nameHolders();
  }

  /** One segment with each new stamp: every one comes round before a dead stamp is used again. */
  #sweep(): void {
    const segment = this.#directory[this.#sweepAt]!;
    this.#sweepAt = (this.#sweepAt + 2 ** (this.#depth - segment.depth)) % this.#directory.length;
    if (segment.hasDead()) segment.rebuild();
  }

  /** Each once. */
  *#segments(): Iterable<AffinitySegment> {
    for (let at = 0; at < this.#directory.length;) {
      const segment = this.#directory[at]!;
      yield segment;
      at += 2 ** (this.#depth - segment.depth);
    }
  }

  #indexOf(mixed: number): number {
    return this.#depth === 0 ? 0 : mixed >>> (32 - this.#depth);
  }

  /**
   * For the segments: both words under the secret seed, mixed one after the other so that no two inputs cancel out without
   * it.
   *
   * @internal
   */
  mix(low: number, high: number): number {
    return finalMix(finalMix(low ^ this.#seed[0]) ^ high ^ this.#seed[1]);
  }
}

/** The finalizer of MurmurHash3 (public domain, Austin Appleby): every input bit moves every output bit. */
function finalMix(value: number): number {
  let mixed = value;
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return mixed ^ (mixed >>> 16);
}

/** Low and high word of each hash; every machine this package runs on is little-endian. */
function wordsOf(hashes: BigInt64Array): Int32Array {
  return new Int32Array(hashes.buffer, hashes.byteOffset, 2 * hashes.length);
}
