/** From a worker's setting to its engine: the same model in every process, by its seed. */
import { createHash } from 'node:crypto';
import {
  nativeMemory,
  RankPlace,
  rankSlice,
  smallModel,
  type EngineMemory,
  type EngineOptions,
  type EngineRole,
  type LayerConfig,
  type ModelConfig,
  type ModelKind,
  type RankLinks,
  type RankShape,
} from '../engine/index.js';
import { sizeOf } from '../engine/rank-slice.js';
import type { EngineSetting } from './messages.js';

const defaultLayers: Readonly<Record<ModelKind, number>> = { attention: 4, hybrid: 4, moe: 4 };

type ModelSetting = Pick<EngineSetting, 'kind' | 'layers' | 'seed' | 'proposals' | 'ssmGroups'>;

/** `layers` null: the kind's own number. */
export function demoModel({ kind, layers, seed, proposals, ssmGroups }: ModelSetting): ModelConfig {
  const at = (index: number): LayerConfig => ({
    mixer: kind === 'hybrid' && index % 2 === 0 ? 'ssm' : 'attention',
    feedForward: kind === 'moe' && index % 2 === 1 ? 'experts' : 'dense',
  });
  return smallModel(kind, {
    name: `demo-${kind}`,
    seed,
    dModel: 64,
    layers: Array.from({ length: layers ?? defaultLayers[kind] }, (_, index) => at(index)),
    attention: { heads: 8, kvHeads: 4, headDim: 16, ropeTheta: 10_000 },
    ssm: kind === 'hybrid' ? { nheads: 8, headdim: 16, dState: 16, ngroups: ssmGroups, dConv: 4 } : null,
    feedForwardDim: 128,
    numSpeculativeTokens: proposals,
  });
}

/** What a whole block and a live SSM slot take, in bytes over all layers and all ranks. */
export interface StateSizes {
  readonly blockBytes: number;
  readonly slotBytes: number;
}

/** From the model's own figures (spec 1.6), not from what the library says it moved. A head that ranks share counts for each. */
export function stateSizes(model: ModelConfig, blockSize: number, shape: RankShape): StateSizes {
  const floatBytes = 4;
  let [blockBytes, slotBytes] = [0, 0];
  for (let rank = 0; rank < shape.tp * shape.pp; rank++) {
    const slice = rankSlice(model, new RankPlace(shape, rank).parallelism);
    const rowBytes = sizeOf(slice.kvHeads) * model.attention.headDim * floatBytes;
    blockBytes += sizeOf(slice.attentionLayers) * 2 * blockSize * rowBytes;
    if (model.ssm === null) continue;
    const { headdim, dState, dConv } = model.ssm;
    const inner = sizeOf(slice.ssmHeads) * headdim;
    const conv = (inner + 2 * sizeOf(slice.ssmGroups) * dState) * dConv;
    slotBytes += sizeOf(slice.ssmLayers) * (conv + inner * dState) * floatBytes;
  }
  return { blockBytes, slotBytes };
}

/** Options of an engine with memory of its own; one rank's part of both when it has links to others. */
export function engineOptions(
  role: EngineRole,
  setting: EngineSetting,
  links: RankLinks | null = null,
): EngineOptions & { memory: EngineMemory } {
  const { blockSize, blocks, maxRequests, chunk } = setting;
  const model = demoModel(setting);
  const ranks = links === null ? {} : { ranks: { place: links.place, peers: links.peers } };
  const part =
    links === null ? {} : { slice: rankSlice(model, links.place.parallelism), dummySlot: links.place.sharesExperts };
  return {
    role,
    model,
    memory: nativeMemory({ model, blockSize, poolSize: blocks, maxRequests, ...part }),
    maxRequests,
    maxSequenceLength: blocks * blockSize,
    prefillChunk: chunk,
    recordLogits: true,
    ...ranks,
  };
}

/** Equal digests mean equal bits. */
export function digestOf(logits: Float32Array): string {
  return createHash('sha256')
    .update(new Uint8Array(logits.buffer, logits.byteOffset, logits.byteLength))
    .digest('hex');
}
