/**
 * The NCCL transport: pushes between GPU memories over a communicator of two, one for each pair of ranks. Two-sided: the
 * target gets ready (`begin`), the source sends (`beginPush`), both match by tag.
 *
 * The source reaches the target over TCP (address and token travel in the grants) to get the pair's unique id and to agree
 * on the order, and the target watches the source over another line; bytes go over NCCL only. Anything that fails or is cancelled while bytes move costs the pair's
 * communicator, which proves quiet, and nothing else; the next push makes a new one.
 */
import { randomBytes, timingSafeEqual } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { requireObject } from '../../argument-shape.js';
import { argumentError, HandoffError, type HandoffErrorCode } from '../../errors.js';
import type { JsonObject, JsonValue } from '../../json.js';
import type { Region } from '../../memory/region.js';
import { addon } from '../../native/addon.js';
import { fromNative, native } from '../../native/addon-errors.js';
import { encodePrograms } from '../../native/encoded-program.js';
import type { NativeNccl } from '../../native/nccl-types.js';
import { untilQuiet, untilReady } from '../../native/patience.js';
import { programBytes } from '../copy-program.js';
import { splitMessages } from '../program-descriptors.js';
import type { Peer, Transport, TransportCapabilities, TransferHandle, TransferRequest } from '../transport.js';
import { Closing } from './closing.js';
import { ExpectedPushes } from './nccl-expected.js';
import { decodeNcclGrant, type NcclGrant } from './nccl-grant.js';
import { ncclCandidates } from './nccl-library.js';
import { NcclSourcePair, NcclTargetPair } from './nccl-pair.js';
import { NcclPeer, NcclWatch, NcclWatched } from './nccl-peer.js';
import { NcclTransfer } from './nccl-transfer.js';
import { NcclLine, type NcclMessage } from './nccl-wire.js';
import { boundedOption, transfersBounds } from './option-bounds.js';
import { WakeListener } from './wake-listener.js';

/** How an `NcclTransport` is made. */
export interface NcclTransportOptions {
  /** Whether this side pushes (prefill) or is pushed to (decode). */
  readonly pushes: boolean;
  /** Under which name or address peers reach this process. Default 127.0.0.1: peers of this machine only. */
  readonly host?: string;
  /** Bytes of a place of the staging ring, which has six; the same on both sides. Default 32 MiB. */
  readonly chunkBytes?: number;
  /**
   * One message a chunk. `false`: one for each block of each planned transfer, in the order in which the reference's
   * backend posts them (spec 7.4), for a peer that does so too; slow. The same on both sides. Default true.
   */
  readonly packed?: boolean;
  /** Paths or names of `libnccl.so.2`, best first. Default: see `STATE_HANDOFF_NCCL` and the documentation. */
  readonly libraries?: readonly string[];
  /** Transfers begun and not yet taken by `takeChanged`. Default 65,536. */
  readonly transfersMax?: number;
}

/** What stands at this end of a line. */
interface End {
  attach(line: NcclLine): void;
  receive(message: NcclMessage): void;
  fail(code: HandoffErrorCode, message: string): void;
}

const chunkBounds = { fallback: 32 << 20, min: 4096, max: 2 ** 30 };
const handshakeMs = 10_000;
const connectionsMax = 1024;

/** Pushes from GPU memory to the GPU memory of a peer, wherever NCCL reaches it. */
export class NcclTransport implements Transport {
  readonly name = 'nccl';
  readonly capabilities: TransportCapabilities = {
    direction: 'push',
    memoryKinds: ['cuda'],
    provesQuietOnCancel: true,
    detectsLateReads: false,
  };
  private readonly nccl: NativeNccl;
  private readonly chunkBytes: number;
  private readonly packed: boolean;
  private readonly host: string;
  private readonly regions: Region[] = [];
  private readonly token = randomBytes(16).toString('hex');
  private readonly targetPairs = new Set<NcclTargetPair>();
  private readonly sourcePairs = new Set<NcclSourcePair>();
  /** Target: what is expected and was not posted. */
  private readonly expected = new ExpectedPushes();
  /** Target: lines to sources. Source: lines from targets. */
  private readonly watches = new Set<End>();
  private readonly transfers = new Set<NcclTransfer>();
  private readonly bell = new WakeListener(this, () => this.turn());
  private readonly closing = new Closing('nccl', { targetSafe: false, sourceSafe: false });
  private server: Server | null = null;
  private wakePending = false;
  private opened: Promise<void> | null = null;
  private isOpen = false;

