/**
 * The coordinator's process: one ZeroMQ ROUTER around the pure core (spec 1.2). Receives, decodes, hands to the core with
 * the time, and does what the core wants done. Owns the socket, the clock, the bounds of what waits for slow peers, and
 * the probing of engines whose connection may be gone. Decides nothing about requests, except that none is taken while it
 * drains.
 */
import type { Router } from 'zeromq';
import { systemClock, type Clock } from '../../clock.js';
import { argumentError, isHandoffError } from '../../errors.js';
import type { CoordinatorCore, CoordinatorSnapshot, Effect, LogLevel, PeerId } from '../coordinator/interface.js';
import { decodeMessage, encodeMessage, placeOf, type Frames, type WireProfile } from '../protocol/codec.js';
import type { ToClient, ToCoordinator, ToEngine } from '../protocol/messages.js';
import { checkReach, parseEndpoint } from './address.js';
import { shellStatus, shown } from './shell-status.js';
import type { CurveGate } from './curve-gate.js';
import type { CurveServer } from './curve-peers.js';
import { PeerRoutes, type Refusal } from './peer-routes.js';
import { bindRouter, openRouter, type OpenedRouter } from './router-socket.js';
import { watchDisconnects } from './disconnects.js';
import { EngineWatch } from './engine-watch.js';
import { defaultOutboxLimits, Outboxes, type OutboxLimits } from './outboxes.js';

/** Where the process's log lines go. */
export type LogWriter = (
  level: LogLevel,
  event: string,
  fields: Readonly<Record<string, string | number | boolean | null>>,
) => void;

/** How a coordinator listens. */
export interface CoordinatorServerOptions {
  readonly core: CoordinatorCore;
  /** `tcp://HOST:PORT`, `ipc://PATH` or `inproc://NAME`. Default: a free port of the loopback address. */
  readonly address?: string;
  /** Default `multi-frame`. */
  readonly profile?: WireProfile;
  /** Encrypted, for the keys of an allow-list only, each under its own name. Absent: plain, and whoever connects is believed. */
  readonly curve?: CurveServer;
  /** Plain TCP beyond this machine. */
  readonly insecure?: boolean;
  /** When the port is taken, take a free one instead (spec 1.2). Default true. */
  readonly fallsBack?: boolean;
  readonly outboxLimits?: OutboxLimits;
  /** Milliseconds between heartbeats; engines whose machine is gone are found within two. Default 2,000. */
  readonly heartbeatMs?: number;
  readonly clock?: Clock;
  readonly log?: LogWriter;
}

/** How messages and bytes went by, for the metrics. */
export interface WireCounters {
  readonly received: number;
  readonly malformed: number;
  readonly sent: number;
  readonly receivedBytes: number;
  readonly sentBytes: number;
  readonly undelivered: number;
  /** Messages under a name that their connection does not prove, or of a kind that is not for the peer's role. */
  readonly refusedMessages: number;
  /** Connections with a key that is not on the list. */
  readonly refusedKeys: number;
  /** Requests of clients that read too slowly. */
  readonly overflowed: number;
  /** In outboxes, for peers that do not read. */
  readonly waitingBytes: number;
}

/** Nobody's id: RELEASE_KV of an unknown id is a no-op in every generation, so it can be sent to see whether it goes. */
const probeId = Number.MAX_SAFE_INTEGER;
const framesMax = 1 << 17;
const tickMs = 250;
const retryMs = 10;
const probeGapMs = 50;

/** A coordinator that listens. Made by {@link CoordinatorServer.start}; ends by `drain`, `close`, or a client's SHUTDOWN. */
export class CoordinatorServer {
  /** Where it listens, with the port that it got. */
  readonly address: string;
  /** Whether the configured port was taken. */
  readonly fellBack: boolean;
  /** Settles when the loop has ended; rejects only for a fault of the process itself. */
  readonly ended: Promise<void>;

