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
