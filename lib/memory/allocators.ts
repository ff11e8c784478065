/**
 * The block allocator and the slot allocator a host engine gives to the SDK: ours (`BlockPool`, `SsmSlotPool`) or its own.
 *
 * All ranks of an instance apply the same calls in the same order and so hold identical ids (spec 4). Hashes are signed
 * 64-bit, in [1, 2^63 - 1]; -1 is "unset" and 0 is "no parent".
 */
export interface BlockAllocator {
  /** Blocks including the dummy block, which has the last id and is never handed out. */
  readonly poolSize: number;
  readonly prefixCaching: boolean;
  /** Blocks in the free bag. */
  readonly freeCount: number;
  /** Cached blocks nobody references. */
  readonly evictableCount: number;
  /** Moves the LRU clock. Under the SDK it is the index of the schedule log. */
  setClock(time: number): void;
  /** `count` blocks with one reference each, or null (nothing changed) when they are not to be had. */
  allocate(count: number): Int32Array | null;
  /** Drops one reference a listed id. @throws `BLOCK_OVER_RELEASED` with nothing changed */
  release(ids: Int32Array): void;
  /** Adds one reference a listed id. */
  retain(ids: Int32Array): void;
  /** Names complete blocks. @throws `BLOCK_HASH_CONFLICT` when a block already has another hash */
  register(ids: Int32Array, hashes: BigInt64Array, parents: BigInt64Array): void;
  /** The block that holds `hash`, or -1. */
  lookup(hash: bigint): number;
  /** Blocks of the longest leading run of `hashes` that is resident. */
  matchPrefix(hashes: BigInt64Array): Int32Array;
  /** How many of `ids` have no reference now (they are evictable and about to be pinned). */
  unreferencedCount(ids: Int32Array): number;
  /** Whether `count` blocks could be allocated after `matched` unreferenced cached blocks were pinned. */
  isMemoryAvailable(count: number, matched: number): boolean;
  /** Current generations of `ids`; null when this allocator has none. */
  generationsOf(ids: Int32Array): BigUint64Array | null;
}

/** Hands out SSM state slots. */
export interface SlotAllocator {
  /** Slots that can be handed out (`max_requests`; the dummy slot does not count). */
  readonly size: number;
  readonly freeCount: number;
  /** A slot, or -1. */
  allocate(): number;
  /** @throws `SLOT_OUT_OF_RANGE`, `SLOT_POOL_OVERFLOW` */
  free(slot: number): void;
  /** Current generations of `slots`; null when this allocator has none. */
  generationsOf(slots: Int32Array): BigUint64Array | null;
}
