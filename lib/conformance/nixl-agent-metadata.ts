/** Section `nixl_agent_metadata`: metadata taken out of a handoff and put back from the registration, or refused. */
import { agentsOf, restoreAgentMetadata, stripAgentMetadata } from '../control/protocol/agent-metadata.js';
import { Float64, type Wire } from '../control/protocol/wire-value.js';
import { JsonFloat, type ExactObject, type ExactValue } from './exact-json.js';
import { expectEqual, Mismatch } from './mismatch.js';
import { expectError, fieldsOf, stringOf, type ErrorTypes, type Section } from './section.js';
import { wireOf } from './wire-exact.js';

const refused: ErrorTypes = { ValueError: ['MESSAGE_INVALID'] };

export const nixlAgentMetadataSection: Section = {
  name: 'nixl_agent_metadata',
  keys: ['registration', 'handoff', 'stripped', 'restored'],
  groups: {
    /** They name what is wrong; the handoff that has it is made here from the file's own. */
    errors(value, document) {
      const fields = fieldsOf(value, '', ['name', 'error']);
      const name = stringOf(fields['name'], 'name');
      const alter = alterations.get(name);
      if (alter === undefined) throw new Mismatch('name', [...alterations.keys()].join(' or '), name);
      const { agents, handoff } = partsOf(document);
      expectError(fields['error'], 'error', refused, () => exactOf(restoreAgentMetadata(alter(handoff), agents)));
    },
  },
  whole: {
    name: 'registration, stripped, restored',
    run(document) {
      const { agents, handoff } = partsOf(document);
      const stripped = stripAgentMetadata(handoff);
      expectEqual('stripped', document['stripped'] ?? null, exactOf(stripped));
      expectEqual('restored', document['restored'] ?? null, exactOf(restoreAgentMetadata(stripped, agents)));
      expectEqual('restored, whole', document['restored'] ?? null, exactOf(restoreAgentMetadata(handoff, agents)));
    },
  },
};

const alterations = new Map<string, (handoff: Wire) => Wire>([
  ['unknown agent', (handoff) => altered(handoff, 'agent_name')],
  ['mismatch', (handoff) => altered(handoff, 'agent_metadata_b64')],
]);

function partsOf(document: ExactObject): { agents: ReadonlyMap<string, string>; handoff: Wire } {
  for (const key of ['registration', 'handoff']) {
    if (document[key] === undefined) throw new Mismatch(key, 'a value', 'nothing');
  }
  return { agents: agentsOf(wireOf(document['registration']!)), handoff: wireOf(document['handoff']!) };
}

/** Every text under `key` with something after it. */
function altered(value: Wire, key: string): Wire {
  if (Array.isArray(value)) return (value as readonly Wire[]).map((inner) => altered(inner, key));
  if (!(value instanceof Map)) return value;
  const entries = [...(value as ReadonlyMap<string, Wire>)];
  return new Map(entries.map(([name, inner]) => [name, name === key ? `${String(inner)}-other` : altered(inner, key)]));
}

function exactOf(value: Wire): ExactValue {
  if (value instanceof Float64) return new JsonFloat(value.value);
  if (Array.isArray(value)) return (value as readonly Wire[]).map(exactOf);
  if (value instanceof Map)
    return Object.fromEntries([...(value as ReadonlyMap<string, Wire>)].map(([key, inner]) => [key, exactOf(inner)]));
  return value as ExactValue;
}
