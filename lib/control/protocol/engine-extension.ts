/**
 * What this package's engines add to a registration, as a map on the wire: who they are, which transports they offer and
 * which handoffs they still hold. Unknown keys are ignored; a known one that is wrong makes the message malformed.
 */
import { argumentError } from '../../errors.js';
import { int32Max } from '../../limits.js';
import type { EngineExtension, HeldHandoff } from './messages.js';
import type { Wire, WireMap } from './wire-value.js';
import { wireMap } from './wire-bytes.js';

const nameLengthMax = 256;
const transportsMax = 16;

export function extensionToWire({ instance, incarnation, transports, held }: EngineExtension): WireMap {
  return wireMap({
    instance,
    incarnation,
    transports,
    held: held.map((handoff) =>
      wireMap({
        request_id: handoff.requestId,
        state: handoff.state,
        peer_instance: handoff.peerInstance,
        peer_incarnation: handoff.peerIncarnation,
        age_ms: Math.floor(handoff.ageMs),
        blocks: handoff.blocks,
      }),
    ),
  });
}

/** @throws `MESSAGE_INVALID` naming the field */
export function extensionFromWire(value: Wire, path: string): EngineExtension {
  const map = mapOf(value, path);
  const transports = listOf(map.get('transports'), `${path}.transports`).map((entry, index) =>
    nameOf(entry, `${path}.transports[${index}]`),
  );
  if (transports.length > transportsMax) throw invalid(`${path}.transports`, `at most ${transportsMax}`, transports);
  return {
    instance: nameOf(map.get('instance'), `${path}.instance`),
    incarnation: nameOf(map.get('incarnation'), `${path}.incarnation`),
    transports,
    held: listOf(map.get('held'), `${path}.held`).map((entry, index) => heldOf(entry, `${path}.held[${index}]`)),
  };
}

function heldOf(value: Wire, path: string): HeldHandoff {
  const map = mapOf(value, path);
  const state = map.get('state');
  if (state !== 'pinned' && state !== 'importing' && state !== 'quarantined')
    throw invalid(`${path}.state`, '"pinned", "importing" or "quarantined"', state);
  const optional = (key: string): string | null => {
    const name = map.get(key) ?? null;
    return name === null ? null : nameOf(name, `${path}.${key}`);
  };
  return {
    requestId: integerOf(map.get('request_id'), `${path}.request_id`, Number.MAX_SAFE_INTEGER),
    state,
    peerInstance: optional('peer_instance'),
    peerIncarnation: optional('peer_incarnation'),
    ageMs: integerOf(map.get('age_ms'), `${path}.age_ms`, Number.MAX_SAFE_INTEGER),
    blocks: integerOf(map.get('blocks'), `${path}.blocks`, int32Max),
  };
}

function mapOf(value: Wire | undefined, path: string): WireMap {
  if (value instanceof Map) return value as WireMap;
  throw invalid(path, 'a map', value);
}

function listOf(value: Wire | undefined, path: string): readonly Wire[] {
  if (Array.isArray(value)) return value as readonly Wire[];
  throw invalid(path, 'a list', value);
}

function nameOf(value: Wire | undefined, path: string): string {
  if (typeof value === 'string' && value.length >= 1 && value.length <= nameLengthMax) return value;
  throw invalid(path, `text of 1 to ${nameLengthMax} characters`, value);
}

function integerOf(value: Wire | undefined, path: string, max: number): number {
  if (typeof value === 'number' && value >= 0 && value <= max) return value;
  throw invalid(path, `an integer in [0, ${max}]`, value);
}

function invalid(path: string, expected: string, got: unknown): Error {
  return argumentError(path, expected, got, 'MESSAGE_INVALID');
}
