/**
 * Finds peers that are gone. A socket tells that a connection ended, not whose; only a send that must have a way tells that.
 * So after an end engines and waiting clients get a message that means nothing to them. Owns when that is done, so that
 * many ends cost no more than a few; knows no request.
 */
import type { Clock } from '../../clock.js';
import type { CoordinatorCore, PeerId } from '../coordinator/interface.js';
import { encodeMessage, type Frames, type WireProfile } from '../protocol/codec.js';
import type { Deliveries } from './deliveries.js';

/** What a probe needs of its server. */
export interface PeerProbeParts {
  readonly core: CoordinatorCore;
  readonly deliveries: Deliveries;
  readonly profile: WireProfile;
  readonly clock: Clock;
  readonly engines: () => readonly PeerId[];
  /** There is no way to this peer. */
  readonly isGone: (peer: PeerId, what: 'engine' | 'client') => void;
}

/** Nobody's id: RELEASE_KV of an unknown id is a no-op in every generation (spec 1.6, 6.2). */
const nobodysId = Number.MAX_SAFE_INTEGER;
/** After the end of a connection, so that those that end together are looked for together. */
const gapMs = 50;
/** Between two looks for clients: there can be many more of them than engines. */
const clientsGapMs = 1_000;
/** Clients between which others have their turn. */
const clientsAtOnce = 256;

export class PeerProbe {
  private timer: NodeJS.Timeout | null = null;
  private clientsTimer: NodeJS.Timeout | null = null;
  private clientsLookedAt = -Infinity;
  private isStopped = false;
  private readonly instance: string;

  constructor(private readonly parts: PeerProbeParts) {
    const { core, clock } = parts;
    this.instance = core.snapshot(clock.now()).instance;
  }

  /** Some connection has ended. */
  soon(): void {
    if (this.isStopped) return;
    this.timer ??= setTimeout(() => {
      this.timer = null;
      void this.lookForEngines();
    }, gapMs);
    const waitMs = Math.max(gapMs, this.clientsLookedAt + clientsGapMs - this.parts.clock.now());
    this.clientsTimer ??= setTimeout(() => {
      this.clientsTimer = null;
      void this.lookForClients();
    }, waitMs);
  }

  stop(): void {
    this.isStopped = true;
    if (this.timer !== null) clearTimeout(this.timer);
    if (this.clientsTimer !== null) clearTimeout(this.clientsTimer);
  }

  private async lookForEngines(): Promise<void> {
    const { deliveries, profile, engines } = this.parts;
    await deliveries.flush();
    const message = { header: 'RELEASE_KV', requestId: nobodysId, instance: null } as const;
    const frames = encodeMessage(profile, 'engine', message);
    for (const peer of engines()) await this.look(peer, 'engine', frames);
  }

  /**
   * By the acknowledgement of a connection, once more: a client that waits for a request has had one, and acts on replies,
   * errors and aborts of its requests only.
   */
  private async lookForClients(): Promise<void> {
    const { core, deliveries, profile, clock } = this.parts;
    this.clientsLookedAt = clock.now();
    await deliveries.flush();
    const frames = encodeMessage(profile, 'client', { header: 'CONNECT_ACK', instance: this.instance });
    for (const [index, peer] of core.clientsToProbe().entries()) {
      await this.look(peer, 'client', frames);
      if (index % clientsAtOnce === clientsAtOnce - 1) await new Promise((resolve) => setImmediate(resolve));
    }
  }

  private async look(peer: PeerId, what: 'engine' | 'client', frames: Frames): Promise<void> {
    if (this.isStopped) return;
    if ((await this.parts.deliveries.put(peer, frames)) === 'gone' && !this.isStopped) this.parts.isGone(peer, what);
  }
}
