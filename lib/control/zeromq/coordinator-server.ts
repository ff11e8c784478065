/**
 * The coordinator's process: one ZeroMQ ROUTER around the pure core (spec 1.2). Receives, decodes, hands to the core with
 * the time, and does what the core wants done. Owns the socket, the clock and the bounds of what waits for slow peers.
 * Decides nothing about requests.
 */
import type { Router } from 'zeromq';
import { systemClock, type Clock } from '../../clock.js';
import { argumentError, isHandoffError } from '../../errors.js';
import type { CoordinatorCore, CoordinatorSnapshot, PeerId } from '../coordinator/interface.js';
import { checkFunctions, checkOptions, checkProfile, requireFunction } from '../option-checks.js';
import { decodeMessage, encodeMessage, type WireProfile } from '../protocol/codec.js';
import type { ToCoordinator } from '../protocol/messages.js';
import { toldReason } from '../protocol/told-reason.js';
import { checkReach, parseEndpoint } from './address.js';
import { shellStatus, shown } from './shell-status.js';
import type { CurveGate } from './curve-gate.js';
import type { AllowList, CurveServer } from './curve-peers.js';
import { PeerRoutes, type Refusal } from './peer-routes.js';
import { bindRouter, openRouter, type OpenedRouter } from './router-socket.js';
import { Deliveries, type LogWriter } from './deliveries.js';
import { watchDisconnects } from './disconnects.js';
import { EngineWatch } from './engine-watch.js';
import { PeerProbe } from './peer-probe.js';
import { defaultOutboxLimits, type OutboxLimits } from './outboxes.js';

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
  /**
   * Milliseconds between two looks of the kernel at a silent connection: peers whose machine is gone with nothing on its way are
   * found within two. Default 5,000.
   */
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

