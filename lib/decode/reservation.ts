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
  const { hashes, attemptId } = request;
  const cached = blocks.matchPrefix(hashes);
  if (hashOwners.anyOwned(hashes, cached.length)) return null;
  const missing = request.promptBlocks - cached.length;
  if (!fitsInFlight(missing)) return null;
  const wanted = missing + request.continuationBlocks;
  const matched = cached.length === 0 ? 0 : blocks.unreferencedCount(cached);
  if (!blocks.isMemoryAvailable(wanted + request.growthBlocks + reserve, matched)) return null;
  if (request.needsSlot && (slots === null || slots.freeCount < 1)) return null;

  // From here on nothing may be missing: the questions above covered it, and a rank that finds otherwise has diverged.
  if (cached.length > 0) blocks.retain(cached);
  const fresh = blocks.allocate(wanted);
  if (fresh === null) {
    if (cached.length > 0) blocks.release(cached);
    throw new HandoffError('INVARIANT', 'the allocator refused blocks that it had just said were available', {
      details: { attemptId, wanted, matched },
    });
  }
  let slot: number | null = null;
  if (request.needsSlot && slots !== null) {
    slot = slots.allocate();
    if (slot < 0) {
      blocks.release(fresh);
      if (cached.length > 0) blocks.release(cached);
      throw new HandoffError('INVARIANT', 'the slot pool refused a slot that it had just said was free', {
        details: { attemptId },
      });
    }
  }
  hashOwners.reserve(hashes, cached.length, attemptId);
  const all = new Int32Array(request.promptBlocks);
  all.set(cached);
  all.set(fresh.subarray(0, missing), cached.length);
  return {
    blocks: all,
    cachedPrefixBlocks: cached.length,
    continuation: fresh.slice(missing),
    slot,
  };
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
