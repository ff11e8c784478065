/**
 * What the core wants done, in its order: messages to peers, within the bounds of what may wait for one that reads slowly,
 * and log lines. Owns the outboxes, the socket's sending half, and the word to the core about what was not taken. Receives
 * nothing and decides nothing about requests.
 */
import type { Router } from 'zeromq';
import type { Clock } from '../../clock.js';
import { isHandoffError } from '../../errors.js';
import type { CoordinatorCore, Effect, LogLevel, PeerId } from '../coordinator/interface.js';
import { encodeMessage, placeOf, type Frames, type WireProfile } from '../protocol/codec.js';
import type { ToClient, ToEngine } from '../protocol/messages.js';
import type { WireMap } from '../protocol/wire-value.js';
import { isRequest, Outboxes, type LostRequest, type OutboxLimits } from './outboxes.js';
import type { PeerRoutes } from './peer-routes.js';
import { shown } from './shell-status.js';

/** Where the process's log lines go. */
export type LogWriter = (
  level: LogLevel,
  event: string,
  fields: Readonly<Record<string, string | number | boolean | null>>,
) => void;

/** What deliveries are made with. */
export interface DeliveryParts {
  readonly router: Router;
  readonly routes: PeerRoutes;
  readonly core: CoordinatorCore;
  readonly profile: WireProfile;
  readonly outboxLimits: OutboxLimits;
  readonly clock: Clock;
  readonly log: LogWriter;
  /** Adds to an answer to STATUS what the core does not know. */
  readonly completeStatus: (status: WireMap) => WireMap;
  /** Everything until then is done. */
  readonly stop: (reason: string) => void;
}

/** What became of a message: with the socket; its peer reads too slowly; nobody has that routing id. */
export type Delivered = 'sent' | 'full' | 'gone';

const retryMs = 10;

export class Deliveries {
  /** Messages and bytes. */
  readonly counts = { sent: 0, sentBytes: 0, undelivered: 0, overflowed: 0 };
  private readonly outboxes: Outboxes;
  private effects: Effect[] = [];
  private working: Promise<void> | null = null;
  /** Requests that ended for their slow client while the effects at hand were done: what those still say of them is void. */
  private readonly ended = new Map<PeerId, Set<number>>();
  private retryTimer: NodeJS.Timeout | null = null;
  private isClosed = false;

  constructor(private readonly parts: DeliveryParts) {
    this.outboxes = new Outboxes(parts.outboxLimits);
  }

  /** In outboxes, for peers that do not read. */
  get waitingBytes(): number {
    return this.outboxes.bytes;
  }

  /** To be done with the next {@link flush}. */
  add(effects: readonly Effect[]): void {
    if (this.isClosed) return;
    for (const effect of effects) this.effects.push(effect);
  }

  /** To be done now, behind what is under way. */
  perform(effects: readonly Effect[]): void {
    this.add(effects);
    void this.flush();
  }

  /** Settles when all that was added is done, with what came of it; rejects only for a fault of the process itself. */
  flush(): Promise<void> {
    if (this.working === null && this.effects.length > 0) this.working = this.work();
    return this.working ?? done;
  }

  /** Does what was added before, and takes nothing more. */
  async close(): Promise<void> {
    this.isClosed = true;
    if (this.retryTimer !== null) clearTimeout(this.retryTimer);
    await this.flush();
  }

  put(peer: PeerId, frames: Frames): Promise<Delivered> {
    const routingId = this.parts.routes.routeOf(peer);
    return routingId === null ? Promise.resolve('gone' as const) : this.putTo(routingId, frames);
  }

