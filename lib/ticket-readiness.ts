/**
 * Tickets whose state is not in place yet: their fence has not fired. Such a ticket must not leave the process, since a
 * peer that reads on its own cannot see the fence; inside the process an import of it waits.
 */
import type { Fence } from './engine-context.js';

const fences = new WeakMap<object, Fence>();

/** Prefill: ties a ticket's metadata to the fence that completes when its state is in place. */
export function markUnready(kvMeta: object, ready: Fence): void {
  fences.set(kvMeta, ready);
}

/** The fence that must complete before this metadata's state may be read; null when there is none to wait for. */
export function unreadyFence(kvMeta: object): Fence | null {
  const fence = fences.get(kvMeta);
  if (fence === undefined) return null;
  if (!fence.isComplete()) return fence;
  fences.delete(kvMeta);
  return null;
}