  /** @throws `ARGUMENT_INVALID`, `NATIVE_UNAVAILABLE` */
  constructor(private readonly options: NcclTransportOptions) {
    requireObject('options', options);
    if (typeof options.pushes !== 'boolean') throw argumentError('options.pushes', 'a boolean', options.pushes);
    this.chunkBytes = boundedOption('chunkBytes', options.chunkBytes, chunkBounds);
    this.packed = options.packed ?? true;
    if (typeof this.packed !== 'boolean') throw argumentError('options.packed', 'a boolean', options.packed);
    const transfersMax = boundedOption('transfersMax', options.transfersMax, transfersBounds);
    this.host = options.host ?? '127.0.0.1';
    const libraries = options.libraries ?? ncclCandidates();
    const kernels = process.env['STATE_HANDOFF_CUDA_KERNELS'];
    const image = kernels === undefined || kernels === '' ? null : Uint8Array.from(readFileSync(kernels));
    this.nccl = native(() => addon().ncclOpen(libraries.join('\n'), this.chunkBytes, transfersMax, this.packed, image));
  }

  get onWake(): (() => void) | null {
    return this.bell.listener;
  }

  set onWake(listener: (() => void) | null) {
    this.bell.listener = listener;
  }

  register(region: Region): number {
    this.requireNotClosed();
    if (region.kind !== 'cuda' || region.native === null) {
      throw argumentError('region', 'a region of GPU memory', region.kind);
    }
    const index = native(() => addon().ncclRegister(this.nccl, region.native as object));
    this.regions[index] = region;
    return index;
  }

  /** @throws (rejects) `TRANSPORT_UNAVAILABLE` without a usable NCCL, `NATIVE_SYSTEM`, `NOT_SET_UP` without a region */
  open(): Promise<void> {
    this.requireNotClosed();
    if (this.regions.length === 0) {
      return Promise.reject(
        new HandoffError('NOT_SET_UP', 'the nccl transport does not open before a region is registered'),
      );
    }
    this.opened ??= this.start();
    return this.opened;
  }

  grant(): JsonObject {
    this.requireOpen();
    return {
      version: 1,
      chunk_bytes: this.chunkBytes,
      packed: this.packed,
      regions: this.regionSizes(),
      pushes: this.options.pushes,
      listener: { host: this.host, port: (this.server!.address() as AddressInfo).port, token: this.token },
    };
  }

  connect(grant: JsonValue): Peer {
    this.requireOpen();
    try {
      const decoded = decodeNcclGrant(grant);
      if (decoded.chunkBytes !== this.chunkBytes || decoded.packed !== this.packed) {
        const cut = ({ chunkBytes, packed }: { chunkBytes: number; packed: boolean }): string =>
          `${packed ? 'packed' : 'unpacked'} chunks of ${chunkBytes} bytes`;
        const why = `${cut({ chunkBytes: this.chunkBytes, packed: this.packed })} here and ${cut(decoded)} there`;
        throw new HandoffError('PEER_REFUSED', `both ends must cut alike: ${why}`);
      }
      if (decoded.pushes === this.options.pushes) {
        throw new HandoffError('PEER_REFUSED', `both ends ${decoded.pushes ? 'push' : 'are pushed to'}`);
      }
      return this.options.pushes ? this.pushTo(decoded) : this.watch(decoded);
    } catch (error) {
      return new NcclPeer(this, null, null, fromNative(error));
    }
  }

