/**
 * Connections to NIXL exporters. A link has an agent a reader, and fails as a whole. It is shared by all who connected with
 * the same grant and ends with the last of them; each holds a peer of its own, which it may close on its own.
 */
import { HandoffError } from '../../errors.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeNixl } from '../../native/nixl-types.js';
import type { Peer, PeerStatus } from '../transport.js';
import type { NixlGrant } from './nixl-grant.js';

export class NixlLink {
  /** Peers that are not closed. */
  users = 0;
  private disconnected = false;

  private constructor(
    private readonly readers: readonly NativeNixl[],
    /** The native link of each reader; none for a link that was never opened. */
    readonly ids: readonly number[],
    private failure: HandoffError | null,
  ) {}

  static open(readers: readonly NativeNixl[], { metadata, regions, staging }: NixlGrant): NixlLink {
    if (metadata === null) {
      return NixlLink.failed(new HandoffError('PEER_REFUSED', 'the peer grants no memory over NIXL; it only reads'));
    }
    const ranges = BigUint64Array.from(
      regions.flatMap(({ address, bytes, kind, device }) => [
        address,
        bytes,
        kind === 'host' ? 0n : 1n,
        BigInt(device),
      ]),
    );
    const slots =
      staging === null
        ? BigUint64Array.of(0n, 0n, 0n)
        : BigUint64Array.of(staging.address, BigInt(staging.slots), BigInt(staging.slotBytes));
    return new NixlLink(
      readers,
      readers.map((nixl) => native(() => addon().nixlConnect(nixl, metadata, ranges, slots))),
      null,
    );
  }

  static failed(failure: HandoffError): NixlLink {
    return new NixlLink([], [], failure);
  }

  status(): PeerStatus {
    if (this.failure !== null) return 'failed';
    const each = this.readers.map((nixl, index) =>
      native(() => addon().nixlPeerStatus(nixl, this.ids[index] as number)),
    );
    const failed = each.indexOf(2);
    if (failed >= 0) {
      const nixl = this.readers[failed] as NativeNixl;
      this.failure = fromNative(native(() => addon().nixlPeerError(nixl, this.ids[failed] as number)));
      // What one agent found out is true for all.
      this.disconnect();
      return 'failed';
    }
    return each.includes(0) ? 'connecting' : 'ready';
  }

  get error(): HandoffError | null {
    this.status();
    return this.failure;
  }

  /** Idempotent. Transfers under way go on; the agents end after them. */
  disconnect(): void {
    if (this.disconnected) return;
    this.failure = this.error ?? new HandoffError('CLOSED', 'the connection to the peer was closed on this side');
    if (this.disconnected) return;
    this.disconnected = true;
    this.readers.forEach((nixl, index) => native(() => addon().nixlDisconnect(nixl, this.ids[index] as number)));
  }
}

export class NixlPeer implements Peer {
  private closed = false;

  constructor(
    /** Whose peer it is. */
    readonly transport: object,
    readonly link: NixlLink,
    private readonly release: (link: NixlLink) => void,
  ) {
    link.users += 1;
  }

  status(): PeerStatus {
    return this.closed ? 'failed' : this.link.status();
  }

  get error(): HandoffError | null {
    return this.closed ? new HandoffError('CLOSED', 'the peer is closed') : this.link.error;
  }

  close(): void {
    if (this.closed) return;
    this.closed = true;
    this.link.users -= 1;
    if (this.link.users === 0) this.release(this.link);
  }
}
