/**
 * Which engines the coordinator's socket knows, and when each was last heard. Silence is no death: a stopped process keeps
 * its connection and its memory. Knows no socket.
 */
import { EngineSilence } from '../coordinator/engine-silence.js';
import type { PeerId } from '../coordinator/interface.js';
import type { ToCoordinator } from '../protocol/messages.js';

export class EngineWatch {
  private readonly engines = new Map<PeerId, EngineSilence>();

  get peers(): readonly PeerId[] {
    return [...this.engines.keys()];
  }

  heard(peer: PeerId, message: ToCoordinator, nowMs: number): void {
    const engine = this.engines.get(peer);
    if (message.header === 'REGISTER' || message.header === 'REGISTER_ROLE') {
      this.engines.set(peer, new EngineSilence(nowMs));
    } else if (message.header === 'DISCONNECT') this.engines.delete(peer);
    else engine?.heard(message, nowMs);
  }

  lost(peer: PeerId): void {
    this.engines.delete(peer);
  }

  /** Milliseconds since an engine was last heard; null for a peer that is no engine. */
  silentMs(peer: PeerId, nowMs: number): number | null {
    return this.engines.get(peer)?.silentMs(nowMs) ?? null;
  }

  /** Whether an engine that reports regularly has been silent for more than three of its intervals: stopped, not dead. */
  isSilent(peer: PeerId, nowMs: number): boolean {
    return this.engines.get(peer)?.isSilent(nowMs) === true;
  }
}
