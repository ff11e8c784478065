/**
 * A step of an instance that has nothing to do, while others need the experts that it holds: one token of no request,
 * in the pool's dummy block and in the dummy slot, neither of which any request ever gets. So it needs no free memory,
 * and what other instances compute does not depend on it.
 */
import type { Piece } from './batch.js';
import type { EngineMemory } from './engine-memory.js';

/** Clears the dummy slot, too: what runs through it does not add up over the steps. */
export function dummyPiece({ blocks, dummySlot, ssmMemory }: EngineMemory): Piece {
  if (dummySlot !== null) ssmMemory!.zero(dummySlot);
  return {
    tokens: Int32Array.of(0),
    from: 0,
    count: 1,
    position: 0,
    blocks: Int32Array.of(blocks.poolSize - 1),
    slot: dummySlot ?? -1,
    logitsFrom: 1,
    snapshots: null,
  };
}