const framesMax = 1 << 17;
const tickMs = 250;
/** Messages whose effects go out together. */
const takenAtOnce = 16;
/** Why a peer has no say any more. */
const notListed = 'its name, key or role is no longer on the list';

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
  private readonly deliveries: Deliveries;
  private readonly engines = new EngineWatch();
  private readonly timers: NodeJS.Timeout[] = [];
  private readonly probe: PeerProbe;
  private isDraining = false;
  private isStopping = false;
  private isClosed = false;
  private readonly counts = { received: 0, malformed: 0, receivedBytes: 0, refusedMessages: 0 };

  /**
   * Binds and begins to serve.
   *
   * @throws `OPTION_INVALID` for an address that cannot be or may not be used; `ZEROMQ_UNAVAILABLE`
   */
  static async start(options: CoordinatorServerOptions): Promise<CoordinatorServer> {
    checkOptions(options);
    checkOptions(options.core, 'options.core');
    requireFunction(options.core.receive, 'options.core.receive');
    checkProfile(options.profile);
    if (options.curve !== undefined) checkOptions(options.curve, 'options.curve');
    checkFunctions(options, ['log']);
    if (options.clock !== undefined) requireFunction(options.clock.now, 'options.clock.now');
    if (options.insecure !== undefined && typeof options.insecure !== 'boolean')
      throw argumentError('options.insecure', 'true or false', options.insecure, 'OPTION_INVALID');
    for (const [name, limit] of Object.entries(options.outboxLimits ?? {}) as [string, unknown][])
      if (!(typeof limit === 'number' && limit >= 1))
        throw argumentError(`options.outboxLimits.${name}`, 'a number of at least 1', limit, 'OPTION_INVALID');
    const address = options.address ?? 'tcp://127.0.0.1:0';
    const endpoint = parseEndpoint(address, 'options.address');
    if (options.curve !== undefined && endpoint.scheme === 'inproc')
      throw argumentError('options.curve', 'no CURVE keys with an inproc address', address, 'OPTION_INVALID');
    checkReach(endpoint, options.curve !== undefined, options.insecure ?? false, 'options.address');
    const heartbeat = options.heartbeatMs ?? 5_000;
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
    this.deliveries = new Deliveries({
      router,
      routes,
      core: this.core,
      profile: this.profile,
      outboxLimits: options.outboxLimits ?? defaultOutboxLimits,
      clock: this.clock,
      log: this.log,
      completeStatus: (status) => shellStatus(status, this),
      stop: (reason) => this.stop(reason),
    });
    this.probe = new PeerProbe({
      core: this.core,
      deliveries: this.deliveries,
      profile: this.profile,
      clock: this.clock,
      engines: () => this.engines.peers,
      isGone: (peer, what) => this.isGone(peer, what),
    });
    this.address = router.lastEndpoint ?? '';
    this.fellBack = fellBack;
    // Not before the socket has told its end: a context that is shut down earlier leaves the observer behind.
    void watchDisconnects(router.events, () => this.probe.soon()).then(() => gate?.close());
    this.timers.push(setInterval(() => this.deliveries.perform(this.core.tick(this.clock.now())), tickMs));
    this.ended = this.serve();
    // Who awaits it sees a failure; who does not is told by the log.
    this.ended.catch((error: unknown) => this.log('error', 'coordinator failed', { reason: reasonOf(error) }));
  }

  get wire(): WireCounters {
    const { counts, waitingBytes } = this.deliveries;
    return { ...this.counts, ...counts, refusedKeys: this.gate?.refused ?? 0, waitingBytes };
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
   * Takes another allow-list (CURVE). Who stands on it as before, with the same key and role, is not disturbed; of others
   * nothing is heard any more: engines are removed and told, requests of clients end, and each client is told of each.
   *
   * @throws `OPTION_INVALID` for a list that is none, and without CURVE; then the list of before goes on
   */
  allowPeers(peers: AllowList): void {
    const { revoked, restored } = this.routes.allow(peers);
    this.gate?.allow(peers);
    for (const { peer, routingId, isEngine } of revoked) {
      this.log('warn', 'peer has no say any more', { peer: shown(this.routes.shownName(routingId)) });
      if (isEngine) {
        this.rejectRegistration(routingId, notListed);
        this.engines.lost(peer);
        this.deliveries.drop(peer);
      }
      this.deliveries.perform(this.core.dismiss(this.clock.now(), peer, notListed));
    }
    // They cannot know that they have to connect anew.
    for (const peer of restored)
      this.deliveries.perform(this.core.receive(this.clock.now(), peer, { header: 'CONNECT' }));
  }

  /**
   * Takes no new request, waits for those that live, then closes.
   *
   * @returns whether all of them ended within `deadlineMs`
   */
  async drain(deadlineMs: number): Promise<boolean> {
    this.isDraining = true;
    this.core.drain();
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
    this.probe.stop();
    await this.deliveries.close();
    this.router.close();
    await this.ended.catch(() => undefined);
  }

  private async serve(): Promise<void> {
    while (!this.isClosed) {
      try {
        this.take(await this.router.receive());
        // What lies there already is taken with it, so that all that it causes goes out in one go: each wake of the socket's
        // own thread costs more than the work on a small message.
        for (let more = takenAtOnce - 1; more > 0 && !this.isClosed && this.router.readable; more--)
          this.take(await this.router.receive());
      } catch (error) {
        if (this.isClosed) return;
        throw error;
      }
      await this.deliveries.flush();
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
    const accepted = this.routes.accept(routingId, message, (peer, said) => this.core.refusalOf(peer, said));
    if ('reason' in accepted) return this.refuse(routingId, message, accepted);
    const { peer, replaced } = accepted;
    if (replaced !== null) this.rejectRegistration(replaced, 'another connection has registered under this name');
    const now = this.clock.now();
    this.engines.heard(peer, message, now);
    this.deliveries.add(this.core.receive(now, peer, message));
  }

  /** Nothing of it reaches the core. Who registers or submits is told, since it would wait. */
  private refuse(routingId: string, message: ToCoordinator, { name, role, reason }: Refusal): void {
    this.counts.refusedMessages++;
    const { header } = message;
    this.log('warn', 'message refused', { peer: shown(name), header, reason });
    if (header === 'REGISTER' || header === 'REGISTER_ROLE') return this.rejectRegistration(routingId, reason);
    // To an engine such an answer would mean a registration.
    if (role === 'engine' || (header !== 'SUBMIT_REQUEST' && header !== 'SUBMIT_REQUEST_WITH_KV')) return;
    const { requestId } = message;
    const answer = { header: 'REQUEST_ERROR', requestId, reason, sourceSafe: true } as const;
    void this.deliveries.putTo(routingId, encodeMessage(this.profile, 'client', answer));
  }

  private rejectRegistration(routingId: string, reason: string): void {
    const frames = encodeMessage(this.profile, 'engine', { header: 'REGISTRATION_ERROR', reason: toldReason(reason) });
    // Whoever does not read it is not waited for.
    void this.deliveries.putTo(routingId, frames);
  }

  private stop(reason: string): void {
    if (this.isStopping || this.isClosed) return;
    this.isStopping = true;
    this.log('info', 'stopping', { reason });
    setImmediate(() => void this.close());
  }

  /** There is no way to it any more. */
  private isGone(peer: PeerId, what: 'engine' | 'client'): void {
    this.engines.lost(peer);
    this.deliveries.drop(peer);
    this.log('warn', `${what} is gone`, { peer: shown(peer) });
    this.deliveries.perform(this.core.peerLost(this.clock.now(), peer));
  }
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
