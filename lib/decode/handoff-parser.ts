/**
 * From `kv_meta` as a peer sent it to what an import works with. Everything is checked here once: shapes, counts, ranges,
 * versions, and that the parts agree with each other; after it nothing of the ticket is trusted blindly or looked at again.
 *
 * Static descriptions of peers are remembered (`PeerDescriptorCache`), so that a request costs what its own part costs.
 */
import { argumentError } from '../errors.js';
import type { HandoffRef } from '../events.js';
import { isRecord } from '../json.js';
import {
  fieldError,
  integerField,
  listField,
  optionalStringField,
  own,
  recordField,
  uint64,
  type Fields,
} from '../json-fields.js';
import { defaultTicketLimits, int32Max, type TicketLimits } from '../limits.js';
import type { BlockIdList, TransferRecord } from '../prefill/transfer-records.js';
import { promptDigestKey } from '../prompt-digest.js';
import { parseHandoffFields } from '../ticket.js';
import { describeRanks, peerRecords, type DescribedRank } from '../transfer/peer-description.js';
import type { PeerDescriptorCache } from '../transfer/peer-descriptor-cache.js';
import type { PeerShare } from '../transfer/peer-plans.js';
import { hasDuplicates } from './duplicate-ids.js';

/** One handoff, as its ticket tells it. */
export interface ParsedKvMeta {
  /** Null for a ticket of a peer without fenced identity. */
  readonly handoff: HandoffRef | null;
  /** Identity of the source's model and its element type; null where the peer does not say. */
  readonly model: string | null;
  readonly dtype: string | null;
  /** Tokens of the prompt by the source's count; null where the peer does not say. */
  readonly promptTokens: number | null;
  /** Digest of the prompt's token ids; null where the peer does not say. */
  readonly promptDigest: string | null;
  /** The source's ranks; the same array for the same description when a cache is used. */
  readonly ranks: readonly DescribedRank[];
  /** By rank: the blocks of the whole prompt in sequence order, and the slot. */
  readonly shares: readonly PeerShare[];
  readonly blockCount: number;
  /** SSM state slot of the source, the same on all its ranks; null for attention-only models. */
  readonly slot: number | null;
  /** Generations at pin time, by index into the prompt's blocks; null when the source has none. */
  readonly blockGenerations: BigUint64Array | null;
  readonly slotGeneration: bigint | null;
  readonly resumeTokens: readonly number[];
  readonly resumeLogProbs: readonly number[] | null;
}

export interface ParseOptions {
  readonly limits?: TicketLimits;
  readonly cache?: PeerDescriptorCache;
}

/**
 * Decode. Parses a handoff before any prefix is dropped from it.
 *
 * @throws `TICKET_INVALID`, `TICKET_VERSION`, `SSM_METADATA_INVALID`, `RESUME_TOKENS_INVALID`, `BLOCK_COUNT_MISMATCH`
 */
export function parseKvMeta(kvMeta: unknown, sourceBlockIds: unknown, options: ParseOptions = {}): ParsedKvMeta {
  const limits = options.limits ?? defaultTicketLimits;
  if (!isRecord(kvMeta)) throw argumentError('kvMeta', 'a map', kvMeta, 'TICKET_INVALID');
  if (own(kvMeta, 'kvMeta') !== undefined)
    throw argumentError('kvMeta', "a ticket's `kvMeta` field", 'a whole ticket', 'TICKET_INVALID');
  const fields = (own(kvMeta, 'handoff') ?? null) === null ? null : recordField(kvMeta, 'handoff', 'kvMeta');
  const handoff = fields === null ? null : parseHandoffFields(fields, 'kvMeta.handoff', limits);
  const records = peerRecords(kvMeta, sourceBlockIds, limits);
  const peer = peerName(handoff, records.kv);
  const ranks = options.cache?.ranks(records, peer, limits) ?? describeRanks(records, peer, limits);
  const blockIds = parseBlockIds(records.kv, ranks, sourceBlockIds);
  const slot = records.conv === null ? null : parseSlot([...records.conv, ...records.recurrent!], ranks);
  const blockCount = blockIds[0]!.length;
  const promptTokens = fields === null ? null : integerField(fields, 'prompt_tokens', 'kvMeta.handoff', 1, int32Max);
  if (promptTokens !== null && Math.ceil(promptTokens / ranks[0]!.tokensPerBlock) !== blockCount) {
    throw argumentError(
      'sourceBlockIds',
      `${Math.ceil(promptTokens / ranks[0]!.tokensPerBlock)} blocks for ${promptTokens} tokens`,
      blockCount,
      'BLOCK_COUNT_MISMATCH',
    );
  }
  const blockGenerations = fields === null ? null : parseBlockGenerations(fields, blockCount);
  const slotGeneration = fields === null ? null : parseSlotGeneration(fields, slot);
  if (slot !== null && (blockGenerations === null) !== (slotGeneration === null)) {
    throw argumentError(
      'kvMeta.handoff',
      'generations of blocks and slot, or of neither',
      'one of them',
      'TICKET_INVALID',
    );
  }
  return {
    handoff,
    model: nameOf(fields, 'model', limits),
    dtype: nameOf(fields, 'dtype', limits),
    promptTokens,
    promptDigest: nameOf(fields, promptDigestKey, limits),
    ranks,
    shares: blockIds.map((ids) => ({ blockIds: ids, slot })),
    blockCount,
    slot,
    blockGenerations,
    slotGeneration,
    resumeTokens: parseResumeTokens(kvMeta, limits),
    resumeLogProbs: parseResumeLogProbs(kvMeta),
  };
}

function nameOf(handoff: Fields | null, key: string, limits: TicketLimits): string | null {
  return handoff === null ? null : optionalStringField(handoff, key, 'kvMeta.handoff', limits.nameLengthMax);
}