  private readonly router: Router;
  private readonly gate: CurveGate | null;
  private readonly core: CoordinatorCore;
  private readonly profile: WireProfile;
  private readonly clock: Clock;
  private readonly log: LogWriter;
  private readonly outboxes: Outboxes;
  private readonly engines = new EngineWatch();
  private readonly timers: NodeJS.Timeout[] = [];
  private readonly effects: Effect[] = [];
  private working: Promise<void> | null = null;
  private probeTimer: NodeJS.Timeout | null = null;
  private retryTimer: NodeJS.Timeout | null = null;
  private isDraining = false;
  private isClosed = false;
  private stopReason: string | null = null;
  private readonly counts = {
    received: 0,
    malformed: 0,
    sent: 0,
    receivedBytes: 0,
    sentBytes: 0,
    undelivered: 0,
    overflowed: 0,
    refusedMessages: 0,
  };

  /**
   * Binds and begins to serve.
   *
   * @throws `OPTION_INVALID` for an address that cannot be or may not be used; `ZEROMQ_UNAVAILABLE`
   */
  static async start(options: CoordinatorServerOptions): Promise<CoordinatorServer> {
    const address = options.address ?? 'tcp://127.0.0.1:0';
    const endpoint = parseEndpoint(address, 'options.address');
    if (options.curve !== undefined && endpoint.scheme === 'inproc')
      throw argumentError('options.curve', 'no CURVE keys with an inproc address', address, 'OPTION_INVALID');
    checkReach(endpoint, options.curve !== undefined, options.insecure ?? false, 'options.address');
    const heartbeat = options.heartbeatMs ?? 2_000;
    if (!Number.isInteger(heartbeat) || heartbeat < 100 || heartbeat > 3_600_000)
      throw argumentError('options.heartbeatMs', 'an integer in [100, 3600000]', heartbeat, 'OPTION_INVALID');
    const routes = new PeerRoutes(options.curve);
    const opened = await openRouter(heartbeat, options.curve);
    try {
      const fellBack = await bindRouter(opened.router, endpoint, address, options.fallsBack ?? true);
      return new CoordinatorServer(opened, routes, fellBack, options);
    } catch (error) {
      opened.router.close();
      opened.gate?.close();
      throw error;
    }
  }

  private constructor(
    { router, gate }: OpenedRouter,
    private readonly routes: PeerRoutes,
    fellBack: boolean,
    options: CoordinatorServerOptions,
  ) {
    this.router = router;
    this.gate = gate;
    this.core = options.core;
    this.profile = options.profile ?? 'multi-frame';
    this.clock = options.clock ?? systemClock;
    this.log = options.log ?? (() => undefined);
    this.outboxes = new Outboxes(options.outboxLimits ?? defaultOutboxLimits);
    this.address = router.lastEndpoint ?? '';
    this.fellBack = fellBack;
    // Not before the socket has told its end: a context that is shut down earlier leaves the observer behind.
    void watchDisconnects(router.events, () => this.probeSoon()).then(() => gate?.close());
    this.timers.push(setInterval(() => this.perform(this.core.tick(this.clock.now())), tickMs));
    this.ended = this.serve();
    // Who awaits it sees a failure; who does not is told by the log.
    this.ended.catch((error: unknown) => this.log('error', 'coordinator failed', { reason: reasonOf(error) }));
  }

  get wire(): WireCounters {
    return { ...this.counts, refusedKeys: this.gate?.refused ?? 0, waitingBytes: this.outboxes.bytes };
  }

  /** Whether it refuses new requests. */
  get isEnding(): boolean {
    return this.isDraining || this.isClosed;
  }

  /** What the core says of itself, now. */
  snapshot(): CoordinatorSnapshot {
    return this.core.snapshot(this.clock.now());
  }

  /** Milliseconds since an engine was last heard; null for a peer that is no engine. */
  silentMs(peer: PeerId): number | null {
    return this.engines.silentMs(peer, this.clock.now());
  }

  /** Whether an engine that reports regularly has been silent for more than three of its intervals: stopped, not dead. */
  isSilent(peer: PeerId): boolean {
    return this.engines.isSilent(peer, this.clock.now());
  }

  /**
   * Takes no new request, waits for those that live, then closes.
   *
   * @returns whether all of them ended within `deadlineMs`
   */
  async drain(deadlineMs: number): Promise<boolean> {
    this.isDraining = true;
    const until = this.clock.now() + deadlineMs;
    const living = (): number => Object.values(this.snapshot().requests).reduce((sum, count) => sum + count, 0);
    while (!this.isClosed && living() > 0 && this.clock.now() < until) await sleep(20);
    const isDone = living() === 0;
    this.log(isDone ? 'info' : 'warn', 'drained', { living: living() });
    await this.close();
    return isDone;
  }

