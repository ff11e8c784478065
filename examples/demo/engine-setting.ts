/** From a worker's setting to its engine: the same model in every process, by its seed. */
import { createHash } from 'node:crypto';
import {
  nativeMemory,
  smallModel,
  type EngineMemory,
  type EngineOptions,
  type EngineRole,
  type LayerConfig,
  type ModelConfig,
  type ModelKind,
} from '../engine/index.js';
import type { EngineSetting } from './messages.js';

const defaultLayers: Readonly<Record<ModelKind, number>> = { attention: 4, hybrid: 4, moe: 4 };

/** @param layers - null: the kind's own number */
export function demoModel(kind: ModelKind, layers: number | null, seed: number, proposals: number): ModelConfig {
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
    ssm: kind === 'hybrid' ? { nheads: 8, headdim: 16, dState: 16, ngroups: 2, dConv: 4 } : null,
    feedForwardDim: 128,
    numSpeculativeTokens: proposals,
  });
}

/** What a whole block and a live SSM slot take, in bytes over all layers. */
export interface StateSizes {
  readonly blockBytes: number;
  readonly slotBytes: number;
}

/** From the model's own figures (spec 1.6), not from what the library says it moved. */
export function stateSizes({ layers, attention, ssm }: ModelConfig, blockSize: number): StateSizes {
  const floatBytes = 4;
  const count = (mixer: LayerConfig['mixer']): number => layers.filter((layer) => layer.mixer === mixer).length;
  const blockBytes = count('attention') * 2 * blockSize * attention.kvHeads * attention.headDim * floatBytes;
  if (ssm === null) return { blockBytes, slotBytes: 0 };
  const inner = ssm.nheads * ssm.headdim;
  const conv = (inner + 2 * ssm.ngroups * ssm.dState) * ssm.dConv;
  return { blockBytes, slotBytes: count('ssm') * (conv + inner * ssm.dState) * floatBytes };
}

/** Options of an engine of its own memory. */
export function engineOptions(role: EngineRole, setting: EngineSetting): EngineOptions & { memory: EngineMemory } {
  const { kind, layers, seed, proposals, blockSize, blocks, maxRequests, chunk } = setting;
  const model = demoModel(kind, layers, seed, proposals);
  return {
    role,
    model,
    memory: nativeMemory({ model, blockSize, poolSize: blocks, maxRequests }),
    maxRequests,
    maxSequenceLength: blocks * blockSize,
    prefillChunk: chunk,
    recordLogits: true,
  };
}

/** Equal digests mean equal bits. */
export function digestOf(logits: Float32Array): string {
  return createHash('sha256')
    .update(new Uint8Array(logits.buffer, logits.byteOffset, logits.byteLength))
    .digest('hex');
}
