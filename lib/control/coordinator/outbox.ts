/** Collects the effects of one call to the core, in their order. */
import type { ToClient, ToEngine } from '../protocol/messages.js';
import type { Effect, LogLevel, PeerId } from './interface.js';

export class Outbox {
  #effects: Effect[] = [];

  send(peer: PeerId, message: ToEngine | ToClient): void {
    this.#effects.push({ kind: 'send', peer, message });
  }

  log(level: LogLevel, event: string, fields: Readonly<Record<string, string | number | boolean | null>>): void {
    this.#effects.push({ kind: 'log', level, event, fields });
  }

  push(effect: Effect): void {
    this.#effects.push(effect);
  }

  /** What was collected since the last call. */
  take(): readonly Effect[] {
    const effects = this.#effects;
    this.#effects = [];
    return effects;
  }
}
