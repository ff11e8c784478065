/**
 * A peer instance as its descriptors tell it: all ranks, each with attention state, SSM state and grants, checked one by
 * one and against each other. Used on decode for what a ticket says and on prefill for the targets of a push.
 */
import { argumentError, HandoffError } from '../errors.js';
import { isRecord } from '../json.js';
import { own, recordField, type Fields } from '../json-fields.js';
import { defaultTicketLimits, type TicketLimits } from '../limits.js';
import { transferPeerRecords, type TransferRecord } from '../prefill/transfer-records.js';
import type { PeerRank } from './peer-pairing.js';
import type { SsmEndpoint } from './plan-ssm.js';
import {
  parseKvDescriptor,
  parseSsmDescriptor,
  type PeerKv,
  type PeerRegion,
  type PeerSsmState,
  type ReferenceSlices,
  type SsmStateKind,
} from './rank-descriptor.js';

/** One rank of a peer, complete. */
export interface DescribedRank extends PeerRank {
  readonly globalRank: number;
  /** Blocks of its pool, the dummy block included. */
  readonly numBlocks: number;
  readonly tokensPerBlock: number;
  readonly elementBytes: number;
  /** Slots of its SSM buffers, a dummy slot included; null for attention-only ranks. */
  readonly numSlots: number | null;
  readonly regions: readonly PeerRegion[];
  /** The reference's description of the same buffers; null where the peer gives none. */
  readonly slices: {
    readonly kv: ReferenceSlices | null;
    readonly conv: ReferenceSlices | null;
    readonly recurrent: ReferenceSlices | null;
  };
  readonly agentName: string | null;
  readonly agentMetadataBase64: string | null;
}

/** The records of a peer's three states; `conv` and `recurrent` are null for attention-only models. */
export interface PeerRecords {
  readonly kv: readonly TransferRecord[];
  readonly conv: readonly TransferRecord[] | null;
  readonly recurrent: readonly TransferRecord[] | null;
}

/**
 * Sorts metadata into records: attention from the metadata itself, SSM state from its `ssm` map (spec 1.5.3).
 *
 * @throws `TICKET_INVALID`, `SSM_METADATA_INVALID`
 */
export function peerRecords(meta: unknown, sourceBlockIds: unknown, limits: TicketLimits): PeerRecords {
  const kv = transferPeerRecords(meta, sourceBlockIds, limits);
  const ssm = isRecord(meta) ? own(meta, 'ssm') : undefined;
  if (ssm === undefined || ssm === null) return { kv, conv: null, recurrent: null };
  const states = recordField(meta as Fields, 'ssm', 'kvMeta', 'SSM_METADATA_INVALID');
  return { kv, conv: ssmRecords(states, 'conv', limits), recurrent: ssmRecords(states, 'recurrent', limits) };
}

function ssmRecords(states: Fields, kind: SsmStateKind, limits: TicketLimits): readonly TransferRecord[] {
  const state = own(states, kind);
  const path = `kvMeta.ssm.${kind}`;
  if (state === undefined || state === null) throw argumentError(path, 'descriptors', state, 'SSM_METADATA_INVALID');
  return transferPeerRecords(state, [], limits, path);
}

/**
 * The ranks in the order of their attention descriptors.
 *
 * @param name - what the keys of the ranks start with; unique for this description of the peer
 * @throws `TICKET_INVALID`, `SSM_METADATA_INVALID`
 */
export function describeRanks(records: PeerRecords, name: string, limits: TicketLimits): readonly DescribedRank[] {
  const { kv: kvRecords, conv, recurrent } = records;
  if (kvRecords.length === 0) throw argumentError('kvMeta', 'at least one rank', kvRecords, 'TICKET_INVALID');
  const kvs = kvRecords.map(({ descriptor, path }) => parseKvDescriptor(descriptor, path, limits));
  checkSameModel(kvs, kvRecords);
  const ssm = conv === null || recurrent === null ? null : describeSsm(kvs, conv, recurrent, limits);
  return kvs.map((kv, index) => {
    const states = ssm === null ? null : ssm[index]!;
    return {
      key: `${name}/${kv.globalRank}`,
      globalRank: kv.globalRank,
      kv: kv.endpoint,
      ssm: states === null ? null : states.endpoint,
      transports: kv.transports,
      numBlocks: kv.numBlocks,
      tokensPerBlock: kv.tokensPerBlock,
      elementBytes: kv.elementBytes,
      numSlots: states === null ? null : states.numSlots,
      regions: states === null ? kv.regions : states.regions,
      slices: { kv: kv.slices, conv: states?.conv ?? null, recurrent: states?.recurrent ?? null },
      agentName: kv.agentName,
      agentMetadataBase64: kv.agentMetadataBase64,
    };
  });
}

