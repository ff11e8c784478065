/**
 * Connections to NIXL exporters. A link is shared by all who connected with the same grant and ends with the last of
 * them; each holds a peer of its own, which it may close on its own.
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
    private readonly nixl: NativeNixl | null,
    /** The native link; 0 for one that was never opened. */
    readonly id: number,
    private failure: HandoffError | null,
  ) {}

  static open(nixl: NativeNixl, { metadata, regions, staging }: NixlGrant): NixlLink {
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
      nixl,
      native(() => addon().nixlConnect(nixl, metadata, ranges, slots)),
      null,
    );
  }

  static failed(failure: HandoffError): NixlLink {
    return new NixlLink(null, 0, failure);
  }

  status(): PeerStatus {
    if (this.failure !== null || this.nixl === null) return 'failed';
    const { nixl } = this;
    const status = native(() => addon().nixlPeerStatus(nixl, this.id));
    if (status === 2) this.failure = fromNative(native(() => addon().nixlPeerError(nixl, this.id)));
    return status === 0 ? 'connecting' : status === 1 ? 'ready' : 'failed';
  }

  get error(): HandoffError | null {
    this.status();
    return this.failure;
  }

  /** Idempotent. Transfers under way go on; the agent ends after them. */
  disconnect(): void {
    if (this.nixl === null || this.disconnected) return;
    const { nixl } = this;
    this.failure = this.error ?? new HandoffError('CLOSED', 'the connection to the peer was closed on this side');
    this.disconnected = true;
    native(() => addon().nixlDisconnect(nixl, this.id));
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