  /** Ends the loop; what the socket has taken is sent for up to a second more. */
  async close(): Promise<void> {
    if (this.isClosed) return this.ended.catch(() => undefined);
    this.isClosed = true;
    for (const timer of this.timers) clearInterval(timer);
    if (this.probeTimer !== null) clearTimeout(this.probeTimer);
    if (this.retryTimer !== null) clearTimeout(this.retryTimer);
    await this.working;
    this.router.close();
    await this.ended.catch(() => undefined);
  }

  private async serve(): Promise<void> {
    while (!this.isClosed) {
      let parts: Buffer[];
      try {
        parts = await this.router.receive();
      } catch (error) {
        if (this.isClosed) return;
        throw error;
      }
      this.take(parts);
      // Everything that one message caused is out before the next is looked at.
      if (this.working !== null) await this.working;
    }
  }

  private take([identity, ...frames]: Buffer[]): void {
    this.counts.received++;
    for (const frame of frames) this.counts.receivedBytes += frame.length;
    if (identity === undefined || frames.length > framesMax) return;
    const routingId = identity.toString('latin1');
    let message: ToCoordinator;
    try {
      message = decodeMessage(this.profile, 'coordinator', frames);
    } catch (error) {
      if (!isHandoffError(error)) throw error;
      this.counts.malformed++;
      this.log('warn', 'message dropped', { peer: shown(this.routes.shownName(routingId)), reason: error.message });
      return;
    }
    const accepted = this.routes.accept(routingId, message);
    if ('reason' in accepted) return this.refuse(routingId, message, accepted);
    const { peer, replaced } = accepted;
    if (replaced !== null) this.rejectRegistration(replaced, 'another connection has registered under this name');
    const now = this.clock.now();
    this.engines.heard(peer, message, now);
    if (this.isDraining && (message.header === 'SUBMIT_REQUEST' || message.header === 'SUBMIT_REQUEST_WITH_KV')) {
      const reason = 'the coordinator is draining';
      const refusal = { header: 'REQUEST_ERROR', requestId: message.requestId, reason, sourceSafe: true } as const;
      this.perform([{ kind: 'send', peer, message: refusal }]);
      return;
    }
    this.perform(this.core.receive(now, peer, message));
  }

  /** Nothing of it reaches the core. An engine that registers is told, since it would wait. */
  private refuse(routingId: string, { header }: ToCoordinator, { name, reason }: Refusal): void {
    this.counts.refusedMessages++;
    this.log('warn', 'message refused', { peer: shown(name), header, reason });
    if (header === 'REGISTER' || header === 'REGISTER_ROLE') this.rejectRegistration(routingId, reason);
  }

  private rejectRegistration(routingId: string, reason: string): void {
    const frames = encodeMessage(this.profile, 'engine', { header: 'REGISTRATION_ERROR', reason });
    // Whoever does not read it is not waited for.
    void this.putTo(routingId, frames);
  }

  private perform(effects: readonly Effect[]): void {
    if (effects.length === 0 || this.isClosed) return;
    for (const effect of effects) this.effects.push(effect);
    // Begins later: what only logs is over at once, and must not end before it is known to have begun.
    this.working ??= Promise.resolve().then(() => this.work());
  }

  private async work(): Promise<void> {
    for (let next = this.effects.shift(); next !== undefined; next = this.effects.shift()) {
      if (next.kind === 'send') await this.send(next.peer, next.message);
      else if (next.kind === 'log') this.log(next.level, next.event, next.fields);
      else if (next.kind === 'stop') this.stopReason ??= next.reason;
    }
    this.working = null;
    if (this.stopReason !== null && !this.isClosed) {
      this.log('info', 'stopping', { reason: this.stopReason });
      setImmediate(() => void this.close());
    }
  }

  private async send(peer: PeerId, said: ToEngine | ToClient): Promise<void> {
    const message = said.header === 'STATUS_REPLY' ? { ...said, status: shellStatus(said.status, this) } : said;
    const place = placeOf(message);
    let frames: Frames;
    try {
      frames = encodeMessage(this.profile, place, message as never);
    } catch (error) {
      if (!isHandoffError(error)) throw error;
      this.log('error', 'message cannot be written', { header: message.header, reason: error.message });
      this.wasUndelivered(peer, message);
      return;
    }
    // What is said to one peer arrives in order: behind what waits already, all waits.
    const result = this.outboxes.has(peer) ? 'full' : await this.put(peer, frames);
    if (result === 'full') this.wait(peer, message, frames, place === 'engine');
    else if (result === 'gone') this.wasUndelivered(peer, message);
  }

