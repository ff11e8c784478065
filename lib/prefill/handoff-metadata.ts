/**
 * Prefill: what this side says about itself. Static descriptors are made once, at setup, frozen, and shared by all
 * requests; `buildKvMeta` puts one request's part around them in the reference's three shapes (spec 1.5.3).
 *
 * A buffer that the reference's descriptor cannot say (spec 1.5.1) is described by our `geometry` extension alone.
 */
import type { KvBuffers, SsmBuffers } from '../engine-context.js';
import { argumentError } from '../errors.js';
import type { HandoffRef } from '../events.js';
import { deepFreeze, setOwn, type WireObject, type WireValue } from '../json.js';
import { defaultContent, type BufferGeometry } from '../memory/axes-geometry.js';
import type { KvLayout } from '../memory/kv-layout.js';
import type { Region } from '../memory/region.js';
import { promptDigestKey } from '../prompt-digest.js';
import { handoffVersion } from '../ticket.js';
import { replicatedLayoutKey } from '../transfer/described-layout.js';
import type { TransportGrant } from '../transfer/transport.js';
import { referenceSlices, type BufferPlace } from './reference-slices.js';

export interface KvExport {
  readonly kv: KvBuffers;
  /** Tokens per block. */
  readonly blockSize: number;
  /** Blocks of the pool, the dummy block included. */
  readonly poolSize: number;
  readonly regions: readonly Pick<Region, 'kind' | 'byteLength'>[];
  /** By transport name, what a peer needs to read the regions. */
  readonly transports: Readonly<Record<string, TransportGrant>>;
  /** Address of the first byte of the first buffer; null where nobody reads by address. */
  readonly place: BufferPlace | null;
  /** Further keys of the descriptor, such as `agent_name`. */
  readonly extra?: WireObject;
}

/**
 * The static attention descriptor of this rank, deeply frozen.
 *
 * @throws `ENGINE_CONTEXT_INVALID` for buffers without a block axis or with heads that TP does not divide
 */
export function exportKvDescriptor(input: KvExport): WireObject {
  const { kv, blockSize, poolSize } = input;
  const { layout } = kv;
  const { numKvHeadsGlobal: heads, tpSize } = layout;
  const isReplicated = heads % tpSize !== 0;
  if (isReplicated && tpSize % heads !== 0) {
    throw argumentError(
      'kv.layout.numKvHeadsGlobal',
      `a multiple or a divisor of tpSize ${tpSize}`,
      heads,
      'ENGINE_CONTEXT_INVALID',
    );
  }
  const data = kv.buffers.find(({ content }) => (content ?? defaultContent) === defaultContent);
  const elementBytes = data?.elementBytes ?? 1;
  const descriptor: Record<string, WireValue> = {
    ...slicesOrNone(input),
    num_blocks: poolSize,
    heads_per_partition: isReplicated ? 1 : heads / tpSize,
    head_dim: layout.headDim,
    tokens_per_block: blockSize,
    element_size: elementBytes,
    ...(isReplicated ? { [replicatedLayoutKey]: layoutFields(layout) } : layoutFields(layout)),
    geometry: kv.buffers.map((buffer, index) => geometryFields(buffer, kv.layerStarts[index] ?? layout.layerStart)),
    regions: input.regions.map(({ kind, byteLength }) => ({ kind, bytes: byteLength })),
    transports: input.transports,
  };
  for (const [key, value] of Object.entries(input.extra ?? {})) setOwn(descriptor, key, value);
  // A copy: what transports granted stays theirs.
  return deepFreeze(structuredClone(descriptor));
}

export interface SsmExport {
  readonly ssm: SsmBuffers;
  /** Where the buffers lie; null where nobody reads by address. */
  readonly convPlace: BufferPlace | null;
  readonly recurrentPlace: BufferPlace | null;
  readonly extra?: WireObject;
}

/**
 * The static descriptors of this rank's live SSM state, deeply frozen. Regions and grants are those of the rank's
 * attention descriptor.
 *
 * @throws `ENGINE_CONTEXT_INVALID`
 */
