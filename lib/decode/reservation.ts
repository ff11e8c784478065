/**
 * Reserve everything or touch nothing (law 3): blocks, continuation blocks, slot and hashes of one import at once.
 *
 * A pure function of allocators that are equal on all ranks, so every rank reserves the same ids at the same log index.
 */
import type { BlockAllocator, SlotAllocator } from '../memory/allocators.js';
import { HandoffError } from '../errors.js';
import type { HashOwners } from './hash-owners.js';

export interface ReservationRequest {
  readonly attemptId: number;
  /** Hashes of the complete blocks of the prompt. */
  readonly hashes: BigInt64Array;
  /** Blocks of the whole prompt, the partial last one included: ceil(P / B). */
  readonly promptBlocks: number;
  /** ceil((P + R) / B) - ceil(P / B), R being the resume tokens (spec 6.3). */
  readonly continuationBlocks: number;
  /** Blocks it may need after admission, until its token limit. */
  readonly growthBlocks: number;
  readonly needsSlot: boolean;
}

export interface Reservation {
  /** Blocks of the whole prompt in sequence order; the first `cachedPrefixBlocks` were already here. */
  readonly blocks: Int32Array;
  readonly cachedPrefixBlocks: number;
  readonly continuation: Int32Array;
  /** Null for attention-only models. */
  readonly slot: number | null;
}

/**
 * The reservation, or null with nothing changed.
 *
 * @param reserve - blocks to leave alone: what running requests and earlier imports may still need.
 * @param fitsInFlight - whether that many more blocks may be on their way at once.
 */
export function tryReserve(
  request: ReservationRequest,
  blocks: BlockAllocator,
  slots: SlotAllocator | null,
  hashOwners: HashOwners,
  reserve: number,
  fitsInFlight: (missingBlocks: number) => boolean,
): Reservation | null {
  const { hashes } = request;
  const cached = blocks.matchPrefix(hashes);
  if (hashOwners.anyOwned(hashes, cached.length)) return null;
  const missing = request.promptBlocks - cached.length;
  if (!fitsInFlight(missing)) return null;
  const wanted = missing + request.continuationBlocks;
  const matched = cached.length === 0 ? 0 : blocks.unreferencedCount(cached);
  if (!blocks.isMemoryAvailable(wanted + request.growthBlocks + reserve, matched)) return null;
  if (request.needsSlot && (slots === null || slots.freeCount < 1)) return null;

  // From here on nothing may be missing: the questions above covered it, and a rank that finds otherwise has diverged.
  const held: Held = { cached: null, fresh: null, slot: null };
  try {
    return take(request, cached, wanted, missing, held, blocks, slots, hashOwners);
  } catch (error) {
    if (held.fresh !== null) blocks.release(held.fresh);
    if (held.cached !== null) blocks.release(held.cached);
    if (held.slot !== null) slots?.free(held.slot);
    throw error;
  }
}

/** What is already taken, should something throw before all is. */
interface Held {
  cached: Int32Array | null;
  fresh: Int32Array | null;
  slot: number | null;
}

function take(
  { attemptId, hashes, promptBlocks, needsSlot }: ReservationRequest,
  cached: Int32Array,
  wanted: number,
  missing: number,
  held: Held,
  blocks: BlockAllocator,
  slots: SlotAllocator | null,
  hashOwners: HashOwners,
): Reservation {
  if (cached.length > 0) {
    blocks.retain(cached);
    held.cached = cached;
  }
  held.fresh = blocks.allocate(wanted);
  const { fresh } = held;
  if (!(fresh instanceof Int32Array) || fresh.length !== wanted) {
    throw new HandoffError('INVARIANT', 'the allocator did not give the blocks that it had just said were available', {
      details: { attemptId, wanted },
    });
  }
  if (needsSlot && slots !== null) {
    const slot = slots.allocate();
    if (slot < 0) {
      throw new HandoffError('INVARIANT', 'the slot pool refused a slot that it had just said was free', {
        details: { attemptId },
      });
    }
    held.slot = slot;
  }
  hashOwners.reserve(hashes, cached.length, attemptId);
  const all = new Int32Array(promptBlocks);
  all.set(cached);
  all.set(fresh.subarray(0, missing), cached.length);
  return { blocks: all, cachedPrefixBlocks: cached.length, continuation: fresh.slice(missing), slot: held.slot };
}

/** Gives back what a reservation holds. */
export function releaseReservation(
  reservation: Reservation,
  blocks: BlockAllocator,
  slots: SlotAllocator | null,
): void {
  if (reservation.blocks.length > 0) blocks.release(reservation.blocks);
  if (reservation.continuation.length > 0) blocks.release(reservation.continuation);
  if (reservation.slot !== null && slots !== null) slots.free(reservation.slot);
}
