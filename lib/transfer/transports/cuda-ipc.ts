/**
 * The CUDA IPC transport: one-sided pulls between GPU memories of one machine, from the peer's allocation as this process
 * maps it. The same GPU or another that can read it; a kernel walks the copy program, one launch a chunk of 64 MiB.
 *
 * Owns the broker that shows this side's memory to importers, the links to peers, and the transfers under way. Seen on an
 * H200 (driver 580): killing the exporter disturbs neither a running pull nor the importer's context. Its memory stays,
 * unchanged, until the importer's mapping closes; so a pull under way ends well, and every later one is refused.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { requireObject } from '../../argument-shape.js';
import { argumentError, HandoffError } from '../../errors.js';
import type { JsonObject, JsonValue } from '../../json.js';
import { describeCuda } from '../../memory/cuda-driver-path.js';
import type { Region } from '../../memory/region.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import type { NativeCudaIpc } from '../../native/cuda-types.js';
import { encodeForCall } from '../../native/encoded-program.js';
import { onNativeWake } from '../../native/wake.js';
import type { NativeCounted } from '../transport-registry.js';
import type { Peer, Transport, TransportCapabilities, TransferHandle, TransferRequest } from '../transport.js';
import { CudaIpcLink, CudaIpcPeer } from './cuda-ipc-peer.js';
import { CudaIpcTransfer } from './cuda-ipc-transfer.js';
import { requireThisMachine, thisMachine } from './host.js';
import { decodeHostGrant, encodeHostGrant, type HostGrant } from './host-grant.js';
import { SettledTransfer } from './host-transfer.js';

/** How a `CudaIpcTransport` is made. */
export interface CudaIpcTransportOptions {
  /** Source side: makes late readers of this side's blocks notice. */
  readonly blockGenerations?: NativeCounted;
  /** The same for SSM slots. Give both when the engine has slots. */
  readonly slotGenerations?: NativeCounted;
  /** How long a peer's broker may take for the whole handshake. Default 5,000 ms. */
  readonly handshakeMs?: number;
  /** Transfers begun and not yet taken by `takeChanged`. Default 65,536. */
  readonly transfersMax?: number;
}

const noIds = new Int32Array(0);
const noGenerations = new BigUint64Array(0);

/** Pulls from the GPU memory of another process on this machine. */
export class CudaIpcTransport implements Transport {
  readonly name = 'cuda-ipc';
  readonly capabilities: TransportCapabilities;
  private readonly ipc: NativeCudaIpc;
  private readonly options: CudaIpcTransportOptions;
  private readonly handshakeMs: number;
  private readonly regions: Region[] = [];
  private readonly links = new Map<string, CudaIpcLink>();
  private readonly transfers = new Map<number, CudaIpcTransfer>();
  private readonly stopListening: () => void;
  private wakeListener: (() => void) | null = null;
  /** A wake-up came while nobody listened; there is no other before the rings are looked at. */
  private wakeMissed = false;
  private settled: TransferHandle[] = [];
  private listener: Pick<HostGrant, 'address' | 'token' | 'machine'> | null = null;
  private closing: Promise<void> | null = null;

