/**
 * What the coordinator reads of a prefill's reply: the handoff (spec 1.5.3), checked in form, with the agents' metadata that
 * the engine left out put back from its registration. Everything else stays in its bytes.
 */
import { isHandoffError } from '../../errors.js';
import { agentBlobKey, agentNameKey, agentsOf, restoreAgentMetadata } from '../protocol/agent-metadata.js';
import { appendPart, decodeValue, encodeValue, isMapForm, mapParts } from '../protocol/wire-bytes.js';
import { WireReader } from '../protocol/wire-reader.js';
import type { Opaque } from '../protocol/wire-value.js';
import type { EngineRecord } from './engine-record.js';
import type { HandoffParts } from './request-record.js';

const nameKey = new TextEncoder().encode(agentNameKey);
const registeredAgents = new WeakMap<EngineRecord, RegisteredAgents>();

/** The handoff in a prefill's reply, or why there is none that can be used. */
export function readHandoff(body: Opaque, prefill: EngineRecord): HandoffParts | string {
  try {
    const params = partsOf(mapParts(body)?.get('disaggregated_params'));
    if (params === null) return 'prefill gave no handoff metadata';
    const [kvMeta, blockIds] = [params.get('kv_meta'), params.get('block_ids')];
    const inner = partsOf(kvMeta);
    if (
      kvMeta === undefined ||
      inner === null ||
      blockIds === undefined ||
      !new WireReader(blockIds, 'block_ids').isIntegerList()
    )
      return 'prefill gave invalid handoff metadata';
    const ssm = inner.get('ssm');
    return {
      kvMeta: restored(kvMeta, inner, prefill),
      sourceBlockIds: blockIds,
      hasSsm: ssm !== undefined && isTrue(ssm),
    };
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    return `prefill gave invalid handoff metadata: ${error.message}`;
  }
}

/** Whether a handoff that a client brings moves SSM state, or why it is none that can be used. */
export function readSsm(kvMeta: Opaque): boolean | string {
  try {
    const ssm = mapParts(kvMeta)?.get('ssm');
    return ssm !== undefined && isTrue(ssm);
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    return `the handoff metadata is invalid: ${error.message}`;
  }
}

function partsOf(value: Opaque | undefined): ReadonlyMap<string, Opaque> | null {
  return value !== undefined && isMapForm(value[0]) ? mapParts(value) : null;
}

/** As the reference's language reads a value as a condition. */
function isTrue(bytes: Opaque): boolean {
  const first = bytes[0]!;
  const isEmpty = first === 0x80 || first === 0x90 || first === 0xa0;
  return !(isEmpty || first === 0xc0 || first === 0xc2 || first === 0x00);
}

function restored(kvMeta: Opaque, parts: ReadonlyMap<string, Opaque>, prefill: EngineRecord): Opaque {
  // Decoding costs more than everything else here, and most transports have no agents.
  const first = indexOf(kvMeta, nameKey, 0);
  if (first < 0) return kvMeta;
  let agents = registeredAgents.get(prefill);
  if (agents === undefined) registeredAgents.set(prefill, (agents = readAgents(prefill)));
  // One rank's descriptor, as it comes for most engines: nothing is decoded but the name.
  const name = parts.get(agentNameKey);
  if (name !== undefined && !parts.has(agentBlobKey) && indexOf(kvMeta, nameKey, first + 1) < 0) {
    const known = decodeValue(name);
    const blob = typeof known === 'string' ? agents.encoded.get(known) : undefined;
    if (blob !== undefined) return appendPart(kvMeta, agentBlobKey, blob);
  }
  return encodeValue(restoreAgentMetadata(decodeValue(kvMeta), agents.blobs));
}

/** What an engine registered of its agents: each one's metadata, and the same encoded. */
interface RegisteredAgents {
  readonly blobs: ReadonlyMap<string, string>;
  readonly encoded: ReadonlyMap<string, Opaque>;
}

function readAgents(prefill: EngineRecord): RegisteredAgents {
  const blobs = agentsOf(prefill.card?.instanceMeta ?? []);
  return { blobs, encoded: new Map([...blobs].map(([name, blob]) => [name, encodeValue(blob)])) };
}

function indexOf(bytes: Uint8Array, needle: Uint8Array, from: number): number {
  for (let at = bytes.indexOf(needle[0]!, from); at >= 0; at = bytes.indexOf(needle[0]!, at + 1)) {
    let same = 1;
    while (same < needle.length && bytes[at + same] === needle[same]) same++;
    if (same === needle.length) return at;
  }
  return -1;
}