  private async put(peer: PeerId, frames: Frames): Promise<'sent' | 'full' | 'gone'> {
    const routingId = this.routes.routeOf(peer);
    return routingId === null ? 'gone' : this.putTo(routingId, frames);
  }

  private async putTo(routingId: string, frames: Frames): Promise<'sent' | 'full' | 'gone'> {
    try {
      await this.router.send([Buffer.from(routingId, 'latin1'), ...(frames as Uint8Array[])]);
      this.counts.sent++;
      for (const frame of frames) this.counts.sentBytes += frame.length;
      return 'sent';
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'EAGAIN') return 'full';
      if (code === 'EHOSTUNREACH' || this.isClosed) return 'gone';
      throw error;
    }
  }

  private wait(peer: PeerId, message: ToEngine | ToClient, frames: Frames, isEngine: boolean): void {
    const bytes = frames.reduce((sum, frame) => sum + frame.length, 64);
    const overflow = this.outboxes.add(peer, { message, frames, bytes }, isEngine);
    if (overflow.kind === 'engine') {
      this.log('warn', 'engine does not read', { peer: shown(peer), waitingBytes: this.outboxes.bytesOf(peer) });
      this.wasUndelivered(peer, message);
    } else if (overflow.kind === 'client') {
      this.endSlowRequests(peer, overflow.requestIds);
    }
    this.retryTimer ??= setTimeout(() => void this.retry(), retryMs);
  }

  /** A client that does not read loses its replies: each request is aborted, and the client told in a few bytes. */
  private endSlowRequests(peer: PeerId, requestIds: readonly number[]): void {
    this.counts.overflowed += requestIds.length;
    this.log('warn', 'client reads too slowly', { peer: shown(peer), requests: requestIds.length });
    const reason = 'the client reads its replies too slowly, they were dropped';
    for (const requestId of requestIds) {
      const message = { header: 'REQUEST_ERROR', requestId, reason, sourceSafe: false } as const;
      const frames = encodeMessage(this.profile, 'client', message);
      const told = this.outboxes.add(peer, { message, frames, bytes: 256 }, false);
      if (told.kind !== 'none') this.perform(this.core.peerLost(this.clock.now(), peer));
      this.perform(this.core.receive(this.clock.now(), peer, { header: 'ABORT_REQUEST', requestId }));
    }
  }

  private async retry(): Promise<void> {
    await this.working;
    for (const peer of this.outboxes.peers) {
      for (let entry = this.outboxes.first(peer); entry !== undefined; entry = this.outboxes.first(peer)) {
        const result = await this.put(peer, entry.frames);
        if (result === 'full') break;
        if (result === 'gone') for (const { message } of this.outboxes.drop(peer)) this.wasUndelivered(peer, message);
        else this.outboxes.shift(peer);
      }
    }
    this.retryTimer = this.outboxes.bytes > 0 && !this.isClosed ? setTimeout(() => void this.retry(), retryMs) : null;
  }

  private wasUndelivered(peer: PeerId, message: ToEngine | ToClient): void {
    this.counts.undelivered++;
    this.perform(this.core.undelivered(this.clock.now(), peer, message));
  }

  /** Some connection is gone; which one, only a mandatory send tells. */
  private probeSoon(): void {
    if (this.isClosed) return;
    this.probeTimer ??= setTimeout(() => {
      this.probeTimer = null;
      void this.probe();
    }, probeGapMs);
  }

  private async probe(): Promise<void> {
    await this.working;
    const message = { header: 'RELEASE_KV', requestId: probeId, instance: null } as const;
    const frames = encodeMessage(this.profile, 'engine', message);
    for (const peer of this.engines.peers) {
      if (this.isClosed) return;
      if ((await this.put(peer, frames)) !== 'gone') continue;
      this.engines.lost(peer);
      this.outboxes.drop(peer);
      this.log('warn', 'engine is gone', { peer: shown(peer) });
      this.perform(this.core.peerLost(this.clock.now(), peer));
    }
  }
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
