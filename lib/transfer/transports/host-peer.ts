/**
 * Links to exporters on this machine. A link is shared by all who connected with the same grant and ends with the
 * last of them; each holds a peer of its own, which it may close on its own.
 */
import { HandoffError } from '../../errors.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeHost } from '../../native/transfer-types.js';
import type { Peer, PeerStatus } from '../transport.js';
import type { HostGrant } from './host-grant.js';

export class HostLink {
  /** Peers that are not closed. */
  users = 0;

  private constructor(
    private readonly host: NativeHost | null,
    /** The native peer; 0 for a link that was never opened. */
    readonly id: number,
    private failure: HandoffError | null,
    /** Whether the exporter lets a reader compare generations; then a request must claim some. */
    readonly comparesGenerations: boolean,
  ) {}

  static open(host: NativeHost, grant: HostGrant, handshakeMs: number): HostLink {
    const id = native(() =>
      addon().hostConnect(
        host,
        grant.address.abstract,
        grant.address.name,
        grant.token,
        grant.regionBytes,
        grant.blockGenerations,
        grant.slotGenerations,
        handshakeMs,
      ),
    );
    return new HostLink(host, id, null, grant.blockGenerations > 0);
  }

  static failed(failure: HandoffError): HostLink {
    return new HostLink(null, 0, failure, false);
  }

  status(): PeerStatus {
    if (this.failure !== null || this.host === null) return 'failed';
    const { host } = this;
    const status = native(() => addon().hostPeerStatus(host, this.id));
    if (status === 2) this.failure = fromNative(native(() => addon().hostPeerError(host, this.id)));
    return status === 0 ? 'connecting' : status === 1 ? 'ready' : 'failed';
  }

  get error(): HandoffError | null {
    this.status();
    return this.failure;
  }

  /** Idempotent. Transfers under way keep their mapping. */
  disconnect(): void {
    if (this.host === null) return;
    const { host } = this;
    this.failure = this.error ?? new HandoffError('CLOSED', 'the connection to the peer was closed on this side');
    native(() => addon().hostDisconnect(host, this.id));
  }
}

export class HostPeer implements Peer {
  private closed = false;

  constructor(
    /** Whose peer it is. */
    readonly transport: object,
    readonly link: HostLink,
    private readonly release: (link: HostLink) => void,
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