  /** Target: gets ready for the push of this tag, whoever it comes from among the peers that know the token. */
  begin(request: TransferRequest, peer: Peer): TransferHandle {
    const transfer = this.transferOf(request, peer, false);
    if (!transfer.isOver && !this.expected.add(transfer, peer)) {
      transfer.refuse('INVARIANT', 'a push of this tag is expected already');
    }
    this.turn();
    return transfer;
  }

  /** Source: sends, after those before it to the same peer. */
  beginPush(request: TransferRequest, peer: Peer): TransferHandle {
    const transfer = this.transferOf(request, peer, true);
    const { pair } = peer as NcclPeer;
    if (!transfer.isOver && pair !== null) pair.push(transfer);
    return transfer;
  }

  /** Whether this end was posted, so that bytes may be moving. For tests and `inspect`. */
  isPosted(handle: TransferHandle): boolean {
    return handle instanceof NcclTransfer && handle.nativeId !== 0;
  }

  takeChanged(): readonly TransferHandle[] {
    if (!this.closing.hasBegun) native(() => addon().ncclTake(this.nccl));
    this.turn();
    const changed: NcclTransfer[] = [];
    for (const transfer of this.transfers) {
      if (transfer.poll() === 'active') continue;
      changed.push(transfer);
      if (!transfer.isOver) continue;
      this.transfers.delete(transfer);
      if (transfer.nativeId !== 0) native(() => addon().ncclForget(this.nccl, transfer.nativeId));
    }
    return changed;
  }

  close(): Promise<void> {
    return this.closing.close(this.transfers, () => this.stop());
  }

  private async start(): Promise<void> {
    native(() => addon().ncclStart(this.nccl));
    await untilReady(
      () => addon().ncclReadiness(this.nccl),
      () => addon().ncclStartError(this.nccl),
      () => this.closing.hasBegun,
    );
    this.requireNotClosed();
    this.server = await this.listen();
    this.isOpen = true;
  }

  private async stop(): Promise<void> {
    this.server?.close();
    for (const each of [...this.sourcePairs, ...this.targetPairs, ...this.watches]) {
      each.fail('CLOSED', 'the nccl transport was closed on this side');
    }
    this.expected.refuse(null, 'CLOSED', 'the nccl transport was closed');
    addon().ncclClose(this.nccl);
    await untilQuiet(() => addon().ncclQuiet(this.nccl));
    for (const transfer of this.transfers) transfer.poll();
    this.bell.end();
  }

  private listen(): Promise<Server> {
    const server = createServer((socket) => this.accept(socket));
    server.maxConnections = connectionsMax;
    return new Promise((resolve, reject) => {
      server.once('error', (cause) =>
        reject(
          new HandoffError('NATIVE_SYSTEM', `nothing listens on ${this.host} because ${cause.message}`, { cause }),
        ),
      );
      server.listen(0, this.host, () => {
        server.unref();
        resolve(server);
      });
    });
  }

  private accept(socket: Socket): void {
    const knowsToken = (token: string): boolean => sameText(token, this.token);
    if (this.options.pushes) {
      const watched = new NcclWatched(knowsToken);
      this.watches.add(watched);
      this.attach(socket, watched, () => this.watches.delete(watched));
      return this.requireName(watched);
    }
    const pair = new NcclTargetPair(this.nccl, knowsToken, this.expected, () => this.wakeSoon());
    this.targetPairs.add(pair);
    this.attach(socket, pair, () => this.targetPairs.delete(pair));
    this.requireName(pair);
  }

  /** One that says nothing holds a place and no more; it loses that too. */
  private requireName(end: End & { readonly isKnown: boolean }): void {
    setTimeout(() => {
      if (!end.isKnown) end.fail('PEER_REFUSED', `the peer did not say who it is within ${handshakeMs} ms`);
    }, handshakeMs).unref();
  }

