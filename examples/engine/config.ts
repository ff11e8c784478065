/**
 * What a model is: sizes, kinds of layers, and the seed of its weights. Two engines with equal configurations compute
 * equal bits.
 */
import { createHash } from 'node:crypto';
import type { SsmDims } from 'state-handoff';
import { badInput, requireInteger } from './bad-input.js';
import { shardCount } from './math.js';
import { vocabSize } from './tokenizer.js';

export interface LayerConfig {
  readonly mixer: 'attention' | 'ssm';
  readonly feedForward: 'dense' | 'experts';
}

export interface AttentionConfig {
  readonly heads: number;
  /** Heads of K and V; a divisor of `heads` (grouped-query attention). */
  readonly kvHeads: number;
  /** Even: RoPE turns pairs. */
  readonly headDim: number;
  readonly ropeTheta: number;
}

export interface ExpertsConfig {
  readonly count: number;
  /** Experts that each token visits. */
  readonly perToken: number;
  readonly dim: number;
}

export interface ModelConfig {
  readonly name: string;
  /** Of the weights: a 32-bit unsigned integer. */
  readonly seed: number;
  readonly vocabSize: number;
  readonly dModel: number;
  readonly layers: readonly LayerConfig[];
  readonly attention: AttentionConfig;
  /** Null for attention-only models. */
  readonly ssm: SsmDims | null;
  readonly feedForwardDim: number;
  /** Null when no layer has experts. */
  readonly experts: ExpertsConfig | null;
  /** Proposals of the multi-token-prediction head after each sampled token; 0 for none. */
  readonly numSpeculativeTokens: number;
}

export type ModelKind = 'attention' | 'hybrid' | 'moe';

const smallAttention: AttentionConfig = { heads: 4, kvHeads: 2, headDim: 8, ropeTheta: 10_000 };
const smallSsm: SsmDims = { nheads: 4, headdim: 8, dState: 8, ngroups: 2, dConv: 4 };

/** A small model of a kind, for demonstrations and tests. Whatever `changes` names replaces the default. */
export function smallModel(kind: ModelKind, changes: Partial<ModelConfig> = {}): ModelConfig {
  const attention: LayerConfig = { mixer: 'attention', feedForward: 'dense' };
  const ssm: LayerConfig = { mixer: 'ssm', feedForward: 'dense' };
  const expert: LayerConfig = { mixer: 'attention', feedForward: 'experts' };
  const layers = {
    attention: [attention, attention],
    hybrid: [ssm, attention, ssm, attention],
    moe: [attention, expert],
  };
  return {
    name: `small-${kind}`,
    seed: 1,
    vocabSize,
    dModel: 32,
    layers: layers[kind],
    attention: smallAttention,
    ssm: kind === 'hybrid' ? smallSsm : null,
    feedForwardDim: 64,
    experts: kind === 'moe' ? { count: 4, perToken: 2, dim: 32 } : null,
    numSpeculativeTokens: 0,
    ...changes,
  };
}

/** How many layers mix by `mixer` among the first `before` layers. */
export function countLayers(config: ModelConfig, mixer: LayerConfig['mixer'], before = config.layers.length): number {
  let count = 0;
  for (let i = 0; i < before; i++) if (config.layers[i]!.mixer === mixer) count++;
  return count;
}

/**
 * Name and digest of everything that the computed state depends on. The number of proposals is not part of it: it
 * changes how fast tokens come, never which.
 */
export function modelIdentity(config: ModelConfig): string {
  const { name, numSpeculativeTokens: _, ...rest } = config;
  const ordered = JSON.stringify(rest, (_key, value: unknown) =>
    typeof value === 'object' && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );
  return `${name}-${createHash('sha256').update(ordered).digest('hex').slice(0, 16)}`;
}

/** @throws `ARGUMENT_INVALID` naming the field */
export function checkModel(config: ModelConfig): void {
  const { attention, ssm, experts } = config;
  requireInteger('model.seed', config.seed, 0, 2 ** 32 - 1);
  requireInteger('model.vocabSize', config.vocabSize, 2);
  requireInteger('model.numSpeculativeTokens', config.numSpeculativeTokens, 0, 16);
  if (countLayers(config, 'attention') === 0) throw badInput('model.layers', 'at least one attention layer', 'none');
  requireInteger('model.attention.heads', attention.heads, 1);
  requireInteger('model.attention.headDim', attention.headDim, 2);
  requireInteger('model.attention.kvHeads', attention.kvHeads, 1, attention.heads);
  requireMultiple('model.attention.heads', attention.heads, attention.kvHeads);
  if (!(attention.ropeTheta > 0 && attention.ropeTheta < Infinity)) {
    throw badInput('model.attention.ropeTheta', 'a number above 0', attention.ropeTheta);
  }
  requireMultiple('model.attention.headDim', attention.headDim, 2);
  requireMultiple('model.dModel', config.dModel, shardCount);
  requireMultiple('model.attention.heads * headDim', attention.heads * attention.headDim, shardCount);
  requireMultiple('model.feedForwardDim', config.feedForwardDim, shardCount);
  if ((ssm !== null) !== countLayers(config, 'ssm') > 0) {
    throw badInput('model.ssm', 'dimensions if and only if a layer is an SSM layer', ssm);
  }
  if (ssm !== null) {
    for (const field of ['nheads', 'headdim', 'dState', 'ngroups', 'dConv'] as const) {
      requireInteger(`model.ssm.${field}`, ssm[field], 1);
    }
    requireMultiple('model.ssm.nheads', ssm.nheads, ssm.ngroups);
    requireMultiple('model.ssm.nheads * headdim', ssm.nheads * ssm.headdim, shardCount);
  }
  if ((experts !== null) !== config.layers.some(({ feedForward }) => feedForward === 'experts')) {
    throw badInput('model.experts', 'sizes if and only if a layer has experts', experts);
  }
  if (experts !== null) {
    requireInteger('model.experts.count', experts.count, 1);
    requireInteger('model.experts.perToken', experts.perToken, 1, experts.count);
    requireMultiple('model.experts.dim', experts.dim, shardCount);
  }
}

function requireMultiple(field: string, value: number, of: number): void {
  requireInteger(field, value, 1);
  if (value % of !== 0) throw badInput(field, `a multiple of ${of}`, value);
}
