/**
 * What every way of moving bytes looks like to the policy: register, grant, connect, begin, poll, cancel, close.
 *
 * Nothing here blocks and nothing calls back: handles are polled, and `wake` only says that a poll may find something.
 */
import type { CopyProgram } from './copy-program.js';
import type { Fence } from '../engine-context.js';
import type { HandoffError } from '../errors.js';
import type { Region } from '../memory/region.js';
import type { JsonValue } from '../json.js';

/** Where a region lies. */
export type MemoryKind = 'host' | 'cuda';

/** What a transport can do; asked instead of its name. */
export interface TransportCapabilities {
  /** `pull`: the target reads on its own. `push`: the source has to start too (two-sided). */
  readonly direction: 'pull' | 'push';
  readonly memoryKinds: readonly MemoryKind[];
  /** Whether `cancel()` ends in `failed-quiet` without waiting for the peer. */
  readonly provesQuietOnCancel: boolean;
  /** Whether a read that began after the source let go of its block is noticed (generations). */
  readonly detectsLateReads: boolean;
  /**
   * Whether a failure that leaves memory in doubt must stop the engine, as a collective library without an abort does.
   * Default false: such memory is quarantined.
   */
  readonly unsafeFailureIsFatal?: boolean;
}

/**
 * - `active`: bytes may be moving.
 * - `done`: every byte is in place, nothing of this transfer touches memory any more.
 * - `failed-quiet`: failed, and proof that nothing touches memory any more.
 * - `failed-active`: failed, but the target may still be written (or the source read). Keep polling: it can become
 *   `failed-quiet`.
 */
export type TransferStatus = 'active' | 'done' | 'failed-quiet' | 'failed-active';

/** One transfer under way; polled, never awaited. */
export interface TransferHandle {
  /** Cheap, never blocks, may be called for ever; `done` and `failed-quiet` are final. */
  poll(): TransferStatus;
  /** Set once the status is one of the failures. */
  readonly error: HandoffError | null;
  /** Bytes known to be in place so far. */
  readonly bytesDone: number;
  /** With `done`: what the engine must await before it reads the bytes on its device; absent or null when they are there. */
  readonly landed?: Fence | null;
  /** Asks to stop. Idempotent; the outcome shows in `poll`. */
  cancel(): void;
  /** Attested: every process that could touch memory for this transfer is dead. Makes a failed handle quiet. */
  peerAttestedDead(): void;
}

/** The generations a source had when it was pinned; compared before and after the copy. */
export interface SourceGenerations {
  /** Region-independent: index = block id in the source's pool. Empty when the source has no generations. */
  readonly blocks: Int32Array;
  readonly blockGenerations: BigUint64Array;
  readonly slots: Int32Array;
  readonly slotGenerations: BigUint64Array;
}

/** What `begin` is asked for. */
export interface TransferRequest {
  /** Programs of one handoff; all must be done for the handle to be done. May be empty: done at once. */
  readonly programs: readonly CopyProgram[];
  readonly generations: SourceGenerations | null;
  /** Unique for the (source rank, target rank) pair; two-sided transports match both ends by it. */
  readonly tag: string;
}

/** Whether a connection can be used. */
export type PeerStatus = 'connecting' | 'ready' | 'failed';

/** A connection to one rank of a peer, cached by its grant's identity. */
export interface Peer {
  /** Never blocks. */
  status(): PeerStatus;
  readonly error: HandoffError | null;
  /** Lets go of the connection once its transfers are over. Idempotent. */
  close(): void;
}

/** What a peer needs in order to read this rank's regions: plain JSON, opaque to everything but the same transport. */
export type TransportGrant = JsonValue;

/** One way of moving bytes between two processes. */
export interface Transport {
  readonly name: string;
  readonly capabilities: TransportCapabilities;
  /** Registers a region; its index is its position in the order of registration. @throws `ARGUMENT_INVALID`, `NATIVE_*` */
  register(region: Region): number;
  /**
   * What takes long before anything can be granted: loading a library, making connections. Called once, after the last
   * registration and before everything below. Absent where nothing takes long.
   *
   * @throws (rejects) `TRANSPORT_UNAVAILABLE` when this machine lacks what the transport needs
   */
  open?(): Promise<void>;
  /** @throws `NOT_SET_UP` before the first registration, and before `open` has resolved where there is one */
  grant(): TransportGrant;
  /**
   * Returns at once; the peer's `status()` tells the rest. A garbage grant gives a peer that is `failed`. One that stays
   * `connecting` past the handshake deadline is closed and connected anew by the next transfer that wants it.
   */
  connect(grant: TransportGrant): Peer;
  /** Target side: starts to fill this side's regions. @throws only programmer errors; everything else is in the handle. */
  begin(request: TransferRequest, peer: Peer): TransferHandle;
  /** Source side of a two-sided transport. Absent on pull transports. */
  beginPush?(request: TransferRequest, peer: Peer): TransferHandle;
  /** Handles whose status may have changed since the last call; the poll visits no others. */
  takeChanged(): readonly TransferHandle[];
  /** Called (coalesced) when `takeChanged` may find something. */
  onWake: (() => void) | null;
  /** Resolves when no transfer can touch memory any more. Refuses (`MEMORY_IN_DOUBT`) while one might. */
  close(): Promise<void>;
}
