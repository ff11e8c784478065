/**
 * The NIXL transport: one-sided pulls over whatever fabric UCX reaches. The library is bound at run time; making its
 * agents takes half a second and happens in `open`, off the event loop.
 *
 * Reads that were posted cannot be called back (releasing one is no cancel): a cancel stops what has not started, and a
 * failed transfer stays in doubt until its reads have ended or the connection's agent was destroyed.
 */
import { randomUUID } from 'node:crypto';
import { requireObject } from '../../argument-shape.js';
import { argumentError, HandoffError } from '../../errors.js';
import type { JsonObject, JsonValue } from '../../json.js';
import type { Region } from '../../memory/region.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import { encodeForCall } from '../../native/encoded-program.js';
import type { NativeNixl, NativeNixlCounters, NativeNixlGrant } from '../../native/nixl-types.js';
import { untilQuiet, untilReady } from '../../native/patience.js';
import { programBytes } from '../copy-program.js';
import type {
  MemoryKind,
  Peer,
  Transport,
  TransportCapabilities,
  TransferHandle,
  TransferRequest,
} from '../transport.js';
import { decodeNixlGrant, encodeNixlGrant, type NixlExport } from './nixl-grant.js';
import { nixlCandidates } from './nixl-library.js';
import { NixlLink } from './nixl-link.js';
import { nixlSettings, type NixlTransportOptions } from './nixl-options.js';
import { NixlTransfer, type NixlPart } from './nixl-transfer.js';
import { PullSide } from './pull-side.js';

export type { NixlTransportOptions } from './nixl-options.js';

/** Pulls from the memory of another process, wherever UCX reaches it. */
export class NixlTransport implements Transport {
  readonly name = 'nixl';
  readonly capabilities: TransportCapabilities = {
    direction: 'pull',
    memoryKinds: ['host', 'cuda'],
    provesQuietOnCancel: false,
    detectsLateReads: false,
  };
  /** The first one also serves peers. */
  private readonly readers: readonly NativeNixl[];
  private readonly requestBytes: number;
  /** Which reader makes the next pull that only one makes. */
  private turn = 0;
  /** Not final, or not yet taken. */
  private readonly transfers = new Set<NixlTransfer>();
  /** By the native transfers of each reader. */
  private readonly parts: readonly Map<number, NixlTransfer>[];
  /** Reported as failed while their memory was in doubt. */
  private readonly doubtful = new Set<NixlTransfer>();
  private readonly side = new PullSide<NixlLink>(this, 'nixl');
  private granted: NativeNixlGrant | null = null;
  private regionCount = 0;
  private opened: Promise<void> | null = null;

  /** @throws `ARGUMENT_INVALID`, `NATIVE_UNAVAILABLE`, `TRANSPORT_UNAVAILABLE` for kernels that cannot be read */
  constructor(options: NixlTransportOptions = {}) {
    requireObject('options', options);
    const settings = nixlSettings(options);
    const libraries = options.libraries ?? nixlCandidates();
    // No two agents of a fabric may have one name; a restarted process is another agent.
    const name = `state-handoff-${randomUUID()}`;
    this.requestBytes = settings.requestBytes;
    this.readers = Array.from({ length: settings.readThreads }, (_, index) =>
      native(() =>
        addon().nixlOpen(
          libraries.join('\n'),
          index === 0 ? name : `${name}-reader-${index}`,
          index === 0 && (options.exports ?? true),
          settings.slots,
          settings.slotBytes,
          settings.gpuSlotBytes,
          settings.tuning,
          settings.transfersMax,
          settings.kernels,
        ),
      ),
    );
    this.parts = this.readers.map(() => new Map());
  }

  get onWake(): (() => void) | null {
    return this.side.wake.listener;
  }

  set onWake(listener: (() => void) | null) {
    this.side.wake.listener = listener;
  }

  register(region: Region): number {
    this.requireOpen();
    if (region.native === null) {
      throw argumentError('region', 'a region of allocateHostRegion or of GPU memory', 'plain memory');
    }
    const handle = region.native as object;
    const [index = 0] = this.readers.map((nixl) =>
      native(() =>
        region.kind === 'host' ? addon().nixlRegister(nixl, handle) : addon().nixlRegisterCuda(nixl, handle),
      ),
    );
    this.regionCount = index + 1;
    return index;
  }

  /** @throws (rejects) `TRANSPORT_UNAVAILABLE` without a usable NIXL, `NATIVE_SYSTEM`, `NOT_SET_UP` without a region */
  open(): Promise<void> {
    this.requireOpen();
    if (this.regionCount === 0) {
      return Promise.reject(
        new HandoffError('NOT_SET_UP', 'the nixl transport does not open before a region is registered'),
      );
    }
    this.opened ??= this.start();
    return this.opened;
  }

  /** @throws `NOT_SET_UP` before `open` has resolved */
  grant(): JsonObject {
    this.requireOpen();
    const { metadata, ranges, staging } = this.requireGranted();
    const regions = Array.from({ length: ranges.length / 4 }, (_, index) => ({
      address: ranges[4 * index] as bigint,
      bytes: ranges[4 * index + 1] as bigint,
      kind: kindOf(ranges[4 * index + 2] as bigint),
      device: Number(ranges[4 * index + 3]),
    }));
    const [address = 0n, slots = 0n, slotBytes = 0n, dataAddress = 0n, dataMemory = 0n, dataDevice = 0n] = staging;
    const data = { address: dataAddress, kind: kindOf(dataMemory), device: Number(dataDevice) };
    return encodeNixlGrant({
      metadata: metadata.length === 0 ? null : metadata,
      regions,
      staging: slots === 0n ? null : { address, slots: Number(slots), slotBytes: Number(slotBytes), data },
    });
  }

