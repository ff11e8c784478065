/** Tells when a socket loses a connection. Ends with the socket; a failure to watch ends it too. */
import type { Observer } from 'zeromq';

/** @param lost - called for every connection that ends, which one is not known */
export async function watchDisconnects(observer: Observer, lost: () => void): Promise<void> {
  try {
    for (;;) {
      const { type } = await observer.receive();
      if (type === 'disconnect') lost();
      if (type === 'end') return;
    }
  } catch {
    // The socket was closed.
  }
}
