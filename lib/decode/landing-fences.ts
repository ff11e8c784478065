/**
 * Blocks whose bytes have come but which the engine's device may not read yet. A request that shares such a block, by a
 * cached prefix, has to wait for the fence of the import that brought it.
 */
import type { Fence, PrefilledRequest } from '../engine-context.js';

export class LandingFences {
  private readonly fences = new Map<number, Fence>();

  /** `blocks` may be read once `fence` completes. */
  note(blocks: Int32Array, fence: Fence | null): void {
    for (const [block, known] of this.fences) if (known.isComplete()) this.fences.delete(block);
    if (fence === null || fence.isComplete()) return;
    for (const block of blocks) this.fences.set(block, fence);
  }

  /** The request with every fence that its blocks wait for. */
  applyTo(request: PrefilledRequest): PrefilledRequest {
    if (this.fences.size === 0) return request;
    const waits = new Set<Fence>(request.landed === null ? [] : [request.landed]);
    for (const block of request.blocks) {
      const fence = this.fences.get(block);
      if (fence !== undefined) waits.add(fence);
    }
    if (waits.size === 0) return request;
    return { ...request, landed: { isComplete: () => [...waits].every((fence) => fence.isComplete()) } };
  }
}
