/**
 * A `Transport` in plain JavaScript over plain memory, whose every fault is scripted.
 *
 * Pull or push. It moves real bytes piece by piece in simulated time, so that memory reused too early holds wrong
 * bytes, and it honours generations as the host transport does. For tests; it moves nothing between processes.
 */
import { argumentError, HandoffError } from '../errors.js';
import { isRecord, type JsonValue } from '../json.js';
import type { BlockAllocator, SlotAllocator } from '../memory/allocators.js';
import type { Region } from '../memory/region.js';
import type {
  MemoryKind,
  Peer,
  PeerStatus,
  Transport,
  TransportCapabilities,
  TransportGrant,
  TransferHandle,
  TransferRequest,
} from '../transfer/transport.js';
import { expandMoves } from './copy-moves.js';
import type { ScriptedNetwork } from './scripted-network.js';
import type { ConnectPlan } from './transfer-script.js';

/** How a `ScriptedTransport` behaves. */
export interface ScriptedTransportOptions {
  /** Both ends use the same. Default `scripted`. */
  readonly name?: string;
  /** Default `pull`. A push needs `beginPush` at the source and `begin` at the target, with one tag. */
  readonly direction?: 'pull' | 'push';
  /** Default true. */
  readonly provesQuietOnCancel?: boolean;
  /** Default false. */
  readonly unsafeFailureIsFatal?: boolean;
  readonly memoryKinds?: readonly MemoryKind[];
  /** Source side: allocators whose generations a late reader is checked against. Default: none. */
  readonly generations?: {
    readonly blocks?: Pick<BlockAllocator, 'generationsOf'>;
    readonly slots?: Pick<SlotAllocator, 'generationsOf'>;
  };
}

/** A connection of a {@link ScriptedTransport}. */
class ScriptedPeer implements Peer {
  error: HandoffError | null = null;
  #status: PeerStatus = 'connecting';
  #isClosed = false;

  constructor(
    readonly owner: ScriptedTransport,
    readonly remote: ScriptedTransport | null,
  ) {}

  status(): PeerStatus {
    return this.#isClosed ? 'failed' : this.#status;
  }

  set(status: PeerStatus, error: HandoffError | null): void {
    if (this.#status === 'failed' || this.#isClosed) return;
    this.#status = status;
    this.error = error;
    this.owner.wake();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.error ??= new HandoffError('CLOSED', 'the peer is closed');
    this.owner.forgetPeer(this);
  }
}

/** A transport over plain memory whose faults are scripted. */
export class ScriptedTransport implements Transport {
  readonly name: string;
  readonly capabilities: TransportCapabilities;
  /** Present on push transports only. */
  readonly beginPush?: (request: TransferRequest, peer: Peer) => TransferHandle;
  readonly generations: ScriptedTransportOptions['generations'];
  /** What its grant carries; never used twice in a network. */
  readonly id: string;
  onWake: (() => void) | null = null;
  /** Its process was killed: nothing it had exists any more. */
  isDead = false;
  readonly #bytes: Uint8Array[] = [];
  readonly #sizes: number[] = [];
  readonly #peers = new Map<string, ScriptedPeer>();
  #changed = new Set<TransferHandle>();
  #wakeTold = false;
  #isClosed = false;

  constructor(
    readonly network: ScriptedNetwork,
    readonly options: ScriptedTransportOptions = {},
  ) {
    this.name = options.name ?? 'scripted';
    this.generations = options.generations;
    this.id = network.noteCreated(this, this.name);
    const direction = options.direction ?? 'pull';
    this.capabilities = {
      direction,
      memoryKinds: options.memoryKinds ?? ['host'],
      provesQuietOnCancel: options.provesQuietOnCancel ?? true,
      detectsLateReads: direction === 'pull' && options.generations !== undefined,
      unsafeFailureIsFatal: options.unsafeFailureIsFatal ?? false,
    };
    if (direction === 'push') this.beginPush = (request, peer) => this.#join('source', request, peer);
  }

  /** @throws `ARGUMENT_INVALID` when JavaScript cannot address the region; `CLOSED` */
  register(region: Region): number {
    this.#requireOpen();
    if (region.buffer === null) throw argumentError('region.buffer', 'an ArrayBuffer', region.buffer);
    this.#sizes.push(region.byteLength);
    return this.#bytes.push(new Uint8Array(region.buffer)) - 1;
  }