/**
 * Prefill. The registered ranks of a decode instance (spec 1.5.2), as SEND_KV carries them: a list of descriptors, each
 * with its own `ssm` map.
 *
 * @param describe - what makes ranks of the sorted records; a cache tells apart instances that go by one name
 * @throws `TICKET_INVALID`, `SSM_METADATA_INVALID`
 */
export function parseInstanceMeta(
  entries: unknown,
  name: string,
  limits: TicketLimits = defaultTicketLimits,
  describe: typeof describeRanks = describeRanks,
): readonly DescribedRank[] {
  const kv = transferPeerRecords(entries, [], limits, 'instanceMeta');
  const states = kv.map(({ descriptor, path }) => {
    const ssm = own(descriptor, 'ssm');
    return ssm === undefined || ssm === null
      ? null
      : { fields: recordField(descriptor, 'ssm', path, 'SSM_METADATA_INVALID'), path };
  });
  if (states.every((state) => state === null)) return describe({ kv, conv: null, recurrent: null }, name, limits);
  const leaves = (kind: SsmStateKind): TransferRecord[] =>
    states.map((state, index) => {
      const path = `${state?.path ?? kv[index]!.path}.ssm`;
      if (state === null)
        throw argumentError(path, 'SSM state on every rank or on none', state, 'SSM_METADATA_INVALID');
      return {
        descriptor: recordField(state.fields, kind, path, 'SSM_METADATA_INVALID'),
        blockIds: [],
        path: `${path}.${kind}`,
      };
    });
  return describe({ kv, conv: leaves('conv'), recurrent: leaves('recurrent') }, name, limits);
}

/** What must be equal on all ranks of an instance (spec 1.6), and that each rank stands once. */
function checkSameModel(kvs: readonly PeerKv[], records: readonly TransferRecord[]): void {
  const holdsLayers = ({ endpoint: { layout } }: PeerKv) => layout.layerEnd > layout.layerStart;
  // A stage without attention layers has no buffer that could tell its element size.
  const first = kvs.find(holdsLayers) ?? kvs[0]!;
  const seen = new Set<number>();
  kvs.forEach((kv, index) => {
    const { path } = records[index]!;
    if (seen.has(kv.globalRank))
      throw argumentError(`${path}.global_rank`, 'a rank not listed before', kv.globalRank, 'TICKET_INVALID');
    seen.add(kv.globalRank);
    const same = (field: string, expected: number, got: number) => {
      if (expected !== got)
        throw argumentError(`${path}.${field}`, `${expected}, as on the other ranks`, got, 'TICKET_INVALID');
    };
    same('tokens_per_block', first.tokensPerBlock, kv.tokensPerBlock);
    if (holdsLayers(kv)) same('element_size', first.elementBytes, kv.elementBytes);
    same('head_dim', first.headDim, kv.headDim);
    same('num_layers_global', first.endpoint.layout.numLayersGlobal, kv.endpoint.layout.numLayersGlobal);
    same('num_kv_heads_global', first.endpoint.layout.numKvHeadsGlobal, kv.endpoint.layout.numKvHeadsGlobal);
  });
}

interface RankSsm {
  readonly endpoint: SsmEndpoint;
  readonly numSlots: number | null;
  readonly regions: readonly PeerRegion[];
  readonly conv: ReferenceSlices | null;
  readonly recurrent: ReferenceSlices | null;
}