  private pushTo({ listener, regionBytes }: NcclGrant): NcclPeer {
    const pair = new NcclSourcePair(this.nccl, regionBytes, () => this.wakeSoon());
    const socket = connect({ host: listener.host, port: listener.port });
    this.sourcePairs.add(pair);
    const line = this.attach(socket, pair, () => this.sourcePairs.delete(pair));
    line.send({ kind: 'hello', token: listener.token, regions: this.regionSizes() });
    return new NcclPeer(this, pair, pair, null);
  }

  private watch({ listener }: NcclGrant): NcclPeer {
    const watch = new NcclWatch(() => {
      // What it has not announced will not come; what moves ends with its communicator.
      if (watch.error !== null) this.expected.refuse(peer, watch.error.code, watch.error.message);
      this.wakeSoon();
    });
    const peer = new NcclPeer(this, watch, null, null);
    this.watches.add(watch);
    const socket = connect({ host: listener.host, port: listener.port });
    const line = this.attach(socket, watch, () => this.watches.delete(watch));
    line.send({ kind: 'watch', token: listener.token });
    return peer;
  }

  private attach(socket: Socket, end: End, onEnd: () => void): NcclLine {
    const line = new NcclLine(
      socket,
      (message) => end.receive(message),
      (why) => {
        end.fail('PEER_LOST', `the peer is lost: ${why}`);
        onEnd();
      },
    );
    line.unref();
    end.attach(line);
    return line;
  }

  private transferOf(request: TransferRequest, peer: Peer, sends: boolean): NcclTransfer {
    this.requireOpen();
    if (!(peer instanceof NcclPeer) || peer.transport !== this) {
      throw argumentError('peer', 'a peer that this transport connected', peer);
    }
    if (sends !== this.options.pushes) {
      throw argumentError('peer', sends ? 'a transport that pushes' : 'a transport that is pushed to', this.name);
    }
    const bytes = request.programs.reduce((sum, program) => sum + programBytes(program), 0);
    const encoded = encodePrograms(this.packed ? request.programs : request.programs.map(splitMessages));
    const transfer = new NcclTransfer(this.nccl, request.tag, encoded, bytes, (cancelled) => this.cancel(cancelled));
    this.transfers.add(transfer);
    const { error } = peer;
    if (error !== null) {
      transfer.refuse(error.code, error.message);
      this.wakeSoon();
    }
    return transfer;
  }

  /** What was not posted is quiet at once; what was costs its communicator. */
  private cancel(transfer: NcclTransfer): void {
    const why = 'the transfer was cancelled';
    this.expected.giveUp(transfer);
    for (const pair of this.sourcePairs) pair.drop(transfer);
    for (const pair of [...this.sourcePairs, ...this.targetPairs]) {
      if (pair.holds(transfer)) pair.fail('TRANSFER_CANCELLED', `${why}, and its communicator ended with it`);
    }
    transfer.refuse('TRANSFER_CANCELLED', why);
    this.wakeSoon();
  }

  private turn(): void {
    if (this.closing.hasBegun) return;
    for (const pair of [...this.sourcePairs, ...this.targetPairs]) pair.turn();
  }

  private wakeSoon(): void {
    if (this.wakePending) return;
    this.wakePending = true;
    queueMicrotask(() => {
      this.wakePending = false;
      this.bell.wake();
    });
  }

  private regionSizes(): string[] {
    return this.regions.map(({ byteLength }) => String(byteLength));
  }

  private requireOpen(): void {
    this.requireNotClosed();
    if (!this.isOpen)
      throw new HandoffError('NOT_SET_UP', 'the nccl transport is not open; call open() and wait for it');
  }

  private requireNotClosed(): void {
    this.closing.requireOpen();
  }
}

function sameText(given: string, token: string): boolean {
  const [a, b] = [Buffer.from(given), Buffer.from(token)];
  return a.length === b.length && timingSafeEqual(a, b);
}