export function exportSsmDescriptors(input: SsmExport): { readonly conv: WireObject; readonly recurrent: WireObject } {
  const { conv, recurrent, layout, physicalSlots } = input.ssm;
  const { nheads, headdim, dState, ngroups, dConv } = layout.dims;
  const convWidth = nheads * headdim + 2 * ngroups * dState;
  const ssmLayout = {
    global_rank: layout.globalRank,
    tp_size: layout.tpSize,
    tp_rank: layout.tpRank,
    layer_start: layout.layerStart,
    num_layers: layout.numLayers,
    dims: { nheads, headdim, d_state: dState, ngroups, d_conv: dConv },
  };
  const describe = (
    buffer: BufferGeometry,
    place: BufferPlace | null,
    split: 'channel' | 'head',
    width: number,
    dim: number,
  ) =>
    deepFreeze({
      ...(place === null || layout.numLayers === 0
        ? {}
        : sayable(() =>
            referenceSlices(
              buffer,
              ['layer', 'slot', split, 'dim'],
              `ssm.${split === 'head' ? 'recurrent' : 'conv'}`,
              place,
            ),
          )),
      num_blocks: physicalSlots,
      heads_per_partition: exactly(
        width / layout.tpSize,
        `ssm.layout.dims`,
        `heads and groups that ${layout.tpSize} ranks divide`,
      ),
      head_dim: dim,
      tokens_per_block: 1,
      element_size: buffer.elementBytes,
      ssm_layout: ssmLayout,
      geometry: layout.numLayers === 0 ? [] : [geometryFields(buffer, layout.layerStart)],
      ...input.extra,
    });
  return {
    conv: describe(conv, input.convPlace, 'channel', convWidth, dConv),
    recurrent: describe(recurrent, input.recurrentPlace, 'head', nheads, headdim * dState),
  };
}

function exactly(value: number, path: string, expected: string): number {
  if (!Number.isInteger(value)) throw argumentError(path, expected, value, 'ENGINE_CONTEXT_INVALID');
  return value;
}

/** One buffer in the reference's words, or nothing where they do not reach. */
function slicesOrNone({ kv, place }: KvExport): WireObject {
  if (place === null || kv.layout.layerEnd === kv.layout.layerStart || kv.buffers.length !== 1) return {};
  return sayable(() =>
    referenceSlices(kv.buffers[0]!, ['plane', 'layer', 'block', 'token', 'head', 'dim'], 'kv.buffers[0]', place),
  );
}

function sayable(describe: () => WireObject): WireObject {
  try {
    return describe();
  } catch {
    // No words for it there; `geometry` says it, and throws for what is no buffer at all.
    return {};
  }
}

function layoutFields(layout: KvLayout): WireObject {
  return {
    global_rank: layout.globalRank,
    tp_size: layout.tpSize,
    tp_rank: layout.tpRank,
    pp_size: layout.ppSize,
    pp_rank: layout.ppRank,
    num_layers_global: layout.numLayersGlobal,
    num_kv_heads_global: layout.numKvHeadsGlobal,
    layer_start: layout.layerStart,
    layer_end: layout.layerEnd,
  };
}

function geometryFields(buffer: BufferGeometry, layerStart: number): WireObject {
  return {
    region: buffer.region,
    offset_bytes: buffer.offsetBytes,
    element_size: buffer.elementBytes,
    layer_start: layerStart,
    ...(buffer.planeStart === undefined ? {} : { plane_start: buffer.planeStart }),
    ...(buffer.content === undefined ? {} : { content: buffer.content }),
    axes: buffer.axes.map(({ name, size, strideBytes }) => [name, size, strideBytes]),
  };
}

/** `kv_meta.handoff`, for a request that was pinned. */
export interface HandoffFields extends HandoffRef {
  /** Identity of the model and its element type, so that decode refuses another one's state by itself. */
  readonly model: string;
  readonly dtype: string;
  /** Tokens of the prompt. */
  readonly promptTokens: number;
  /** Of the prompt's token ids; null where the engine did not give them. */
  readonly promptDigest: string | null;
  /** Generations of `blockIds` at pin time; null when the pool has none. */
  readonly blockGenerations: BigUint64Array | null;
  readonly slotGeneration: bigint | null;
}

export interface KvMetaInput {
  readonly tpSize: number;
  readonly ppSize: number;
  /** Stage major, tensor rank minor. */
  readonly rankDescriptors: readonly WireObject[];
  readonly blockIds: readonly number[];
  readonly resumeTokens: readonly number[];
  /** The sampled token's log-probability when it was asked for. */
  readonly resumeLogProbs: readonly number[] | null;
  /** As `rankDescriptors`; null for a rank without SSM layers. */
  readonly ssmRankDescriptors: readonly ({ readonly conv: WireObject; readonly recurrent: WireObject } | null)[] | null;
  /** Null for attention-only models. */
  readonly slot: number | null;
  readonly handoff: HandoffFields | null;
  /** Further keys of `kv_meta`. */
  readonly extensions?: WireObject;
}