  /** The library that was loaded. @throws `NOT_SET_UP` before `open` has resolved */
  get library(): string {
    return this.requireGranted().library;
  }

  /** Numbers for tests and for `doctor`; connections and lists count once a reader. */
  get counters(): NativeNixlCounters {
    const [first, ...others] = this.readers.map((nixl) => native(() => addon().nixlCounters(nixl)));
    return others.reduce(
      (sum, each) => ({
        ...sum,
        links: sum.links + each.links,
        preparedLists: sum.preparedLists + each.preparedLists,
        packRefusals: sum.packRefusals + each.packRefusals,
      }),
      first as NativeNixlCounters,
    );
  }

  connect(grant: JsonValue): Peer {
    this.requireOpen();
    this.requireGranted();
    const read = (): NixlExport => {
      const { metadata, ...others } = decodeNixlGrant(grant);
      if (metadata !== null) return { metadata, ...others };
      throw new HandoffError('PEER_REFUSED', 'the peer grants no memory over NIXL; it only reads');
    };
    return this.side.connect(read, encodeNixlGrant, (known) => NixlLink.open(this.readers, known));
  }

  begin(request: TransferRequest, peer: Peer): TransferHandle {
    return this.side.begin(request, peer, (link) => this.beginParts(request, link));
  }

  takeChanged(): readonly TransferHandle[] {
    const changed = this.side.settled.take();
    const told = new Set(this.doubtful);
    for (const [index, nixl] of this.readers.entries()) {
      for (const id of native(() => addon().nixlTake(nixl))) {
        const transfer = this.parts[index]?.get(id);
        if (transfer !== undefined) told.add(transfer);
      }
    }
    for (const transfer of told) {
      const status = transfer.poll();
      // What one reader found out ends the others' agents too.
      if (transfer.error !== null) this.side.lookAtLinks();
      if (transfer.isFinal) this.forget(transfer);
      else if (status === 'active' || this.doubtful.has(transfer)) continue;
      else this.doubtful.add(transfer);
      changed.push(transfer);
    }
    return changed;
  }

  /** Ends every connection, which proves all transfers quiet; refuses while one is under way that nobody cancelled. */
  close(): Promise<void> {
    return this.side.closing.close(this.transfers, () => this.stop());
  }

  private async start(): Promise<void> {
    this.readers.forEach((nixl, index) => native(() => addon().nixlStart(nixl, index === 0)));
    for (const nixl of this.readers) {
      await untilReady(
        () => addon().nixlReadiness(nixl),
        () => addon().nixlStartError(nixl),
        () => this.side.closing.hasBegun,
      );
      this.requireOpen();
    }
    this.granted = native(() => addon().nixlGrant(this.readers[0] as NativeNixl));
  }

  private async stop(): Promise<void> {
    this.side.disconnectAll();
    for (const nixl of this.readers) addon().nixlClose(nixl);
    for (const nixl of this.readers) await untilQuiet(() => addon().nixlQuiet(nixl));
    for (const transfer of this.transfers) transfer.poll();
    this.side.wake.end();
  }

  /** All readers make a pull that is large enough for that, in turns; others are made by one. */
  private beginParts({ programs }: TransferRequest, { ids }: NixlLink): NixlTransfer {
    const { rectangles, tables, rows } = encodeForCall(programs);
    const bytes = programs.reduce((sum, program) => sum + programBytes(program), 0);
    const shared = bytes >= 2 * this.requestBytes;
    const indices = shared ? [...this.readers.keys()] : [this.turn++ % this.readers.length];
    const parts: NixlPart[] = [];
    let failure: HandoffError | null = null;
    try {
      for (const [share, index] of indices.entries()) {
        const nixl = this.readers[index] as NativeNixl;
        const link = ids[index] as number;
        const id = addon().nixlBegin(nixl, link, rectangles, tables, rows, share, indices.length);
        parts.push({ nixl, id });
      }
    } catch (error) {
      if (parts.length === 0) throw error;
      failure = fromNative(error);
    }
    const transfer = new NixlTransfer(parts, failure);
    this.transfers.add(transfer);
    parts.forEach(({ id }, at) => this.parts[indices[at] as number]?.set(id, transfer));
    return transfer;
  }

  private forget(transfer: NixlTransfer): void {
    this.transfers.delete(transfer);
    this.doubtful.delete(transfer);
    for (const { nixl, id } of transfer.parts) this.parts[this.readers.indexOf(nixl)]?.delete(id);
    transfer.forget();
  }

  private requireGranted(): NativeNixlGrant {
    if (this.granted === null) {
      throw new HandoffError('NOT_SET_UP', 'the nixl transport is not open; call open() and wait for it');
    }
    return this.granted;
  }

  private requireOpen(): void {
    this.side.closing.requireOpen();
  }
}

const kindOf = (memory: bigint): MemoryKind => (memory === 0n ? 'host' : 'cuda');
