/**
 * Links to exporters. A link is shared by all who connected with the same grant and ends with the last of them, or with
 * the exporter; each holds a peer of its own, which it may close on its own.
 */
import { HandoffError } from '../../errors.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeFailure, NativeLinkStatus } from '../../native/transfer-types.js';
import type { Peer, PeerStatus } from '../transport.js';

/** What a link is in native code. */
export abstract class SharedLink {
  /** Peers that are not closed. */
  users = 0;
  private failure: HandoffError | null = null;
  private disconnected = false;

  protected abstract nativeStatus(): NativeLinkStatus;
  /** Once the status says so. */
  protected abstract nativeFailure(): NativeFailure | null;
  protected abstract nativeDisconnect(): void;

  status(): PeerStatus {
    if (this.failure !== null) return 'failed';
    const status = native(() => this.nativeStatus());
    if (status !== 2) return status === 0 ? 'connecting' : 'ready';
    this.failure = fromNative(native(() => this.nativeFailure()));
    this.disconnect();
    return 'failed';
  }

  get error(): HandoffError | null {
    this.status();
    return this.failure;
  }

  /** Idempotent. Transfers under way go on. */
  disconnect(): void {
    if (this.disconnected) return;
    this.failure = this.error ?? new HandoffError('CLOSED', 'the connection to the peer was closed on this side');
    if (this.disconnected) return;
    this.disconnected = true;
    native(() => this.nativeDisconnect());
  }
}

export class LinkPeer<Link extends SharedLink> implements Peer {
  private closed = false;

  /**
   * @param owner - whose peer it is
   * @param link - null for one that was refused
   */
  constructor(
    readonly owner: object,
    readonly link: Link | null,
    private readonly refusal: HandoffError | null,
    private readonly release: (link: Link) => void,
  ) {
    if (link !== null) link.users += 1;
  }

  status(): PeerStatus {
    return this.closed || this.link === null ? 'failed' : this.link.status();
  }

  get error(): HandoffError | null {
    if (this.closed) return new HandoffError('CLOSED', 'the peer is closed');
    return this.link === null ? this.refusal : this.link.error;
  }

  close(): void {
    if (this.closed) return;
    this.closed = true;
    if (this.link === null) return;
    this.link.users -= 1;
    if (this.link.users === 0) this.release(this.link);
  }
}
