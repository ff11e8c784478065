/**
 * The host transport: one-sided pulls between processes of one machine, from a read-only mapping of the peer's sealed
 * memory, by native threads. Needs no GPU, no privilege and no shared folder.
 */
import { availableParallelism, tmpdir } from 'node:os';
import { requireObject } from '../../argument-shape.js';
import { argumentError } from '../../errors.js';
import type { JsonObject, JsonValue } from '../../json.js';
import type { Region } from '../../memory/region.js';
import { addon } from '../../native/addon.js';
import { native } from '../../native/addon-errors.js';
import type { Peer, Transport, TransportCapabilities, TransferHandle, TransferRequest } from '../transport.js';
import { BrokerSide } from './broker-side.js';
import { boundedOption, handshakeBounds, transfersBounds } from './option-bounds.js';

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

/** Pulls from the memory of another process on this machine. */
export class HostTransport implements Transport {
  readonly name = 'host';
  readonly capabilities: TransportCapabilities;
  private readonly side: BrokerSide;

  /** @throws `ARGUMENT_INVALID`, `NATIVE_UNAVAILABLE`, `NATIVE_SYSTEM` */
  constructor(options: HostTransportOptions = {}) {
    requireObject('options', options);
    const { blockGenerations, slotGenerations, socketDirectory } = options;
    const threadBounds = { fallback: Math.min(4, availableParallelism()), min: 1, max: 64 };
    const threads = boundedOption('threads', options.threads, threadBounds);
    const transfersMax = boundedOption('transfersMax', options.transfersMax, transfersBounds);
    const handshakeMs = boundedOption('handshakeMs', options.handshakeMs, handshakeBounds);
    this.capabilities = {
      direction: 'pull',
      memoryKinds: ['host'],
      provesQuietOnCancel: true,
      detectsLateReads: blockGenerations !== undefined,
    };
    this.side = new BrokerSide({
      transport: this.name,
      calls: addon().host,
      endpoint: native(() =>
        addon().hostOpen(blockGenerations?.native ?? null, slotGenerations?.native ?? null, threads, transfersMax),
      ),
      handshakeMs,
      socket: { abstract: socketDirectory === undefined, directory: socketDirectory ?? tmpdir() },
      blockGenerations,
      slotGenerations,
    });
  }

  get onWake(): (() => void) | null {
    return this.side.onWake;
  }

  set onWake(listener: (() => void) | null) {
    this.side.onWake = listener;
  }

  register(region: Region): number {
    this.side.requireOpen();
    if (region.kind !== 'host' || region.native === null) {
      throw argumentError(
        'region',
        'a host region of allocateHostRegion',
        region.native === null ? 'plain memory' : region.kind,
      );
    }
    return this.side.register(region);
  }

  /** Listens from the first call on. A grant covers the regions registered so far. */
  grant(): JsonObject {
    return this.side.grant();
  }

  connect(grant: JsonValue): Peer {
    return this.side.connect(grant);
  }

  begin(request: TransferRequest, peer: Peer): TransferHandle {
    return this.side.begin(request, peer);
  }

  takeChanged(): readonly TransferHandle[] {
    return this.side.takeChanged();
  }

  /** Does not wait for peers: whoever has mapped this side's memory keeps it. */
  close(): Promise<void> {
    return this.side.close();
  }
}
