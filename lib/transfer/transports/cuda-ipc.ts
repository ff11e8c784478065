/**
 * The CUDA IPC transport: one-sided pulls between GPU memories of one machine, from the peer's allocation as this process
 * maps it. The same GPU or another that can read it; a kernel walks the copy program, one launch a chunk of 64 MiB.
 *
 * Seen on an H200 (driver 580): killing the exporter disturbs neither a running pull nor the importer's context. Its memory
 * stays, unchanged, until the importer's mapping closes; so a pull under way ends well, and every later one is refused.
 */
import { readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { requireObject } from '../../argument-shape.js';
import { argumentError, HandoffError } from '../../errors.js';
import type { JsonObject, JsonValue } from '../../json.js';
import { describeCuda } from '../../memory/cuda-driver-path.js';
import type { Region } from '../../memory/region.js';
import { addon } from '../../native/addon.js';
import { native } from '../../native/addon-errors.js';
import type { NativeCounted } from '../transport-registry.js';
import type { Peer, Transport, TransportCapabilities, TransferHandle, TransferRequest } from '../transport.js';
import { BrokerSide } from './broker-side.js';
import { boundedOption, handshakeBounds, transfersBounds } from './option-bounds.js';

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

/** Pulls from the GPU memory of another process on this machine. */
export class CudaIpcTransport implements Transport {
  readonly name = 'cuda-ipc';
  readonly capabilities: TransportCapabilities;
  private readonly side: BrokerSide;

  /**
   * @throws `TRANSPORT_UNAVAILABLE` without a CUDA driver, a GPU or kernels, saying what is missing; `ARGUMENT_INVALID`,
   * `NATIVE_UNAVAILABLE`, `NATIVE_SYSTEM`
   */
  constructor(options: CudaIpcTransportOptions = {}) {
    requireObject('options', options);
    const { blockGenerations, slotGenerations } = options;
    const transfersMax = boundedOption('transfersMax', options.transfersMax, transfersBounds);
    const handshakeMs = boundedOption('handshakeMs', options.handshakeMs, handshakeBounds);
    this.capabilities = {
      direction: 'pull',
      memoryKinds: ['cuda'],
      provesQuietOnCancel: true,
      detectsLateReads: blockGenerations !== undefined,
      // The engine's own context is gone then, and with it all that could prove anything.
      unsafeFailureIsFatal: true,
    };
    describeCuda();
    const kernels = kernelsOf(process.env['STATE_HANDOFF_CUDA_KERNELS']);
    this.side = new BrokerSide({
      transport: this.name,
      calls: addon().cudaIpc,
      endpoint: native(() =>
        addon().cudaIpcOpen(blockGenerations?.native ?? null, slotGenerations?.native ?? null, transfersMax, kernels),
      ),
      handshakeMs,
      socket: { abstract: true, directory: tmpdir() },
      blockGenerations,
      slotGenerations,
      doubt: 'its GPU was lost; end the process',
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
    if (region.kind !== 'cuda' || region.native === null) {
      throw argumentError('region', 'a GPU region of allocateCudaRegion or importCudaRegion', region.kind);
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

  /** Memory that importers still map is left to the driver, which frees it when the last of them has ended. */
  close(): Promise<void> {
    return this.side.close();
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
