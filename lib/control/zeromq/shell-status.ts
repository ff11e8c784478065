/** What the coordinator's socket adds to the core's answer to STATUS: who is silent, what went over the wire. */
import type { PeerId } from '../coordinator/interface.js';
import { Float64, type Wire, type WireMap } from '../protocol/wire-value.js';

/** What a server knows and its core does not. */
export interface ShellView {
  readonly address: string;
  readonly isEnding: boolean;
  readonly wire: object;
  isSilent(peer: PeerId): boolean;
  silentMs(peer: PeerId): number | null;
}

/** @param status - the core's, in snake_case */
export function shellStatus(status: WireMap, view: ShellView): WireMap {
  const engines = status.get('engines');
  const told = Array.isArray(engines) ? (engines as readonly Wire[]).map((engine) => withSilence(engine, view)) : [];
  const wire = new Map(Object.entries(view.wire).map(([key, value]) => [snakeCase(key), value as Wire]));
  return new Map<string, Wire>([
    ...status,
    ['engines', told],
    ['wire', wire],
    ['address', view.address],
    ['draining', view.isEnding],
  ]);
}

function withSilence(engine: Wire, view: ShellView): Wire {
  if (!(engine instanceof Map)) return engine;
  const peer = (engine as WireMap).get('peer');
  if (typeof peer !== 'string') return engine;
  const heard = view.silentMs(peer);
  return new Map<string, Wire>([
    ...(engine as WireMap),
    ['silent', view.isSilent(peer)],
    ['silent_ms', heard === null ? null : new Float64(heard)],
  ]);
}

/** An identity for people: printable, and short. */
export function shown(peer: PeerId): string {
  return /^[\x20-\x7e]{1,128}$/.test(peer) ? peer : Buffer.from(peer, 'latin1').toString('hex').slice(0, 64);
}

function snakeCase(key: string): string {
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
