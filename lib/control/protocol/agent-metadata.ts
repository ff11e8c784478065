/**
 * NIXL agents' own metadata in transfer descriptors (spec 1.5.3). It is large and never changes, so a prefill engine leaves
 * it out of its replies and the coordinator puts it back from the registration. Values are copied, never changed in place.
 */
import { argumentError } from '../../errors.js';
import type { Wire, WireMap } from './wire-value.js';

/** Key under which a descriptor names its agent. */
export const agentNameKey = 'agent_name';
/** Key of an agent's metadata beside its name. */
export const agentBlobKey = 'agent_metadata_b64';

/**
 * The metadata of every agent in a registration, by the agent's name, at any depth.
 *
 * @throws `MESSAGE_INVALID` when one agent comes with two different blobs
 */
export function agentsOf(registration: Wire): ReadonlyMap<string, string> {
  const agents = new Map<string, string>();
  const visit = (value: Wire): void => {
    if (isMap(value)) {
      const [name, blob] = [value.get(agentNameKey), value.get(agentBlobKey)];
      if (typeof name === 'string' && typeof blob === 'string') {
        if ((agents.get(name) ?? blob) !== blob) throw mismatch(name);
        agents.set(name, blob);
      }
      for (const inner of value.values()) visit(inner);
    } else if (Array.isArray(value)) {
      for (const inner of value as readonly Wire[]) visit(inner);
    }
  };
  visit(registration);
  return agents;
}

/** Prefill: `value` without the metadata of any map that names its agent; other such keys stay. */
export function stripAgentMetadata(value: Wire): Wire {
  return mapped(value, (map) => {
    if (!map.has(agentNameKey) || !map.has(agentBlobKey)) return map;
    return new Map([...map].filter(([key]) => key !== agentBlobKey));
  });
}

/**
 * Coordinator: `value` with the registered metadata in every map that names its agent, as that map's last key unless it
 * was there.
 *
 * @throws `MESSAGE_INVALID` for an agent that did not register, and for metadata other than the registered
 */
export function restoreAgentMetadata(value: Wire, agents: ReadonlyMap<string, string>): Wire {
  return mapped(value, (map) => {
    const name = map.get(agentNameKey);
    if (name === undefined) return map;
    const blob = typeof name === 'string' ? agents.get(name) : undefined;
    if (blob === undefined) throw argumentError(agentNameKey, 'an agent of the registration', name, 'MESSAGE_INVALID');
    const supplied = map.get(agentBlobKey);
    if (supplied === undefined) return new Map([...map, [agentBlobKey, blob]]);
    if (supplied !== blob) throw mismatch(name as string);
    return map;
  });
}

function mapped(value: Wire, change: (map: WireMap) => WireMap): Wire {
  if (Array.isArray(value)) return (value as readonly Wire[]).map((inner) => mapped(inner, change));
  if (!isMap(value)) return value;
  return change(new Map([...value].map(([key, inner]) => [key, mapped(inner, change)])));
}

function isMap(value: Wire): value is WireMap {
  return value instanceof Map;
}

function mismatch(name: string): Error {
  return argumentError(`${agentBlobKey} of ${name}`, 'the metadata of the registration', 'another', 'MESSAGE_INVALID');
}
