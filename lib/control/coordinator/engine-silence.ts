/**
 * When an engine was last heard, and whether one that reports regularly has fallen silent: its process stands still, or its
 * machine is gone. Either way it proves nothing about its memory; it only gets nothing more to do while others are there.
 */
import type { ToCoordinator } from '../protocol/messages.js';

/** Reports that may be missing before an engine counts as stopped. */
const missingMax = 3;

export class EngineSilence {
  /** How often it says how it is; null when it never does. */
  private reportsEveryMs: number | null = null;

  /** @param heardMs - when it registered */
  constructor(private heardMs: number) {}

  heard(message: ToCoordinator, nowMs: number): void {
    this.heardMs = nowMs;
    if (message.header !== 'ENGINE_STATUS') return;
    const every = message.status.get('interval_ms');
    this.reportsEveryMs = typeof every === 'number' && every > 0 ? every : null;
  }

  /** Milliseconds since it was last heard. */
  silentMs(nowMs: number): number {
    return nowMs - this.heardMs;
  }

  /** Whether it reports regularly and has been silent for more than three of its intervals: stopped, not dead. */
  isSilent(nowMs: number): boolean {
    return this.reportsEveryMs !== null && this.silentMs(nowMs) > missingMax * this.reportsEveryMs;
  }
}
