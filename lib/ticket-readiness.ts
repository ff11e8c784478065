/**
 * Tickets whose state is not in place yet: their fence has not fired. Such a ticket must not leave the process, since a
 * peer that reads on its own cannot see the fence; inside the process an import of it waits.
 */
import type { Fence } from './engine-context.js';

const fences = new WeakMap<object, Fence>();

/** Prefill: ties a ticket's metadata, and its identity inside it, to the fence that completes when its state is in place. */
export function markUnready(kvMeta: Readonly<Record<string, unknown>>, ready: Fence): void {
  for (const part of [kvMeta, kvMeta['handoff']])
    if (typeof part === 'object' && part !== null) fences.set(part, ready);
}

/** The fence that must complete before this metadata's state may be read; null when there is none to wait for. */
export function unreadyFence(kvMeta: Readonly<Record<string, unknown>>): Fence | null {
  const { handoff } = kvMeta;
  const fence =
    fences.get(kvMeta) ?? (typeof handoff === 'object' && handoff !== null ? fences.get(handoff) : undefined);
  return fence === undefined || fence.isComplete() ? null : fence;
}
