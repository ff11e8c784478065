/**
 * One wake-up for all native transports of an environment. Native code only says "look at your rings"; who listens
 * here looks at its own and calls nothing that it does not own.
 */
import { addon } from './addon.js';

const listeners = new Set<() => void>();
let listening = false;

/** Calls `listener` whenever some ring of this environment may hold something. Returns what stops it. */
export function onNativeWake(listener: () => void): () => void {
  if (!listening) {
    addon().wakeListen(() => {
      // Not in here: what a listener throws must end up where every uncaught error does, and hold up nobody else.
      for (const each of listeners) queueMicrotask(each);
    });
    listening = true;
  }
  listeners.add(listener);
  return () => void listeners.delete(listener);
}
