/** The transports that come with the SDK, as entries of a table, preferred first. */
import { isHandoffError } from '../../errors.js';
import type { TransportGrant } from '../transport.js';
import type { TransportEntry } from '../transport-registry.js';
import { HostTransport, requireThisMachine, type HostTransportOptions } from './host.js';
import { decodeHostGrant } from './host-grant.js';

export const hostTransportEntry: TransportEntry<HostTransportOptions | undefined> = {
  name: 'host',
  create: (options) => new HostTransport(options),
  whyNot(_local: TransportGrant, peer: TransportGrant): string | null {
    try {
      requireThisMachine(decodeHostGrant(peer));
      return null;
    } catch (error) {
      if (isHandoffError(error)) return error.message;
      throw error;
    }
  },
};

/** The table that `setupKvTransfer` orders by name. */
export const shippedTransports = [hostTransportEntry] as const;
