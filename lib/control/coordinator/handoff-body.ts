/**
 * What the coordinator reads of a prefill's reply: the handoff (spec 1.5.3), checked in form, with the agents' metadata that
 * the engine left out put back from its registration. Everything else stays in its bytes.
 */
import { isHandoffError } from '../../errors.js';
import { agentsOf, restoreAgentMetadata } from '../protocol/agent-metadata.js';
import { decodeValue, encodeValue, isMapForm, mapParts } from '../protocol/wire-bytes.js';
import type { Opaque, Wire } from '../protocol/wire-value.js';
import type { EngineRecord } from './engine-record.js';
import type { HandoffParts } from './request-record.js';

const nameKey = new TextEncoder().encode('agent_name');
const registeredAgents = new WeakMap<EngineRecord, ReadonlyMap<string, string>>();

/** The handoff in a prefill's reply, or why there is none that can be used. */
export function readHandoff(body: Opaque, prefill: EngineRecord): HandoffParts | string {
  try {
    const params = partsOf(mapParts(body)?.get('disaggregated_params'));
    if (params === null) return 'prefill gave no handoff metadata';
    const [kvMeta, blockIds] = [params.get('kv_meta'), params.get('block_ids')];
    const inner = partsOf(kvMeta);
    if (kvMeta === undefined || inner === null || blockIds === undefined || !isIntegerList(blockIds))
      return 'prefill gave invalid handoff metadata';
    const ssm = inner.get('ssm');
    return { kvMeta: restored(kvMeta, prefill), sourceBlockIds: blockIds, hasSsm: ssm !== undefined && isTrue(ssm) };
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    return `prefill gave invalid handoff metadata: ${error.message}`;
  }
}

/** Whether a handoff that a client brings moves SSM state. */
export function hasSsm(kvMeta: Opaque): boolean {
  const ssm = mapParts(kvMeta)?.get('ssm');
  return ssm !== undefined && isTrue(ssm);
}

function partsOf(value: Opaque | undefined): ReadonlyMap<string, Opaque> | null {
  return value !== undefined && isMapForm(value[0]) ? mapParts(value) : null;
}

function isIntegerList(bytes: Opaque): boolean {
  const list = decodeValue(bytes);
  return Array.isArray(list) && (list as readonly Wire[]).every((id) => typeof id === 'number' && Number.isInteger(id));
}

/** As the reference's language reads a value as a condition. */
function isTrue(bytes: Opaque): boolean {
  const first = bytes[0]!;
  const isEmpty = first === 0x80 || first === 0x90 || first === 0xa0;
  return !(isEmpty || first === 0xc0 || first === 0xc2 || first === 0x00);
}

function restored(kvMeta: Opaque, prefill: EngineRecord): Opaque {
  // Decoding costs more than everything else here, and most transports have no agents.
  if (!includes(kvMeta, nameKey)) return kvMeta;
  let agents = registeredAgents.get(prefill);
  if (agents === undefined) registeredAgents.set(prefill, (agents = agentsOf(prefill.card?.instanceMeta ?? [])));
  return encodeValue(restoreAgentMetadata(decodeValue(kvMeta), agents));
}

function includes(bytes: Uint8Array, needle: Uint8Array): boolean {
  for (let at = bytes.indexOf(needle[0]!); at >= 0; at = bytes.indexOf(needle[0]!, at + 1)) {
    if (needle.every((byte, index) => bytes[at + index] === byte)) return true;
  }
  return false;
}
