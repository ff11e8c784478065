/**
 * Reading the three shapes of transfer metadata (spec 1.5.3): a flat descriptor (or a bare list of them), `tp_metas`,
 * and `pp_metas` of stages. Used by both sides, before anything else is known about the metadata.
 *
 * Never changes what it is given. What is not a descriptor or not a block id is refused with its path; whether the
 * descriptors make sense is `decode/handoff-parser.ts`'s business.
 */
import { argumentError } from '../errors.js';
import { isRecord } from '../json.js';
import { own, type Fields } from '../json-fields.js';
import { defaultTicketLimits, int32Max, type TicketLimits } from '../limits.js';

/** Ids of blocks (or of one slot) in sequence order. */
export type BlockIdList = readonly number[] | Int32Array;

/** One source rank: its descriptor, as it was sent, and the blocks to take from it. */
export interface TransferRecord {
  readonly descriptor: Fields;
  readonly blockIds: BlockIdList;
  /** Where the descriptor stood, for error messages. */
  readonly path: string;
}

/**
 * Lists the source ranks that `meta` describes, stage by stage, with the blocks of each. A leaf's own `block_ids`
 * override its stage's; a stage without any has none; flat maps, lists and `tp_metas` fall back on `sourceBlockIds`.
 *
 * @throws `TICKET_INVALID` for a leaf that is no map, a list that is none, or an id that is no block id
 */
export function transferPeerRecords(
  meta: unknown,
  sourceBlockIds: unknown,
  limits: TicketLimits = defaultTicketLimits,
  path = 'kvMeta',
): TransferRecord[] {
  const records: TransferRecord[] = [];
  const blocks = blockIdList(sourceBlockIds, 'sourceBlockIds', limits);
  if (isRecord(meta) && Object.hasOwn(meta, 'pp_metas')) {
    const stages = meta['pp_metas'];
    if (!Array.isArray(stages)) throw argumentError(`${path}.pp_metas`, 'a list of stages', stages, 'TICKET_INVALID');
    for (let index = 0; index < stages.length; index++) {
      const stage: unknown = stages[index];
      const stagePath = `${path}.pp_metas[${index}]`;
      if (!isRecord(stage)) throw argumentError(stagePath, 'a map', stage, 'TICKET_INVALID');
      const stageBlocks = Object.hasOwn(stage, 'block_ids')
        ? blockIdList(stage['block_ids'], `${stagePath}.block_ids`, limits)
        : [];
      if (Object.hasOwn(stage, 'tp_metas')) {
        appendLeaves(records, stage['tp_metas'], stageBlocks, `${stagePath}.tp_metas`, limits);
      } else {
        appendLeaves(records, stage, stageBlocks, stagePath, limits);
      }
    }
    return records;
  }
  if (isRecord(meta) && Object.hasOwn(meta, 'tp_metas')) {
    appendLeaves(records, meta['tp_metas'], blocks, `${path}.tp_metas`, limits);
  } else {
    appendLeaves(records, meta, blocks, path, limits);
  }
  return records;
}

function appendLeaves(
  records: TransferRecord[],
  leaves: unknown,
  defaultBlocks: BlockIdList,
  path: string,
  limits: TicketLimits,
): void {
  const isList = Array.isArray(leaves);
  const list: readonly unknown[] = isList ? leaves : [leaves];
  if (records.length + list.length > limits.ranksMax) {
    throw argumentError(path, `at most ${limits.ranksMax} ranks`, list, 'TICKET_INVALID');
  }
  for (let index = 0; index < list.length; index++) {
    const leafPath = isList ? `${path}[${index}]` : path;
    const leaf = list[index];
    if (!isRecord(leaf)) throw argumentError(leafPath, 'a descriptor (a map)', leaf, 'TICKET_INVALID');
    const blockIds = Object.hasOwn(leaf, 'block_ids')
      ? blockIdList(leaf['block_ids'], `${leafPath}.block_ids`, limits)
      : defaultBlocks;
    records.push({ descriptor: leaf, blockIds, path: leafPath });
  }
}

/**
 * The list itself, once every member is known to be an id.
 *
 * @throws `TICKET_INVALID`
 */
export function blockIdList(value: unknown, path: string, limits: TicketLimits = defaultTicketLimits): BlockIdList {
  if (!(Array.isArray(value) || value instanceof Int32Array) || value.length > limits.blocksMax) {
    throw argumentError(path, `a list of at most ${limits.blocksMax} block ids`, value, 'TICKET_INVALID');
  }
  const ids = value as ArrayLike<unknown>;
  for (let index = 0; index < ids.length; index++) {
    const id = ids[index];
    if (typeof id !== 'number' || !Number.isInteger(id) || id < 0 || id > int32Max) {
      throw argumentError(`${path}[${index}]`, `a block id in [0, ${int32Max}]`, id, 'TICKET_INVALID');
    }
  }
  return value as BlockIdList;
}

/**
 * The number of blocks of a handoff: the length of the first record's list; 0 when there is no record.
 *
 * @throws `TICKET_INVALID`
 */
export function handoffBlockCount(meta: unknown, sourceBlockIds: unknown): number {
  return transferPeerRecords(meta, sourceBlockIds)[0]?.blockIds.length ?? 0;
}

/** Lists inside lists, stages and ranks: no real metadata nests deeper. */
const shapeDepthMax = 8;

/**
 * Metadata without its first `prefix` blocks, for a target that has those already. Trims `block_ids` where the shape
 * keeps them (the map itself, stages, leaves) and leaves everything else, the `ssm` subtree included, as it is. Returns
 * new containers along the way and shares the rest; with a prefix of 0 the metadata itself.
 *
 * `sourceBlockIds` shorter than `prefix` become empty, as in the reference: counts are compared before.
 *
 * @throws `ARGUMENT_INVALID` for a negative prefix, `TICKET_INVALID` when a list inside is shorter than `prefix`
 */
export function dropPrefix<Meta>(
  meta: Meta,
  sourceBlockIds: BlockIdList,
  prefix: number,
): { readonly kvMeta: Meta; readonly sourceBlockIds: readonly number[] } {
  if (!Number.isSafeInteger(prefix) || prefix < 0)
    throw argumentError('prefix', 'a number of blocks, 0 or more', prefix);
  const ids = Array.from(blockIdList(sourceBlockIds, 'sourceBlockIds'));
  if (prefix === 0) return { kvMeta: meta, sourceBlockIds: ids };
  return { kvMeta: trim(meta, prefix, 'kvMeta', 0) as Meta, sourceBlockIds: ids.slice(prefix) };
}

function trim(value: unknown, prefix: number, path: string, depth: number): unknown {
  if (depth > shapeDepthMax) throw argumentError(path, `at most ${shapeDepthMax} levels`, value, 'TICKET_INVALID');
  if (Array.isArray(value)) return value.map((entry, index) => trim(entry, prefix, `${path}[${index}]`, depth + 1));
  if (!isRecord(value)) return value;
  const trimmed: Record<string, unknown> = { ...value };
  const blocks = own(value, 'block_ids');
  if (blocks !== undefined) {
    const ids = blockIdList(blocks, `${path}.block_ids`);
    if (ids.length < prefix) {
      throw argumentError(
        `${path}.block_ids`,
        `at least ${prefix} blocks, as many as are left out`,
        blocks,
        'TICKET_INVALID',
      );
    }
    trimmed['block_ids'] = ids.slice(prefix);
  }
  for (const key of ['pp_metas', 'tp_metas']) {
    if (Object.hasOwn(value, key)) trimmed[key] = trim(value[key], prefix, `${path}.${key}`, depth + 1);
  }
  return trimmed;
}
