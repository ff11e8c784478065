/**
 * What every transport that pulls keeps: who listens, its links by grant, transfers that ended where they began, and how it
 * closes. Refuses peers of another transport; what only native code knows is asked through the links.
 */
import { argumentError } from '../../errors.js';
import type { JsonObject } from '../../json.js';
import { fromNative } from '../../native/addon-errors.js';
import type { Peer, TransferHandle, TransferRequest } from '../transport.js';
import { Closing } from './closing.js';
import { SettledTransfers } from './settled-transfer.js';
import { LinkPeer, type SharedLink } from './shared-link.js';
import { WakeListener } from './wake-listener.js';

export class PullSide<Link extends SharedLink> {
  readonly wake: WakeListener;
  readonly settled: SettledTransfers;
  readonly closing: Closing;
  private readonly links = new Map<string, Link>();

  /**
   * @param owner - whose side this is; it lives until it is closed
   * @param transport - its name
   */
  constructor(owner: object, transport: string) {
    this.wake = new WakeListener(owner);
    this.settled = new SettledTransfers(this.wake);
    this.closing = new Closing(transport);
  }

  /**
   * A peer of the link that this grant has or gets; one that is refused when the grant is.
   *
   * @param read - throws for what is no grant, or grants nothing
   * @param identity - the same for grants of one exporter
   */
  connect<Grant>(read: () => Grant, identity: (grant: Grant) => JsonObject, open: (grant: Grant) => Link): Peer {
    let grant: Grant;
    try {
      grant = read();
    } catch (error) {
      return this.peerOf(null, fromNative(error));
    }
    const key = JSON.stringify(identity(grant));
    let link = this.links.get(key);
    if (link === undefined || link.status() === 'failed') {
      link = open(grant);
      this.links.set(key, link);
    }
    return this.peerOf(link, null);
  }

  /**
   * What `start` begins, or a transfer that is over.
   *
   * @throws `ARGUMENT_INVALID` for a peer of another transport or a program that is none, `CLOSED`
   */
  begin({ programs }: TransferRequest, peer: Peer, start: (link: Link) => TransferHandle): TransferHandle {
    this.closing.requireOpen();
    if (!(peer instanceof LinkPeer) || peer.owner !== this) {
      throw argumentError('peer', 'a peer that this transport connected', peer);
    }
    if (programs.length === 0) return this.settled.done();
    const { error, link } = peer as LinkPeer<Link>;
    if (error !== null) return this.settled.failed(error.code, error.message, error);
    try {
      return start(link as Link);
    } catch (thrown) {
      const failed = fromNative(thrown);
      if (failed.code !== 'NATIVE_LIMIT' && failed.code !== 'NATIVE_SYSTEM') throw failed;
      return this.settled.failed(failed.code, failed.message, failed);
    }
  }

  /** Looks at every link, so that what one of its ends found out is known to all. */
  lookAtLinks(): void {
    for (const link of this.links.values()) link.status();
  }

  disconnectAll(): void {
    for (const link of this.links.values()) link.disconnect();
    this.links.clear();
  }

  private peerOf(link: Link | null, refusal: LinkPeer<Link>['error']): Peer {
    return new LinkPeer<Link>(this, link, refusal, (unused) => this.release(unused));
  }

  /** Drops a link that nobody uses. */
  private release(link: Link): void {
    if (!this.closing.hasBegun) link.disconnect();
    for (const [key, known] of this.links) {
      if (known === link) this.links.delete(key);
    }
  }
}
