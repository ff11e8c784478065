/**
 * What transports between processes of one machine keep: the broker that hands this side's memory to importers, the links to
 * exporters, and the pulls under way. Which memory, and who copies, is native code's matter.
 */
import { randomBytes } from 'node:crypto';
import { HandoffError } from '../../errors.js';
import type { JsonObject, JsonValue } from '../../json.js';
import type { Region } from '../../memory/region.js';
import { native } from '../../native/addon-errors.js';
import type { BrokerCalls } from '../../native/broker-types.js';
import { encodeForCall } from '../../native/encoded-program.js';
import { untilQuiet } from '../../native/patience.js';
import type { NativeCounted } from '../transport-registry.js';
import type { Peer, TransferHandle, TransferRequest } from '../transport.js';
import { BrokerLink } from './broker-link.js';
import { BrokerPull } from './broker-pull.js';
import { decodeHostGrant, encodeHostGrant, type HostGrant } from './host-grant.js';
import { requireThisMachine, thisMachine } from './machine.js';
import { PullSide } from './pull-side.js';

/** What differs between such transports. */
export interface BrokerSetting {
  readonly transport: string;
  readonly calls: BrokerCalls;
  /** What opening the native transport gave. */
  readonly endpoint: object;
  readonly handshakeMs: number;
  /** Where the broker's socket lies. */
  readonly socket: { readonly abstract: boolean; readonly directory: string };
  readonly blockGenerations: NativeCounted | undefined;
  readonly slotGenerations: NativeCounted | undefined;
  /** Why memory in doubt keeps it from closing; absent where none ever is. */
  readonly doubt?: string;
}

const noIds = new Int32Array(0);
const noGenerations = new BigUint64Array(0);

export class BrokerSide {
  private readonly side: PullSide<BrokerLink>;
  private readonly regions: Region[] = [];
  private readonly pulls = new Map<number, BrokerPull>();
  private listener: Pick<HostGrant, 'address' | 'token' | 'machine'> | null = null;

  constructor(private readonly setting: BrokerSetting) {
    this.side = new PullSide(this, setting.transport);
  }

  get onWake(): (() => void) | null {
    return this.side.wake.listener;
  }

  set onWake(listener: (() => void) | null) {
    this.side.wake.listener = listener;
  }

  requireOpen(): void {
    this.side.closing.requireOpen();
  }

  /** The caller knows that it is memory of the right kind. */
  register(region: Region): number {
    const { calls, endpoint } = this.setting;
    const index = native(() => calls.register(endpoint, region.native as object));
    this.regions[index] = region;
    return index;
  }

  grant(): JsonObject {
    this.requireOpen();
    const { transport, blockGenerations, slotGenerations } = this.setting;
    if (this.regions.length === 0) {
      throw new HandoffError('NOT_SET_UP', `the ${transport} transport grants nothing before a region is registered`);
    }
    this.listener ??= this.listen();
    return encodeHostGrant({
      ...this.listener,
      regionBytes: BigUint64Array.from(this.regions, (region) => BigInt(region.byteLength)),
      blockGenerations: blockGenerations?.count ?? 0,
      slotGenerations: slotGenerations?.count ?? 0,
    });
  }

  connect(grant: JsonValue): Peer {
    this.requireOpen();
    const { transport, calls, endpoint, handshakeMs } = this.setting;
    const read = (): HostGrant => {
      const decoded = decodeHostGrant(grant);
      requireThisMachine(transport, decoded);
      return decoded;
    };
    return this.side.connect(read, encodeHostGrant, (known) => BrokerLink.open(calls, endpoint, known, handshakeMs));
  }

  begin(request: TransferRequest, peer: Peer): TransferHandle {
    return this.side.begin(request, peer, (link) => this.pull(request, link));
  }

  takeChanged(): readonly TransferHandle[] {
    const { calls, endpoint } = this.setting;
    const changed = this.side.settled.take();
    for (const id of native(() => calls.take(endpoint))) {
      const pull = this.pulls.get(id);
      if (pull === undefined) continue;
      changed.push(pull);
      // One that is in doubt stays, and with it whatever it holds on to.
      if (pull.poll() === 'failed-active') continue;
      this.pulls.delete(id);
      native(() => calls.forget(endpoint, id));
    }
    return changed;
  }

  close(): Promise<void> {
    return this.side.closing.close(this.pulls.values(), () => this.stop(), this.setting.doubt);
  }

  private pull({ programs, generations }: TransferRequest, link: BrokerLink): TransferHandle {
    if (link.comparesGenerations && generations === null) {
      const why =
        'the request claims no generations though the peer grants them; its ticket was altered or is of another instance';
      return this.side.settled.failed('PEER_REFUSED', why, null);
    }
    const { calls, endpoint } = this.setting;
    const { rectangles, tables, rows } = encodeForCall(programs);
    const id = calls.begin(
      endpoint,
      link.id,
      rectangles,
      tables,
      rows,
      generations?.blocks ?? noIds,
      generations?.blockGenerations ?? noGenerations,
      generations?.slots ?? noIds,
      generations?.slotGenerations ?? noGenerations,
    );
    const pull = new BrokerPull(calls, endpoint, id);
    this.pulls.set(id, pull);
    return pull;
  }

  /** What was cancelled ends within one chunk, or with its last launch; the threads leave after it. */
  private async stop(): Promise<void> {
    const { calls, endpoint } = this.setting;
    this.side.disconnectAll();
    calls.close(endpoint);
    await untilQuiet(() => calls.quiet(endpoint));
    for (const pull of this.pulls.values()) pull.poll();
    this.side.wake.end();
  }

  private listen(): Pick<HostGrant, 'address' | 'token' | 'machine'> {
    const { calls, endpoint, socket } = this.setting;
    const token = Uint8Array.from(randomBytes(16));
    const name = `state-handoff-${randomBytes(8).toString('hex')}`;
    const address = native(() => calls.listen(endpoint, socket.abstract, socket.directory, name, token));
    return { address, token, machine: thisMachine() };
  }
}
