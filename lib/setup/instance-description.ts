/**
 * What an instance says about itself: each rank's static descriptors, gathered once, and the registration card.
 */
import { protocolVersion, type InstanceCard } from '../compatibility.js';
import type { RankGroup } from '../control/rank-group.js';
import type { EngineContext } from '../engine-context.js';
import { HandoffError } from '../errors.js';
import { deepFreeze, isRecord, type WireObject } from '../json.js';
import type { CompiledOptions } from '../options.js';
import { exportKvDescriptor, exportSsmDescriptors } from '../prefill/handoff-metadata.js';
import { replicatedLayoutKey } from '../transfer/described-layout.js';
import type { Transport } from '../transfer/transport.js';
import type { Role } from './check-context.js';

interface RankDescriptors {
  readonly kv: WireObject;
  readonly ssm: { readonly conv: WireObject; readonly recurrent: WireObject } | null;
  readonly instance: string;
  readonly incarnation: string;
}

export interface InstanceDescription {
  readonly tpSize: number;
  readonly ppSize: number;
  /** Stage major, tensor rank minor. */
  readonly kv: readonly WireObject[];
  readonly ssm: readonly RankDescriptors['ssm'][] | null;
  /** What a decode instance registers (spec 1.5.2) and SEND_KV carries. */
  readonly instanceMeta: readonly WireObject[];
}

/**
 * Collective over the group: every rank calls it once.
 *
 * @throws `INCOMPATIBLE` when the ranks are not one instance's (identity, or a TP × PP that does not fit the group)
 */
export async function describeRanks(
  context: EngineContext,
  transports: readonly Transport[],
  options: CompiledOptions,
  group: RankGroup | null,
): Promise<InstanceDescription> {
  const own: RankDescriptors = {
    kv: exportKvDescriptor({
      kv: context.kv,
      blockSize: context.blockSize,
      poolSize: context.blocks.poolSize,
      regions: context.regions,
      transports: Object.fromEntries(transports.map((transport) => [transport.name, transport.grant()])),
      place: null,
    }),
    ssm:
      context.ssm === null ? null : exportSsmDescriptors({ ssm: context.ssm, convPlace: null, recurrentPlace: null }),
    instance: options.instance,
    incarnation: options.incarnation,
  };
  // Every ticket shares these, so what came over the group is frozen as the own ones are.
  const gathered = group === null ? [own] : deepFreeze((await group.allGather(own)) as readonly RankDescriptors[]);
  for (const [rank, other] of gathered.entries()) {
    if (!isRecord(other) || other.instance !== own.instance || other.incarnation !== own.incarnation) {
      throw new HandoffError(
        'INCOMPATIBLE',
        `rank ${rank} belongs to instance ${String(other?.instance)}/${String(other?.incarnation)}, this rank to ${own.instance}/${own.incarnation}; give all ranks the same options.instance and options.incarnation`,
      );
    }
  }
  const { tpSize, ppSize } = context.kv.layout;
  if (tpSize * ppSize !== gathered.length) {
    throw new HandoffError(
      'INCOMPATIBLE',
      `engine.kv.layout: ${tpSize} × ${ppSize} ranks do not make a group of ${gathered.length}`,
    );
  }
  const ordered = [...gathered].sort((a, b) => position(a) - position(b));
  return {
    tpSize,
    ppSize,
    kv: ordered.map(({ kv }) => kv),
    ssm: context.ssm === null ? null : ordered.map(({ ssm }) => ssm),
    instanceMeta: ordered.map(({ kv, ssm }) => ({
      ...kv,
      request_capacity: context.maxRequests,
      ...(ssm === null
        ? {}
        : { ssm: { ...ssm }, ssm_slot_capacity: context.slots?.size ?? 0, ssm_handoff_max_slots: 1 }),
    })),
  };
}

/** Stage major, tensor rank minor; replicated layouts keep their place under another key. */
function position({ kv }: RankDescriptors): number {
  const at = (isRecord(kv[replicatedLayoutKey]) ? kv[replicatedLayoutKey] : kv) as Readonly<Record<string, unknown>>;
  return Number(at['pp_rank'] ?? 0) * 65_536 + Number(at['tp_rank'] ?? 0);
}

/** SSM layers of the whole model: the end of the last stage that has some. */
export function ssmLayers({ ssm }: InstanceDescription): number {
  const ends = (ssm ?? []).map((rank) => {
    const layout = rank?.conv['ssm_layout'] as { layer_start: number; num_layers: number } | undefined;
    return layout === undefined ? 0 : layout.layer_start + layout.num_layers;
  });
  return Math.max(0, ...ends);
}

/** The registration card (spec 13.8). */
export function instanceCard(
  context: EngineContext,
  role: Role,
  transports: readonly Transport[],
  options: CompiledOptions,
  description: InstanceDescription,
): InstanceCard {
  const { layout } = context.kv;
  return {
    protocolVersion,
    instance: options.instance,
    incarnation: options.incarnation,
    role,
    model: context.model,
    dtype: context.dtype,
    blockSize: context.blockSize,
    contextLength: context.maxSequenceLength,
    maxRequests: context.maxRequests,
    totalBlocks: context.blocks.poolSize - 1,
    numSpeculativeTokens: context.numSpeculativeTokens,
    epoch: options.epoch,
    transports: transports.map(({ name }) => name),
    kv: {
      tokensPerBlock: context.blockSize,
      elementBytes: context.kv.buffers[0]?.elementBytes ?? 1,
      headDim: layout.headDim,
      numLayersGlobal: layout.numLayersGlobal,
      numKvHeadsGlobal: layout.numKvHeadsGlobal,
    },
    ssm:
      context.ssm === null
        ? null
        : {
            convElementBytes: context.ssm.conv.elementBytes,
            recurrentElementBytes: context.ssm.recurrent.elementBytes,
            dims: context.ssm.layout.dims,
            numLayersGlobal: ssmLayers(description),
          },
  };
}