/** SSM state by attention rank. A rank without descriptors (a stage without SSM layers) holds none of the layers. */
function describeSsm(
  kvs: readonly PeerKv[],
  conv: readonly TransferRecord[],
  recurrent: readonly TransferRecord[],
  limits: TicketLimits,
): readonly RankSsm[] {
  const code = 'SSM_METADATA_INVALID';
  if (conv.length === 0) throw argumentError('kvMeta.ssm.conv', 'at least one rank', conv, code);
  if (recurrent.length !== conv.length) {
    throw argumentError('kvMeta.ssm.recurrent', `as many ranks as conv has, ${conv.length}`, recurrent, code);
  }
  const byRank = new Map(kvs.map((kv, index) => [kv.globalRank, index]));
  const result: (RankSsm | undefined)[] = kvs.map(() => undefined);
  let first: { readonly conv: PeerSsmState; readonly recurrent: PeerSsmState } | null = null;
  for (let index = 0; index < conv.length; index++) {
    const convRecord = conv[index]!;
    const recurrentRecord = recurrent[index]!;
    const rank = ssmRank(convRecord, byRank);
    if (result[rank] !== undefined)
      throw argumentError(
        `${convRecord.path}.ssm_layout.global_rank`,
        'a rank not listed before',
        kvs[rank]!.globalRank,
        code,
      );
    const convState = parseSsmDescriptor(convRecord.descriptor, convRecord.path, 'conv', kvs[rank]!.regions, limits);
    const regions = [...kvs[rank]!.regions, ...convState.regions];
    const recurrentState = parseSsmDescriptor(
      recurrentRecord.descriptor,
      recurrentRecord.path,
      'recurrent',
      regions,
      limits,
    );
    same(recurrentRecord.path, 'ssm_layout', convState.layout, recurrentState.layout, 'as in conv');
    same(recurrentRecord.path, 'num_blocks', convState.numBlocks, recurrentState.numBlocks, 'as in conv');
    first ??= { conv: convState, recurrent: recurrentState };
    same(convRecord.path, 'ssm_layout.dims', first.conv.layout.dims, convState.layout.dims, 'as on the first rank');
    same(convRecord.path, 'element_size', first.conv.elementBytes, convState.elementBytes, 'as on the first rank');
    same(
      recurrentRecord.path,
      'element_size',
      first.recurrent.elementBytes,
      recurrentState.elementBytes,
      'as on the first rank',
    );
    result[rank] = {
      endpoint: { layout: convState.layout, conv: convState.buffer, recurrent: recurrentState.buffer },
      numSlots: convState.numBlocks,
      regions: [...regions, ...recurrentState.regions],
      conv: convState.slices,
      recurrent: recurrentState.slices,
    };
  }
  return result.map((described, index) => described ?? withoutSsmLayers(kvs[index]!, first!.conv));
}

/** The attention rank that an SSM descriptor belongs to. */
function ssmRank(record: TransferRecord, byRank: ReadonlyMap<number, number>): number {
  const layout = recordField(record.descriptor, 'ssm_layout', record.path, 'SSM_METADATA_INVALID');
  const globalRank = own(layout, 'global_rank');
  const rank = byRank.get(globalRank as number);
  if (rank === undefined) {
    throw argumentError(
      `${record.path}.ssm_layout.global_rank`,
      'a rank with an attention descriptor',
      globalRank,
      'SSM_METADATA_INVALID',
    );
  }
  return rank;
}

function withoutSsmLayers(kv: PeerKv, like: PeerSsmState): RankSsm {
  const nothing = { region: 0, offsetBytes: 0, elementBytes: like.elementBytes, axes: [] };
  const { tpSize, tpRank } = kv.endpoint.layout;
  const layout = { globalRank: kv.globalRank, tpSize, tpRank, layerStart: 0, numLayers: 0, dims: like.layout.dims };
  return {
    endpoint: { layout, conv: nothing, recurrent: nothing },
    numSlots: null,
    regions: kv.regions,
    conv: null,
    recurrent: null,
  };
}

function same(path: string, field: string, expected: unknown, got: unknown, why: string): void {
  if (JSON.stringify(expected) === JSON.stringify(got)) return;
  throw new HandoffError(
    'SSM_METADATA_INVALID',
    `${path}.${field}: expected ${JSON.stringify(expected)}, ${why}, got ${JSON.stringify(got)}`,
    {
      details: { path: `${path}.${field}` },
    },
  );
}