  grant(): TransportGrant {
    this.#requireOpen();
    if (this.#bytes.length === 0) {
      throw new HandoffError('NOT_SET_UP', 'there is nothing to grant because no region is registered');
    }
    return { id: this.id, region_bytes: [...this.#sizes] };
  }

  connect(grant: TransportGrant): Peer {
    this.#requireOpen();
    const fault = grantFault(grant);
    if (fault !== null) return this.#failedPeer(new HandoffError('PEER_REFUSED', `the grant is refused: ${fault}`));
    const { id } = grant as { readonly id: string };
    const known = this.#peers.get(id);
    if (known !== undefined && known.status() !== 'failed') return known;
    const remote = this.network.transportOf(id);
    if (remote === undefined) {
      return this.#failedPeer(new HandoffError('PEER_UNREACHABLE', `no process serves the grant ${id} any more`));
    }
    const peer = new ScriptedPeer(this, remote);
    this.#peers.set(id, peer);
    this.#bringUp(peer, this.network.drawConnect());
    return peer;
  }

  /**
   * @throws `ARGUMENT_INVALID` for a peer of another transport or one that is connecting, or a tag used before;
   *   `PROGRAM_OUT_OF_RANGE`; what the script says
   */
  begin(request: TransferRequest, peer: Peer): TransferHandle {
    if (this.capabilities.direction === 'push') return this.#join('target', request, peer);
    const source = this.#readyRemote(peer);
    if (source === null) return this.#stillborn(peer);
    const moves = expandMoves(request.programs, source.#sizes, this.#sizes);
    const transfer = this.network.createTransfer(source, this, request.tag);
    const { fault } = transfer.plan;
    if (fault?.kind === 'begin-throws' && fault.targetSafe) throw beginError(true, []);
    this.network.claimTag(transfer, 'target');
    transfer.hasHandle = fault?.kind !== 'begin-throws' || fault.cleanupHandle;
    const handle = transfer.startPull(request, moves);
    this.network.noteBegun(transfer);
    if (fault?.kind === 'begin-throws') throw beginError(false, fault.cleanupHandle ? [handle] : []);
    return handle;
  }

  takeChanged(): readonly TransferHandle[] {
    this.#wakeTold = false;
    const changed = this.#changed;
    this.#changed = new Set();
    return [...changed];
  }

  /** @throws (rejects) `MEMORY_IN_DOUBT` while a transfer may touch this side's memory */
  async close(): Promise<void> {
    for (const { source, target, targetEnd, sourceEnd, hasHandle } of this.network.transfers) {
      const end = target === this ? targetEnd : source === this ? sourceEnd : null;
      if (end !== null && (!end.isFinal || !hasHandle)) {
        throw new HandoffError(
          'MEMORY_IN_DOUBT',
          'close failed because a transfer may still touch memory; cancel it and wait',
          {
            targetSafe: target !== this,
            sourceSafe: source !== this,
          },
        );
      }
    }
    this.#isClosed = true;
    for (const peer of [...this.#peers.values()]) peer.close();
  }

  /** The bytes of a registered region. */
  bytesOf(region: number): Uint8Array {
    return this.#bytes[region]!;
  }

  /** @internal */
  noteChanged(handle: TransferHandle): void {
    this.#changed.add(handle);
    this.wake();
  }

  /** @internal */
  wake(): void {
    if (this.#wakeTold || this.isDead) return;
    this.#wakeTold = true;
    this.onWake?.();
  }

  /** @internal */
  forgetPeer(peer: Peer): void {
    for (const [id, known] of this.#peers) if (known === peer) this.#peers.delete(id);
  }

  /** @internal */
  noteKilled(): void {
    this.isDead = true;
    this.#isClosed = true;
  }

  /** @internal */
  notePeerKilled(dead: ScriptedTransport): void {
    this.#peers.get(dead.id)?.set('failed', new HandoffError('PEER_LOST', `the process of grant ${dead.id} is gone`));
  }

  #bringUp(peer: ScriptedPeer, plan: ConnectPlan): void {
    if (plan.outcome === 'connecting') return;
    const settle = (): void => {
      if (plan.outcome === 'ready') peer.set('ready', null);
      else peer.set('failed', new HandoffError('PEER_UNREACHABLE', 'the connection failed because the script says so'));
    };
    if (plan.afterMs === 0) settle();
    else this.network.clock.after(plan.afterMs, settle);
  }

  #failedPeer(error: HandoffError): ScriptedPeer {
    const peer = new ScriptedPeer(this, null);
    peer.set('failed', error);
    return peer;
  }

  #join(side: 'source' | 'target', request: TransferRequest, peer: Peer): TransferHandle {
    const remote = this.#readyRemote(peer);
    if (remote === null) return this.#stillborn(peer);
    const [source, target] = side === 'source' ? [this, remote] : [remote, this];
    // Each end knows its own addresses only.
    const moves = expandMoves(
      request.programs,
      side === 'source' ? this.#sizes : null,
      side === 'target' ? this.#sizes : null,
    );
    const transfer = this.network.matchHalf(source, target, request.tag, side);
    this.network.claimTag(transfer, side);
    const handle = transfer.join(side, request, moves);
    if (side === 'target') this.network.noteBegun(transfer);
    return handle;
  }

  /** A transfer with a peer that is known to be gone: over before it began. */
  #stillborn(peer: Peer): TransferHandle {
    const handle: TransferHandle = {
      poll: () => 'failed-quiet',
      error: peer.error,
      bytesDone: 0,
      cancel: () => undefined,
      peerAttestedDead: () => undefined,
    };
    this.noteChanged(handle);
    return handle;
  }

  /** The other end of a peer that is ready; null when it has failed. */
  #readyRemote(peer: Peer): ScriptedTransport | null {
    this.#requireOpen();
    if (!(peer instanceof ScriptedPeer) || peer.owner !== this) {
      throw argumentError('peer', 'a peer that this transport connected', peer);
    }
    const status = peer.status();
    if (status === 'connecting') throw argumentError('peer', 'a peer that is ready', status);
    return status === 'ready' ? peer.remote : null;
  }

  #requireOpen(): void {
    if (this.#isClosed) throw new HandoffError('CLOSED', `the transport ${this.id} is closed; create a new one`);
  }
}

function beginError(isSafe: boolean, cleanupHandles: readonly TransferHandle[]): HandoffError {
  return new HandoffError('TRANSFER_FAILED', 'begin failed because the script says so', {
    sourceSafe: isSafe,
    targetSafe: isSafe,
    details: { cleanupHandles },
  });
}

/** Why a grant cannot be one of ours, or null. */
function grantFault(grant: JsonValue): string | null {
  if (!isRecord(grant)) return 'grant: expected a map';
  const { id, region_bytes: sizes } = grant;
  if (typeof id !== 'string' || id === '' || id.length > 256)
    return 'grant.id: expected a string of 1 to 256 characters';
  if (!Array.isArray(sizes) || sizes.length === 0 || sizes.some((size) => !Number.isSafeInteger(size))) {
    return 'grant.region_bytes: expected a list of sizes';
  }
  return null;
}
