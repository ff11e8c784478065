/**
 * The line between the coordinator's core, which is pure, and what carries its messages: messages and time in, effects
 * out. The core knows no socket, no clock, no encoding; a simulation drives it exactly as the ZeroMQ shell does.
 */
import type { RegisterRole, ToClient, ToCoordinator, ToEngine } from '../protocol/messages.js';

/**
 * A peer: its routing identity, one character a byte (latin1), so that binary identities survive. Two connections never
 * have the same one at the same time; a reconnect has the same one again.
 */
export type PeerId = string;

/** What an engine says to join: with a role, or without. */
export type Registration = RegisterRole | { readonly header: 'REGISTER' };

/** How much a log line matters. */
export type LogLevel = 'debug' | 'info' | 'warn' | 'error';

/** What the core wants done, in this order. The carrier does all effects of one call before the next call. */
export type Effect =
  | { readonly kind: 'send'; readonly peer: PeerId; readonly message: ToEngine | ToClient }
  | {
      readonly kind: 'log';
      readonly level: LogLevel;
      /** A fixed text, for example `engine removed`. */
      readonly event: string;
      readonly fields: Readonly<Record<string, string | number | boolean | null>>;
    }
  /** For observers: these prefix hashes were recorded for this engine. Nothing needs to be done. */
  | { readonly kind: 'affinity'; readonly peer: PeerId; readonly hashes: BigInt64Array }
  /** The loop ends once what was sent is out. */
  | { readonly kind: 'stop'; readonly reason: string };

/** One engine as `status` and the metrics show it. */
export interface EngineSnapshot {
  readonly peer: PeerId;
  readonly role: 'prefill' | 'decode' | 'aggregated';
  readonly transports: readonly string[];
  readonly instance: string | null;
  readonly incarnation: string | null;
  /** Requests that hold a reservation here, and those that wait in its queue. */
  readonly active: number;
  readonly queued: number;
  readonly requestCapacity: number;
  readonly slotsUsed: number;
  readonly slotCapacity: number;
  /** What the engine said of itself last; empty from a Megatron engine. */
  readonly load: Readonly<Record<string, number>>;
}

/** One pinned source that the core knows of. */
export interface PinSnapshot {
  readonly requestId: number;
  readonly prefill: PeerId;
  /** The decode engine that reads or may read it; null before one is chosen. */
  readonly decode: PeerId | null;
  readonly owner: string | null;
  readonly ageMs: number;
  /** Why it is still held: `transferring`, `in-doubt`, `claimed`, `queued`, … */
  readonly state: string;
}

/** Everything that an operator may ask. */
export interface CoordinatorSnapshot {
  readonly instance: string;
  readonly state: 'RUNNING' | 'PAUSED' | 'SUSPENDED' | 'STOPPING';
  readonly epoch: number | null;
  readonly clients: number;
  readonly engines: readonly EngineSnapshot[];
  /** Names of engines that the deployment has and that are not registered; none where the deployment is not known. */
  readonly missing: readonly string[];
  /** Living requests by phase. */
  readonly requests: {
    readonly queuedPrefill: number;
    readonly prefill: number;
    readonly queuedDecode: number;
    readonly decode: number;
    readonly terminating: number;
  };
  readonly pins: readonly PinSnapshot[];
  readonly affinityEntries: number;
  /** Bytes of requests that are kept until they are sent on for the last time. */
  readonly promptBytes: number;
  /** Counters since start, under fixed names, for example `submitted`, `completed`, `failed`, `aborted`. */
  readonly counters: Readonly<Record<string, number>>;
}

/**
 * The core. Times are milliseconds of one monotonic clock, never smaller than in the call before. None of these throws
 * for anything that a peer did.
 */
export interface CoordinatorCore {
  /** A message that passed the codec. `STATUS` is answered by the core with `STATUS_REPLY`. */
  receive(nowMs: number, peer: PeerId, message: ToCoordinator): readonly Effect[];
  /** Called at least once a second. */
  tick(nowMs: number): readonly Effect[];
  /** The transport lost this peer for good (disconnect and failed probe), whether or not the core knows it. */
  peerLost(nowMs: number, peer: PeerId): readonly Effect[];
  /**
   * From now on this peer has no say, but can be told why: an engine is removed; a client's living requests end with
   * `reason`, each told at once and once more when its source is safe.
   */
  dismiss(nowMs: number, peer: PeerId, reason: string): readonly Effect[];
  /**
   * Whether `receive` would accept this registration, without a change: another connection's attempt that is refused must
   * not cost an engine its place.
   *
   * @returns why not; null when it would
   */
  refusalOf(peer: PeerId, message: Registration): string | null;
  /** Clients that may be gone unnoticed and matter: those that wait for something, or all when no more can connect. */
  clientsToProbe(): readonly PeerId[];
  /**
   * A `send` effect did not reach its peer: no route. Called for that effect at most once, before any message that the
   * peer sends later is received; a send that is never reported here was accepted by the transport, no more.
   *
   * @param reason - why this one request did not go to an engine that is there; null or absent: there is no route
   */
  undelivered(nowMs: number, peer: PeerId, message: ToEngine | ToClient, reason?: string | null): readonly Effect[];
  /** From now on new requests are refused, those that live go on. */
  drain(): void;
  /** Everything that an operator may ask, at `nowMs`. */
  snapshot(nowMs: number): CoordinatorSnapshot;
}
