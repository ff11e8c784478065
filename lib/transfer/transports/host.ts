/**
 * The host transport: one-sided pulls between processes of one machine, from a read-only mapping of the peer's sealed
 * memory, by native threads. Needs no GPU, no privilege and no shared folder.
 *
 * Owns the broker that hands this side's memory to importers, the links to peers, and the transfers under way.
 */
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { requireObject } from '../../argument-shape.js';
import { argumentError, HandoffError } from '../../errors.js';
import type { JsonObject, JsonValue } from '../../json.js';
import type { Region } from '../../memory/region.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import { encodeForCall } from '../../native/encoded-program.js';
import type { NativeHost } from '../../native/transfer-types.js';
import { onNativeWake } from '../../native/wake.js';
import type { Peer, Transport, TransportCapabilities, TransferHandle, TransferRequest } from '../transport.js';
import { decodeHostGrant, encodeHostGrant, type HostGrant } from './host-grant.js';
import { HostLink, HostPeer } from './host-peer.js';
import { HostTransfer, SettledTransfer } from './host-transfer.js';

/** The generations of an allocator of ours; `native` is the addon's object. */
export interface HostGenerations {
  readonly native: object;
  readonly count: number;
}

/** How a `HostTransport` is made. */
export interface HostTransportOptions {
  /** Source side: makes late readers of this side's blocks notice. */
  readonly blockGenerations?: HostGenerations;
  /** The same for SSM slots. Give both when the engine has slots. */
  readonly slotGenerations?: HostGenerations;
  /** Copying threads, started with the first transfer. Default: the processors, at most 4. */
  readonly threads?: number;
  /** How long a peer's broker may take for the whole handshake. Default 5,000 ms. */
  readonly handshakeMs?: number;
  /** Transfers begun and not yet taken by `takeChanged`. Default 65,536. */
  readonly transfersMax?: number;
  /**
   * Makes the broker listen on a path in this folder, for containers that share a folder and no network namespace.
   * Default: an abstract socket; a path in the system's folder for temporary files where those are not to be had.
   */
  readonly socketDirectory?: string;
}

const noIds = new Int32Array(0);
const noGenerations = new BigUint64Array(0);

/** Pulls from the memory of another process on this machine. */
export class HostTransport implements Transport {
  readonly name = 'host';
  readonly capabilities: TransportCapabilities;
  private readonly host: NativeHost;
  private readonly options: Required<Pick<HostTransportOptions, 'handshakeMs'>> & HostTransportOptions;
  private readonly regions: Region[] = [];
  private readonly links = new Map<string, HostLink>();
  private readonly transfers = new Map<number, HostTransfer>();
  private readonly stopListening: () => void;
  private wakeListener: (() => void) | null = null;
  /** A wake-up came while nobody listened; there is no other before the rings are looked at. */
  private wakeMissed = false;
  private settled: TransferHandle[] = [];
  private listener: Pick<HostGrant, 'address' | 'token' | 'machine'> | null = null;
  private closing: Promise<void> | null = null;

  /** @throws `ARGUMENT_INVALID`, `NATIVE_UNAVAILABLE`, `NATIVE_SYSTEM` */
  constructor(options: HostTransportOptions = {}) {
    requireObject('options', options);
    const threads = boundedOption('threads', options.threads, Math.min(4, availableParallelism()), 64);
    const transfersMax = boundedOption('transfersMax', options.transfersMax, 65_536, 1_048_576);
    const handshakeMs = boundedOption('handshakeMs', options.handshakeMs, 5_000, 600_000);
    this.options = { ...options, handshakeMs };
    this.capabilities = {
      direction: 'pull',
      memoryKinds: ['host'],
      provesQuietOnCancel: true,
      detectsLateReads: options.blockGenerations !== undefined,
    };
    const { blockGenerations, slotGenerations } = options;
    this.host = native(() =>
      addon().hostOpen(blockGenerations?.native ?? null, slotGenerations?.native ?? null, threads, transfersMax),
    );
    this.stopListening = onNativeWake(() => this.wake());
  }

  get onWake(): (() => void) | null {
    return this.wakeListener;
  }

  set onWake(listener: (() => void) | null) {
    this.wakeListener = listener;
    if (listener !== null && this.wakeMissed) queueMicrotask(() => this.wake());
  }

  register(region: Region): number {
    this.requireOpen();
    if (region.kind !== 'host' || region.native === null) {
      throw argumentError(
        'region',
        'a host region of allocateHostRegion',
        region.native === null ? 'plain memory' : region.kind,
      );
    }
    const index = native(() => addon().hostRegister(this.host, region.native as object));
    this.regions[index] = region;
    return index;
  }

  /** Listens from the first call on. A grant covers the regions registered so far. */
  grant(): JsonObject {
    this.requireOpen();
    if (this.regions.length === 0) {
      throw new HandoffError('NOT_SET_UP', 'the host transport grants nothing before a region is registered');
    }
    this.listener ??= this.listen();
    return encodeHostGrant({
      ...this.listener,
      regionBytes: BigUint64Array.from(this.regions, (region) => BigInt(region.byteLength)),
      blockGenerations: this.options.blockGenerations?.count ?? 0,
      slotGenerations: this.options.slotGenerations?.count ?? 0,
    });
  }

