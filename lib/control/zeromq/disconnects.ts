/** Tells when a socket loses a connection. Ends with the socket; a failure to watch ends it too. */
import type { Observer } from 'zeromq';

/**
 * @param lost - called for every connection that ends, which one is not known
 * @param refused - called when the other end refuses this socket's key
 */
export async function watchDisconnects(observer: Observer, lost: () => void, refused?: () => void): Promise<void> {
  try {
    for (;;) {
      const { type } = await observer.receive();
      if (type === 'handshake:error:auth') refused?.();
      if (type === 'disconnect') lost();
      if (type === 'end') return;
    }
  } catch {
    // The socket was closed.
  }
}
