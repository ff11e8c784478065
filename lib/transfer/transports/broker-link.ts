/** A link to an exporter of this machine that hands its memory out through a broker. */
import { native } from '../../native/addon-errors.js';
import type { BrokerCalls } from '../../native/broker-types.js';
import type { NativeFailure, NativeLinkStatus } from '../../native/transfer-types.js';
import type { HostGrant } from './host-grant.js';
import { SharedLink } from './shared-link.js';

export class BrokerLink extends SharedLink {
  private constructor(
    private readonly calls: BrokerCalls,
    private readonly endpoint: object,
    /** The native peer. */
    readonly id: number,
    /** Whether the exporter lets a reader compare generations; then a request must claim some. */
    readonly comparesGenerations: boolean,
  ) {
    super();
  }

  static open(calls: BrokerCalls, endpoint: object, grant: HostGrant, handshakeMs: number): BrokerLink {
    const id = native(() =>
      calls.connect(
        endpoint,
        grant.address.abstract,
        grant.address.name,
        grant.token,
        grant.regionBytes,
        grant.blockGenerations,
        grant.slotGenerations,
        handshakeMs,
      ),
    );
    return new BrokerLink(calls, endpoint, id, grant.blockGenerations > 0);
  }

  protected nativeStatus(): NativeLinkStatus {
    return this.calls.peerStatus(this.endpoint, this.id);
  }

  protected nativeFailure(): NativeFailure | null {
    return this.calls.peerError(this.endpoint, this.id);
  }

  /** Transfers under way keep their mapping. */
  protected nativeDisconnect(): void {
    this.calls.disconnect(this.endpoint, this.id);
  }
}