  /**
   * @throws `TRANSPORT_UNAVAILABLE` without a CUDA driver, a GPU or kernels, saying what is missing; `ARGUMENT_INVALID`,
   * `NATIVE_UNAVAILABLE`, `NATIVE_SYSTEM`
   */
  constructor(options: CudaIpcTransportOptions = {}) {
    requireObject('options', options);
    const transfersMax = boundedOption('transfersMax', options.transfersMax, 65_536, 1_048_576);
    this.handshakeMs = boundedOption('handshakeMs', options.handshakeMs, 5_000, 600_000);
    this.options = options;
    this.capabilities = {
      direction: 'pull',
      memoryKinds: ['cuda'],
      provesQuietOnCancel: true,
      detectsLateReads: options.blockGenerations !== undefined,
      // The engine's own context is gone then, and with it all that could prove anything.
      unsafeFailureIsFatal: true,
    };
    describeCuda();
    const kernels = kernelsOf(process.env['STATE_HANDOFF_CUDA_KERNELS']);
    const { blockGenerations, slotGenerations } = options;
    this.ipc = native(() =>
      addon().cudaIpcOpen(blockGenerations?.native ?? null, slotGenerations?.native ?? null, transfersMax, kernels),
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
    if (region.kind !== 'cuda' || region.native === null) {
      throw argumentError('region', 'a GPU region of allocateCudaRegion or importCudaRegion', region.kind);
    }
    const index = native(() => addon().cudaIpcRegister(this.ipc, region.native as object));
    this.regions[index] = region;
    return index;
  }

  /** Listens from the first call on. A grant covers the regions registered so far. */
  grant(): JsonObject {
    this.requireOpen();
    if (this.regions.length === 0) {
      throw new HandoffError('NOT_SET_UP', 'the cuda-ipc transport grants nothing before a region is registered');
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
      return new CudaIpcPeer(this, CudaIpcLink.failed(fromNative(error)), (failed) => this.release(failed));
    }
    const key = JSON.stringify(encodeHostGrant(decoded));
    let link = this.links.get(key);
    if (link === undefined || link.status() === 'failed') {
      link = CudaIpcLink.open(this.ipc, decoded, this.handshakeMs);
      this.links.set(key, link);
    }
    return new CudaIpcPeer(this, link, (unused) => this.release(unused));
  }

  begin(request: TransferRequest, peer: Peer): TransferHandle {
    this.requireOpen();
    if (!(peer instanceof CudaIpcPeer) || peer.transport !== this) {
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
      const id = addon().cudaIpcBegin(
        this.ipc,
        peer.link.id,
        rectangles,
        tables,
        rows,
        claimed?.blocks ?? noIds,
        claimed?.blockGenerations ?? noGenerations,
        claimed?.slots ?? noIds,
        claimed?.slotGenerations ?? noGenerations,
      );
      const transfer = new CudaIpcTransfer(this.ipc, id);
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
    for (const id of native(() => addon().cudaIpcTake(this.ipc))) {
      const transfer = this.transfers.get(id);
      if (transfer === undefined) continue;
      changed.push(transfer);
      // One that is in doubt stays, and with it whatever it holds on to.
      if (transfer.poll() === 'failed-active') continue;
      this.transfers.delete(id);
      native(() => addon().cudaIpcForget(this.ipc, id));
    }
    return changed;
  }

  /** Memory that importers still map is left to the driver, which frees it when the last of them has ended. */
  close(): Promise<void> {
    if (this.closing !== null) return this.closing;
    for (const transfer of this.transfers.values()) {
      const status = transfer.poll();
      if (status === 'failed-active' || (status === 'active' && !transfer.cancelling)) {
        return Promise.reject(
          new HandoffError(
            'MEMORY_IN_DOUBT',
            status === 'active'
              ? 'the cuda-ipc transport does not close because transfers are under way; cancel them first'
              : 'the cuda-ipc transport does not close because its GPU was lost; end the process',
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
    addon().cudaIpcClose(this.ipc);
    // A cancelled transfer ends with its last launch; the threads leave after it.
    while (!addon().cudaIpcQuiet(this.ipc)) await new Promise((resolve) => setTimeout(resolve, 1));
    for (const transfer of this.transfers.values()) transfer.poll();
    this.stopListening();
  }

  /** Drops a link that nobody uses. */
  private release(link: CudaIpcLink): void {
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
    const address = native(() => addon().cudaIpcListen(this.ipc, true, tmpdir(), name, token));
    return { address, token, machine: thisMachine() };
  }

  private requireOpen(): void {
    if (this.closing !== null) throw new HandoffError('CLOSED', 'the cuda-ipc transport is closed');
  }
}

/** Kernels compiled elsewhere, for an addon that was built without nvcc. */
function kernelsOf(path: string | undefined): Uint8Array | null {
  if (path === undefined || path === '') {
    const missing = addon().cudaKernelsMissing();
    if (missing === null) return null;
    throw new HandoffError(
      'TRANSPORT_UNAVAILABLE',
      `the addon has no CUDA kernels because ${missing}; install the CUDA toolkit and run \`npm rebuild state-handoff\`, ` +
        'or name compiled kernels with STATE_HANDOFF_CUDA_KERNELS',
    );
  }
  try {
    return Uint8Array.from(readFileSync(path));
  } catch (cause) {
    throw new HandoffError('TRANSPORT_UNAVAILABLE', `STATE_HANDOFF_CUDA_KERNELS: ${(cause as Error).message}`, {
      cause,
    });
  }
}

function boundedOption(name: string, value: number | undefined, fallback: number, max: number): number {
  if (value === undefined) return fallback;
  if (Number.isInteger(value) && value >= 1 && value <= max) return value;
  throw argumentError(`options.${name}`, `an integer from 1 to ${max}`, value);
}