  connect(grant: JsonValue): Peer {
    this.requireOpen();
    let decoded: HostGrant;
    try {
      decoded = decodeHostGrant(grant);
      requireThisMachine(decoded);
    } catch (error) {
      return new HostPeer(this, HostLink.failed(fromNative(error)), (failed) => this.release(failed));
    }
    const key = JSON.stringify(encodeHostGrant(decoded));
    let link = this.links.get(key);
    if (link === undefined || link.status() === 'failed') {
      link = HostLink.open(this.host, decoded, this.options.handshakeMs);
      this.links.set(key, link);
    }
    return new HostPeer(this, link, (unused) => this.release(unused));
  }

  begin(request: TransferRequest, peer: Peer): TransferHandle {
    this.requireOpen();
    if (!(peer instanceof HostPeer) || peer.transport !== this) {
      throw argumentError('peer', 'a peer that this transport connected', peer);
    }
    if (request.programs.length === 0) return this.settle(SettledTransfer.done());
    const failure = peer.error;
    if (failure !== null) return this.settle(SettledTransfer.failed(failure.code, failure.message, failure));
    if (peer.link.comparesGenerations && request.generations === null) {
      const why =
        'the request claims no generations though the peer grants them; its ticket was altered or is of another instance';
      return this.settle(SettledTransfer.failed('PEER_REFUSED', why, null));
    }
    const { rectangles, tables, rows } = encodeForCall(request.programs);
    const claimed = request.generations;
    try {
      const id = addon().hostBegin(
        this.host,
        peer.link.id,
        rectangles,
        tables,
        rows,
        claimed?.blocks ?? noIds,
        claimed?.blockGenerations ?? noGenerations,
        claimed?.slots ?? noIds,
        claimed?.slotGenerations ?? noGenerations,
      );
      const transfer = new HostTransfer(this.host, id);
      this.transfers.set(id, transfer);
      return transfer;
    } catch (error) {
      const failed = fromNative(error);
      if (failed.code !== 'NATIVE_LIMIT' && failed.code !== 'NATIVE_SYSTEM') throw failed;
      return this.settle(SettledTransfer.failed(failed.code, failed.message, failed));
    }
  }

  takeChanged(): readonly TransferHandle[] {
    const changed = this.settled;
    this.settled = [];
    for (const id of native(() => addon().hostTake(this.host))) {
      const transfer = this.transfers.get(id);
      if (transfer === undefined) continue;
      transfer.poll();
      this.transfers.delete(id);
      native(() => addon().hostForget(this.host, id));
      changed.push(transfer);
    }
    return changed;
  }

  /** Does not wait for peers: whoever has mapped this side's memory keeps it. */
  close(): Promise<void> {
    if (this.closing !== null) return this.closing;
    for (const transfer of this.transfers.values()) {
      if (transfer.poll() === 'active' && !transfer.cancelling) {
        return Promise.reject(
          new HandoffError(
            'MEMORY_IN_DOUBT',
            'the host transport does not close because transfers are under way; cancel them first',
            { targetSafe: false },
          ),
        );
      }
    }
    this.closing = this.stop();
    return this.closing;
  }

  private async stop(): Promise<void> {
    for (const link of this.links.values()) link.disconnect();
    this.links.clear();
    addon().hostClose(this.host);
    // A cancelled copy ends within one chunk; the threads leave after it.
    while (!addon().hostQuiet(this.host)) await new Promise((resolve) => setTimeout(resolve, 1));
    for (const transfer of this.transfers.values()) transfer.poll();
    this.stopListening();
  }

  /** Drops a link that nobody uses. */
  private release(link: HostLink): void {
    link.disconnect();
    for (const [key, known] of this.links) {
      if (known === link) this.links.delete(key);
    }
  }

  private wake(): void {
    this.wakeMissed = this.wakeListener === null;
    this.wakeListener?.();
  }

  private settle(transfer: SettledTransfer): SettledTransfer {
    this.settled.push(transfer);
    if (this.settled.length === 1) queueMicrotask(() => this.wake());
    return transfer;
  }

  private listen(): Pick<HostGrant, 'address' | 'token' | 'machine'> {
    const token = Uint8Array.from(randomBytes(16));
    const name = `state-handoff-${randomBytes(8).toString('hex')}`;
    const { socketDirectory } = this.options;
    const address = native(() =>
      addon().hostListen(this.host, socketDirectory === undefined, socketDirectory ?? tmpdir(), name, token),
    );
    return { address, token, machine: thisMachine() };
  }

  private requireOpen(): void {
    if (this.closing !== null) throw new HandoffError('CLOSED', 'the host transport is closed');
  }
}

function boundedOption(name: string, value: number | undefined, fallback: number, max: number): number {
  if (value === undefined) return fallback;
  if (Number.isInteger(value) && value >= 1 && value <= max) return value;
  throw argumentError(`options.${name}`, `an integer from 1 to ${max}`, value);
}

/** A name of the running system that tells nothing else about it; null where the system does not say. */
export function thisMachine(): string | null {
  try {
    const bootId = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    return createHash('sha256').update(`state-handoff:${bootId}`).digest('hex').slice(0, 32);
  } catch {
    return null;
  }
}

/** @throws `PEER_UNREACHABLE` when both ends know their machines and these differ */
export function requireThisMachine(grant: Pick<HostGrant, 'machine'>): void {
  const here = thisMachine();
  if (grant.machine === null || here === null || grant.machine === here) return;
  throw new HandoffError('PEER_UNREACHABLE', 'the peer is on another machine, which the host transport does not reach');
}
