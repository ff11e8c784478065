/**
 * What an instance says about itself: each rank's static descriptors, gathered once, and the registration card.
 */
import { protocolVersion, type InstanceCard } from '../compatibility.js';
import type { RankGroup } from '../control/rank-group.js';
import type { EngineContext } from '../engine-context.js';
import { HandoffError, isHandoffError } from '../errors.js';
import { deepFreeze, isRecord, type WireObject } from '../json.js';
import { elementBytesOf } from '../memory/model-bytes.js';
import type { CompiledOptions } from '../options.js';
import { exportKvDescriptor, exportSsmDescriptors } from '../prefill/handoff-metadata.js';
import { replicatedLayoutKey } from '../transfer/described-layout.js';
import type { LogCarrier } from '../schedule-log.js';
import { parseInstanceMeta } from '../transfer/peer-description.js';
import { instanceFault } from '../transfer/peer-pairing.js';
import type { Transport } from '../transfer/transport.js';
import type { Role } from './check-context.js';

interface RankDescriptors {
  readonly kv: WireObject;
  readonly ssm: { readonly conv: WireObject; readonly recurrent: WireObject } | null;
  /** What must be the same on every rank, by the name a user would look for. */
  readonly shared: Readonly<Record<string, string | number | boolean>>;
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
 * @throws `INCOMPATIBLE` when the ranks are not one instance's (identity, a TP × PP that does not fit the
 *   group, layers or heads that none or two of them hold)
 */
export async function describeRanks(
  context: EngineContext,
  role: Role,
  carrier: LogCarrier,
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
      // A stage without attention and SSM layers has nothing that a peer could read.
      transports:
        context.regions.length === 0
          ? {}
          : Object.fromEntries(transports.map((transport) => [transport.name, transport.grant()])),
      place: null,
    }),
    ssm:
      context.ssm === null ? null : exportSsmDescriptors({ ssm: context.ssm, convPlace: null, recurrentPlace: null }),
    shared: sharedOf(context, role, carrier, transports, options),
  };
  // Every ticket shares these, so what came over the group is frozen as the own ones are.
  const gathered = group === null ? [own] : deepFreeze((await group.allGather(own)) as readonly RankDescriptors[]);
  requireOneInstance(own, gathered);
  const { tpSize, ppSize } = context.kv.layout;
  if (tpSize * ppSize !== gathered.length) {
    throw new HandoffError(
      'INCOMPATIBLE',
      `engine.kv.layout: ${tpSize} × ${ppSize} ranks do not make a group of ${gathered.length}`,
    );
  }
  const ordered = [...gathered].sort((a, b) => position(a) - position(b));
  ordered.forEach((rank, index) => {
    const expected = Math.floor(index / tpSize) * 65_536 + (index % tpSize);
    if (position(rank) !== expected) {
      throw new HandoffError(
        'INCOMPATIBLE',
        `engine.kv.layout: expected each of ${ppSize} stages × ${tpSize} tensor ranks once over the group`,
      );
    }
  });
  const elementBytes = elementBytesOf(ordered.map(({ kv }) => kv));
  // A stage without attention layers cannot know it by itself, and all must register the same.
  const kvOf = ({ kv }: RankDescriptors): WireObject =>
    (kv['geometry'] as readonly unknown[]).length > 0 ? kv : deepFreeze({ ...kv, element_size: elementBytes });
  const instanceMeta = ordered.map((rank) => ({
    ...kvOf(rank),
    request_capacity: context.maxRequests,
    ...(rank.ssm === null
      ? {}
      : { ssm: { ...rank.ssm }, ssm_slot_capacity: context.slots?.size ?? 0, ssm_handoff_max_slots: 1 }),
  }));
  requireWhole(instanceMeta);
  return {
    tpSize,
    ppSize,
    kv: ordered.map(kvOf),
    ssm: context.ssm === null ? null : ordered.map(({ ssm }) => ssm),
    instanceMeta,
  };
}

/** What no peer would take is refused here: ranks that do not belong together, or leave out a part of the model. */
function requireWhole(instanceMeta: readonly WireObject[]): void {
  let fault: string | null = null;
  try {
    fault = instanceFault(parseInstanceMeta(instanceMeta, 'this instance'));
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    fault = error.message;
  }
  if (fault !== null)
    throw new HandoffError('INCOMPATIBLE', `the ranks of this instance do not make one whole: ${fault}`);
}

function sharedOf(
  context: EngineContext,
  role: Role,
  carrier: LogCarrier,
  transports: readonly Transport[],
  { instance, incarnation, epoch, deadlines, limits }: CompiledOptions,
): RankDescriptors['shared'] {
  return {
    'options.instance': instance,
    'options.incarnation': incarnation,
    'options.epoch': epoch,
    role,
    carrier,
    backend: transports.map(({ name }) => name).join(),
    'engine.model': context.model,
    'engine.dtype': context.dtype,
    'engine.blockSize': context.blockSize,
    'engine.blocks.poolSize': context.blocks.poolSize,
    'engine.maxRequests': context.maxRequests,
    'engine.maxSequenceLength': context.maxSequenceLength,
    'engine.numSpeculativeTokens': context.numSpeculativeTokens,
    'engine.growsInBlocks': context.growsInBlocks !== false,
    'engine.slots.size': context.slots?.size ?? 0,
    'engine.kv.layout.tpSize': context.kv.layout.tpSize,
    'engine.kv.layout.ppSize': context.kv.layout.ppSize,
    'engine.kv.layout.numLayersGlobal': context.kv.layout.numLayersGlobal,
    'engine.kv.layout.numKvHeadsGlobal': context.kv.layout.numKvHeadsGlobal,
    'engine.kv.layout.headDim': context.kv.layout.headDim,
    // Last: their defaults follow from the engine.
    'options.deadlines': JSON.stringify(deadlines),
    'options.limits': JSON.stringify(limits),
  };
}

/** Ranks that differ in what the log is a function of would come to different pools. */
function requireOneInstance(own: RankDescriptors, gathered: readonly RankDescriptors[]): void {
  for (const [rank, other] of gathered.entries()) {
    const theirs: RankDescriptors['shared'] = isRecord(other) && isRecord(other.shared) ? other.shared : {};
    for (const [field, value] of Object.entries(own.shared)) {
      if (theirs[field] === value) continue;
      throw new HandoffError(
        'INCOMPATIBLE',
        `${field}: rank ${rank} has ${String(theirs[field])} and this rank ${String(value)}; it must be the same on all ranks of an instance`,
        { details: { field, rank } },
      );
    }
  }
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
      elementBytes: elementBytesOf(description.kv),
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
