/** A connection to a NIXL exporter. It has an agent a reader, and fails as a whole: what one agent found out is true for all. */
import { addon } from '../../native/addon.js';
import { native } from '../../native/addon-errors.js';
import type { NativeNixl } from '../../native/nixl-types.js';
import type { NativeFailure, NativeLinkStatus } from '../../native/transfer-types.js';
import type { NixlExport } from './nixl-grant.js';
import { SharedLink } from './shared-link.js';

export class NixlLink extends SharedLink {
  private constructor(
    private readonly readers: readonly NativeNixl[],
    /** The native link of each reader. */
    readonly ids: readonly number[],
  ) {
    super();
  }

  static open(readers: readonly NativeNixl[], { metadata, regions, staging }: NixlExport): NixlLink {
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
        ? new BigUint64Array(6)
        : BigUint64Array.of(
            ...[staging.address, BigInt(staging.slots), BigInt(staging.slotBytes)],
            ...[staging.data.address, staging.data.kind === 'host' ? 0n : 1n, BigInt(staging.data.device)],
          );
    const ids = readers.map((nixl) => native(() => addon().nixlConnect(nixl, metadata, ranges, slots)));
    return new NixlLink(readers, ids);
  }

  protected nativeStatus(): NativeLinkStatus {
    const each = this.statuses();
    return each.includes(2) ? 2 : each.includes(0) ? 0 : 1;
  }

  protected nativeFailure(): NativeFailure | null {
    const failed = this.statuses().indexOf(2);
    return addon().nixlPeerError(this.readers[failed] as NativeNixl, this.ids[failed] as number);
  }

  /** Transfers under way go on; the agents end after them. */
  protected nativeDisconnect(): void {
    this.readers.forEach((nixl, index) => addon().nixlDisconnect(nixl, this.ids[index] as number));
  }

  private statuses(): NativeLinkStatus[] {
    return this.readers.map((nixl, index) => addon().nixlPeerStatus(nixl, this.ids[index] as number));
  }
}
