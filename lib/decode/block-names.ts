/** Hashes for imported blocks, so that later requests find them. */
import type { BlockAllocator } from '../memory/allocators.js';
import type { Reservation } from './reservation.js';

/**
 * Names the complete blocks that were imported, up to the first that somebody else named meanwhile: its successors would
 * have another block as parent, which could then be evicted under them.
 */
export function nameImportedBlocks(
  allocator: BlockAllocator,
  hashes: BigInt64Array,
  { blocks, cachedPrefixBlocks: from }: Reservation,
): void {
  let to = from;
  while (to < hashes.length && allocator.lookup(hashes[to] as bigint) < 0) to += 1;
  if (to === from) return;
  const parents = BigInt64Array.from({ length: to - from }, (_, i) => hashes[from + i - 1] ?? 0n);
  allocator.register(blocks.slice(from, to), hashes.slice(from, to), parents);
}
