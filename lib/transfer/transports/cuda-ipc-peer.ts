/**
 * Links to exporters of GPU memory on this machine. A link is shared by all who connected with the same grant and ends
 * with the last of them, or with the exporter; its mappings then close with the last transfer that uses them.
 */
import { HandoffError } from '../../errors.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeCudaIpc } from '../../native/cuda-types.js';
import type { Peer, PeerStatus } from '../transport.js';
import type { HostGrant } from './host-grant.js';

export class CudaIpcLink {
  /** Peers that are not closed. */
  users = 0;

  private constructor(
    private readonly ipc: NativeCudaIpc | null,
    /** The native peer; 0 for a link that was never opened. */
    readonly id: number,
    private failure: HandoffError | null,
    /** Whether the exporter lets a reader compare generations; then a request must claim some. */
    readonly comparesGenerations: boolean,
  ) {}

  static open(ipc: NativeCudaIpc, grant: HostGrant, handshakeMs: number): CudaIpcLink {
    const id = native(() =>
      addon().cudaIpcConnect(
        ipc,
        grant.address.abstract,
        grant.address.name,
        grant.token,
        grant.regionBytes,
        grant.blockGenerations,
        grant.slotGenerations,
        handshakeMs,
      ),
    );
    return new CudaIpcLink(ipc, id, null, grant.blockGenerations > 0);
  }

  static failed(failure: HandoffError): CudaIpcLink {
    return new CudaIpcLink(null, 0, failure, false);
  }

  status(): PeerStatus {
    if (this.failure !== null || this.ipc === null) return 'failed';
    const { ipc } = this;
    const status = native(() => addon().cudaIpcPeerStatus(ipc, this.id));
    if (status === 2) this.failure = fromNative(native(() => addon().cudaIpcPeerError(ipc, this.id)));
    return status === 0 ? 'connecting' : status === 1 ? 'ready' : 'failed';
  }

  get error(): HandoffError | null {
    this.status();
    return this.failure;
  }

  /** Idempotent. Transfers under way keep their mapping. */
  disconnect(): void {
    if (this.ipc === null) return;
    const { ipc } = this;
    this.failure = this.error ?? new HandoffError('CLOSED', 'the connection to the peer was closed on this side');
    native(() => addon().cudaIpcDisconnect(ipc, this.id));
  }
}

export class CudaIpcPeer implements Peer {
  private closed = false;

  constructor(
    /** Whose peer it is. */
    readonly transport: object,
    readonly link: CudaIpcLink,
    private readonly release: (link: CudaIpcLink) => void,
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