/**
 * One request's `kv_meta`. Containers are new, static descriptors are shared (they are frozen) or, where a request adds
 * something to one, copied.
 *
 * @throws `ARGUMENT_INVALID` when the descriptors are not one a rank, or a hybrid request has no slot
 */
export function buildKvMeta(input: KvMetaInput): Record<string, WireValue> {
  const { tpSize, ppSize, rankDescriptors, blockIds, ssmRankDescriptors, slot } = input;
  if (rankDescriptors.length !== tpSize * ppSize) {
    throw argumentError('rankDescriptors', `${tpSize * ppSize} descriptors, one a rank`, rankDescriptors);
  }
  const meta: Record<string, WireValue> = tpSize * ppSize === 1 ? { ...rankDescriptors[0] } : {};
  if (ppSize > 1) {
    meta['pp_metas'] = stages(rankDescriptors, tpSize).map((tpMetas) => ({
      tp_metas: tpMetas,
      block_ids: [...blockIds],
    }));
  } else if (tpSize > 1) {
    meta['tp_metas'] = [...rankDescriptors];
  }
  meta['resume_tokens'] = [...input.resumeTokens];
  if (input.resumeLogProbs !== null) meta['resume_log_probs'] = [...input.resumeLogProbs];
  if (ssmRankDescriptors !== null) {
    if (ssmRankDescriptors.length !== rankDescriptors.length) {
      throw argumentError(
        'ssmRankDescriptors',
        `${rankDescriptors.length} descriptors, one a rank`,
        ssmRankDescriptors,
      );
    }
    if (slot === null) throw argumentError('slot', 'a slot for a model with SSM state', slot);
    meta['ssm'] = {
      conv: ssmShape(
        ssmRankDescriptors.map((rank) => rank?.conv ?? null),
        tpSize,
        ppSize,
        slot,
      ),
      recurrent: ssmShape(
        ssmRankDescriptors.map((rank) => rank?.recurrent ?? null),
        tpSize,
        ppSize,
        slot,
      ),
    };
  }
  if (input.handoff !== null) meta['handoff'] = handoffFields(input.handoff);
  for (const [key, value] of Object.entries(input.extensions ?? {})) setOwn(meta, key, value);
  return meta;
}

/** By stage: the descriptor itself where a stage has one rank, else the list. */
function stages<T>(ranks: readonly T[], tpSize: number): (T | T[])[] {
  const result: (T | T[])[] = [];
  for (let from = 0; from < ranks.length; from += tpSize) {
    result.push(tpSize === 1 ? ranks[from]! : ranks.slice(from, from + tpSize));
  }
  return result;
}

/** One state in the shape of its parallelism; every leaf names the slot. */
function ssmShape(ranks: readonly (WireObject | null)[], tpSize: number, ppSize: number, slot: number): WireValue {
  const leaves = (from: number, to: number): WireObject[] =>
    ranks.slice(from, to).flatMap((rank) => (rank === null ? [] : [{ ...rank, block_ids: [slot] }]));
  if (ppSize === 1) {
    const all = leaves(0, tpSize);
    return tpSize === 1 && all.length === 1 ? all[0]! : all;
  }
  return {
    pp_metas: Array.from({ length: ppSize }, (_, stage) => ({
      tp_metas: leaves(stage * tpSize, (stage + 1) * tpSize),
    })),
  };
}

function handoffFields(handoff: HandoffFields): WireObject {
  return {
    version: handoffVersion,
    instance: handoff.instance,
    incarnation: handoff.incarnation,
    handoff_id: handoff.handoffId,
    epoch: handoff.epoch,
    model: handoff.model,
    dtype: handoff.dtype,
    prompt_tokens: handoff.promptTokens,
    ...(handoff.promptDigest === null ? {} : { [promptDigestKey]: handoff.promptDigest }),
    block_generations: handoff.blockGenerations === null ? null : Array.from(handoff.blockGenerations),
    slot_generation: handoff.slotGeneration,
  };
}
