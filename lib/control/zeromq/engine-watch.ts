/**
 * Which engines the coordinator's socket knows, and when each was last heard. Silence is no death: a stopped process keeps
 * its connection and its memory. Knows no socket.
 */
import type { PeerId } from '../coordinator/interface.js';
import type { ToCoordinator } from '../protocol/messages.js';

interface KnownEngine {
  heardMs: number;
  /** How often it says how it is; null when it never does. */
  reportsEveryMs: number | null;
}

/** Reports that may be missing before an engine counts as stopped. */
const missingMax = 3;

export class EngineWatch {
  private readonly engines = new Map<PeerId, KnownEngine>();

  get peers(): readonly PeerId[] {
    return [...this.engines.keys()];
  }

  heard(peer: PeerId, message: ToCoordinator, nowMs: number): void {
    const engine = this.engines.get(peer);
    if (message.header === 'REGISTER' || message.header === 'REGISTER_ROLE') {
      this.engines.set(peer, { heardMs: nowMs, reportsEveryMs: null });
    } else if (engine !== undefined) {
      engine.heardMs = nowMs;
      if (message.header === 'DISCONNECT') this.engines.delete(peer);
      if (message.header === 'ENGINE_STATUS') {
        const every = message.status.get('interval_ms');
        engine.reportsEveryMs = typeof every === 'number' && every > 0 ? every : null;
      }
    }
  }

  lost(peer: PeerId): void {
    this.engines.delete(peer);
  }

  /** Milliseconds since an engine was last heard; null for a peer that is no engine. */
  silentMs(peer: PeerId, nowMs: number): number | null {
    const engine = this.engines.get(peer);
    return engine === undefined ? null : nowMs - engine.heardMs;
  }

  /** Whether an engine that reports regularly has been silent for more than three of its intervals: stopped, not dead. */
  isSilent(peer: PeerId, nowMs: number): boolean {
    const engine = this.engines.get(peer);
    if (engine === undefined || engine.reportsEveryMs === null) return false;
    return nowMs - engine.heardMs > missingMax * engine.reportsEveryMs;
  }
}