  async putTo(routingId: string, frames: Frames): Promise<Delivered> {
    try {
      await this.parts.router.send([Buffer.from(routingId, 'latin1'), ...frames]);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'EAGAIN') return 'full';
      if (code === 'EHOSTUNREACH' || this.isClosed) return 'gone';
      throw error;
    }
    this.counts.sent++;
    for (const frame of frames) this.counts.sentBytes += frame.length;
    return 'sent';
  }

  /** What waits for a peer that is gone will not be sent. */
  drop(peer: PeerId): void {
    this.outboxes.drop(peer);
  }

  private async work(): Promise<void> {
    // Not at once: it must not be over before it is known to have begun.
    await done;
    while (this.effects.length > 0) {
      const { effects } = this;
      this.effects = [];
      for (const effect of effects) {
        if (effect.kind === 'log') this.parts.log(effect.level, effect.event, effect.fields);
        else if (effect.kind === 'stop') this.parts.stop(effect.reason);
        else if (effect.kind === 'send' && !this.isVoid(effect.peer, effect.message)) {
          const message = this.completed(effect.message);
          const frames = this.framesOf(effect.peer, message);
          if (frames === null) continue;
          // What is said to one peer arrives in order: behind what waits already, all waits.
          const result = this.outboxes.has(effect.peer) ? 'full' : await this.put(effect.peer, frames);
          if (result === 'full') this.wait(effect.peer, message, frames);
          else if (result === 'gone') this.wasUndelivered(effect.peer, message);
        }
      }
      this.ended.clear();
    }
    this.working = null;
  }

  private isVoid(peer: PeerId, message: ToEngine | ToClient): boolean {
    return this.ended.size > 0 && 'requestId' in message && this.ended.get(peer)?.has(message.requestId) === true;
  }

  private completed(message: ToEngine | ToClient): ToEngine | ToClient {
    if (message.header !== 'STATUS_REPLY') return message;
    return { ...message, status: this.parts.completeStatus(message.status) };
  }

  /** Null for what cannot be written: its peer never gets it. */
  private framesOf(peer: PeerId, message: ToEngine | ToClient): Frames | null {
    try {
      return encodeMessage(this.parts.profile, placeOf(message), message as never);
    } catch (error) {
      if (!isHandoffError(error)) throw error;
      this.parts.log('error', 'message cannot be written', { header: message.header, reason: error.message });
      this.wasUndelivered(peer, message, isRequest(message) ? error.message : null);
      return null;
    }
  }

  private wait(peer: PeerId, message: ToEngine | ToClient, frames: Frames): void {
    const bytes = frames.reduce((sum, frame) => sum + frame.length, 64);
    const overflow = this.outboxes.add(peer, { message, frames, bytes }, placeOf(message) === 'engine');
    if (overflow.kind === 'engine') {
      const waitingBytes = this.outboxes.bytesOf(peer);
      this.parts.log('warn', 'engine does not read', { peer: shown(peer), waitingBytes });
      this.wasUndelivered(peer, message, isRequest(message) ? 'its engine reads its requests too slowly' : null);
    } else if (overflow.kind === 'client') {
      this.endSlowRequests(peer, overflow.requests);
    }
    if (!this.isClosed) this.retryTimer ??= setTimeout(() => void this.retry(), retryMs);
  }

  /** A client that does not read loses its replies: each request is aborted, and the client told in a few bytes. */
  private endSlowRequests(peer: PeerId, requests: readonly LostRequest[]): void {
    const { core, clock, profile, log } = this.parts;
    this.counts.overflowed += requests.length;
    log('warn', 'client reads too slowly', { peer: shown(peer), requests: requests.length });
    const reason = 'the client reads its replies too slowly, they were dropped';
    this.ended.set(peer, new Set([...(this.ended.get(peer) ?? []), ...requests.map(({ requestId }) => requestId)]));
    for (const { requestId, isOver } of requests) {
      const message = { header: 'REQUEST_ERROR', requestId, reason, sourceSafe: isOver } as const;
      const frames = encodeMessage(profile, 'client', message);
      const told = this.outboxes.add(peer, { message, frames, bytes: 256 }, false);
      if (told.kind !== 'none') this.perform(core.peerLost(clock.now(), peer));
      if (!isOver) this.perform(core.receive(clock.now(), peer, { header: 'ABORT_REQUEST', requestId }));
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

  private wasUndelivered(peer: PeerId, message: ToEngine | ToClient, reason: string | null = null): void {
    this.counts.undelivered++;
    this.perform(this.parts.core.undelivered(this.parts.clock.now(), peer, message, reason));
  }
}

const done = Promise.resolve();