/** Under which name the description is remembered; a peer without identity is known by its first agent. */
function peerName(handoff: HandoffRef | null, kv: readonly TransferRecord[]): string {
  // As JSON, so that no two names read alike.
  if (handoff !== null) return JSON.stringify([handoff.instance, handoff.incarnation]);
  const agent = kv[0] === undefined ? undefined : own(kv[0].descriptor, 'agent_name');
  return typeof agent === 'string' ? `agent ${agent.slice(0, 256)}` : 'unnamed';
}

/** By rank. Ids are in the rank's pool, distinct, and as many on every rank. */
function parseBlockIds(
  records: readonly TransferRecord[],
  ranks: readonly DescribedRank[],
  sourceBlockIds: unknown,
): readonly Int32Array[] {
  const result: Int32Array[] = [];
  let seenList: BlockIdList | null = null;
  let seenIds = new Int32Array(0);
  for (let index = 0; index < records.length; index++) {
    const { blockIds, path } = records[index]!;
    if (blockIds !== seenList) {
      seenIds = Int32Array.from(blockIds);
      seenList = blockIds;
      if (seenIds.length === 0) throw argumentError(`${path}: blocks`, 'at least one', blockIds, 'TICKET_INVALID');
      if (hasDuplicates(seenIds)) throw argumentError(`${path}: blocks`, 'each block once', blockIds, 'TICKET_INVALID');
    }
    const { numBlocks } = ranks[index]!;
    for (let position = 0; position < seenIds.length; position++) {
      if (seenIds[position]! >= numBlocks) {
        throw argumentError(
          `${path}: block ${position}`,
          `an id in [0, ${numBlocks - 1}]`,
          seenIds[position],
          'TICKET_INVALID',
        );
      }
    }
    const expected = result[0]?.length ?? seenIds.length;
    if (seenIds.length !== expected) {
      throw argumentError(`${path}: blocks`, `${expected}, as on the first rank`, blockIds, 'TICKET_INVALID');
    }
    result.push(seenIds);
  }
  const listed = (sourceBlockIds as BlockIdList).length;
  if (listed !== seenIds.length) {
    throw argumentError(
      'sourceBlockIds',
      `${seenIds.length} blocks, as the ranks have`,
      sourceBlockIds,
      'TICKET_INVALID',
    );
  }
  return result;
}

/** The slot that all leaves of both states name. */
function parseSlot(records: readonly TransferRecord[], ranks: readonly DescribedRank[]): number {
  const code = 'SSM_METADATA_INVALID';
  const slotsMax = Math.min(...ranks.map(({ numSlots }) => numSlots ?? Infinity));
  const slot = records[0]!.blockIds[0];
  for (const { blockIds, path } of records) {
    if (blockIds.length !== 1) throw argumentError(`${path}.block_ids`, 'one slot', blockIds, code);
    if (blockIds[0] !== slot)
      throw argumentError(`${path}.block_ids[0]`, `${slot}, as on the first rank`, blockIds[0], code);
  }
  if (slot! >= slotsMax)
    throw argumentError(`${records[0]!.path}.block_ids[0]`, `a slot in [0, ${slotsMax - 1}]`, slot, code);
  return slot!;
}

function parseBlockGenerations(handoff: Fields, blockCount: number): BigUint64Array | null {
  const value = own(handoff, 'block_generations');
  if (value === undefined || value === null) return null;
  const path = 'kvMeta.handoff';
  const list = listField(handoff, 'block_generations', path, blockCount);
  if (list.length !== blockCount)
    throw fieldError(path, 'block_generations', `one for each of ${blockCount} blocks`, list, 'TICKET_INVALID');
  const generations = new BigUint64Array(blockCount);
  for (let index = 0; index < blockCount; index++) {
    const generation = list[index];
    generations[index] =
      typeof generation === 'bigint' && generation >= 0n && generation <= 0xffff_ffff_ffff_ffffn
        ? generation
        : uint64(generation, `${path}.block_generations[${index}]`);
  }
  return generations;
}

function parseSlotGeneration(handoff: Fields, slot: number | null): bigint | null {
  const value = own(handoff, 'slot_generation');
  if (value === undefined || value === null) return null;
  if (slot === null)
    throw argumentError('kvMeta.handoff.slot_generation', 'null without SSM state', value, 'TICKET_INVALID');
  return uint64(value, 'kvMeta.handoff.slot_generation');
}

function parseResumeTokens(kvMeta: Fields, limits: TicketLimits): readonly number[] {
  const code = 'RESUME_TOKENS_INVALID';
  const tokens = listField(kvMeta, 'resume_tokens', 'kvMeta', limits.resumeTokensMax, code);
  if (tokens.length === 0) throw argumentError('kvMeta.resume_tokens', 'at least the sampled token', tokens, code);
  for (let index = 0; index < tokens.length; index++) {
    const token = tokens[index];
    if (!Number.isInteger(token) || (token as number) < 0 || (token as number) > int32Max) {
      throw argumentError(`kvMeta.resume_tokens[${index}]`, `a token id in [0, ${int32Max}]`, token, code);
    }
  }
  return (tokens as readonly number[]).slice();
}

function parseResumeLogProbs(kvMeta: Fields): readonly number[] | null {
  const value = own(kvMeta, 'resume_log_probs');
  if (value === undefined || value === null) return null;
  const logProbs = listField(kvMeta, 'resume_log_probs', 'kvMeta', 1, 'RESUME_TOKENS_INVALID');
  if (logProbs.length !== 1 || !Number.isFinite(logProbs[0])) {
    throw argumentError('kvMeta.resume_log_probs', 'one finite number', value, 'RESUME_TOKENS_INVALID');
  }
  return (logProbs as readonly number[]).slice();
}
