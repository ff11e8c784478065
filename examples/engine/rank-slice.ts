/**
 * Which part of the model one rank computes: layers by pipeline stage, heads and shards by tensor rank, experts by
 * expert rank. One rank alone owns everything; nothing else in the model knows how many ranks there are.
 */
import type { KvLayout, SsmLayout } from 'state-handoff';
import { badInput, requireInteger } from './bad-input.js';
import { countLayers, type ModelConfig } from './config.js';
import { shardCount } from './math.js';

export interface Range {
  readonly from: number;
  readonly to: number;
}

export interface Parallelism {
  /** A divisor of eight, of the heads, of the SSM heads and groups, and of the vocabulary. */
  readonly tpSize: number;
  readonly tpRank: number;
  readonly ppSize: number;
  readonly ppRank: number;
  /** Layers of each stage, none allowed; null: as even as can be. */
  readonly stages: readonly number[] | null;
  readonly epSize: number;
  readonly epRank: number;
  /** How many ranks cut one expert, and which of them this one is. */
  readonly expertTpSize: number;
  readonly expertTpRank: number;
  readonly globalRank: number;
}

export const singleRank: Parallelism = {
  tpSize: 1,
  tpRank: 0,
  ppSize: 1,
  ppRank: 0,
  stages: null,
  epSize: 1,
  epRank: 0,
  expertTpSize: 1,
  expertTpRank: 0,
  globalRank: 0,
};

export interface RankSlice {
  readonly parallelism: Parallelism;
  /** Layers of the model, in its own numbering. */
  readonly layers: Range;
  /** Attention layers and SSM layers among them, each in the numbering of its kind. */
  readonly attentionLayers: Range;
  readonly ssmLayers: Range;
  readonly heads: Range;
  readonly kvHeads: Range;
  readonly ssmHeads: Range;
  readonly ssmGroups: Range;
  /** Canonical shards of every contraction that tensor parallelism splits. */
  readonly shards: Range;
  readonly experts: Range;
  /** Canonical shards of each of these experts. */
  readonly expertShards: Range;
  readonly vocabulary: Range;
  readonly isFirstStage: boolean;
  readonly isLastStage: boolean;
}

/** @throws `ARGUMENT_INVALID` when the model cannot be split so */
export function rankSlice(config: ModelConfig, parallelism: Parallelism = singleRank): RankSlice {
  const { tpSize, tpRank, ppSize, ppRank, epSize, epRank, expertTpSize, expertTpRank } = parallelism;
  requireInteger('parallelism.tpRank', tpRank, 0, tpSize - 1);
  requireInteger('parallelism.ppRank', ppRank, 0, ppSize - 1);
  requireInteger('parallelism.epRank', epRank, 0, epSize - 1);
  requireInteger('parallelism.expertTpRank', expertTpRank, 0, expertTpSize - 1);
  const split = (what: string, count: number, size: number, rank: number): Range => {
    if (count % size !== 0) throw badInput('parallelism', `a divisor of the ${count} ${what}`, size);
    const each = count / size;
    return { from: rank * each, to: (rank + 1) * each };
  };
  const layers = stageLayers(config.layers.length, parallelism);
  const { kvHeads } = config.attention;
  const sharedHead = tpSize > kvHeads && tpSize % kvHeads === 0 ? Math.floor((tpRank * kvHeads) / tpSize) : -1;
  return {
    parallelism,
    layers,
    attentionLayers: kindRange(config, 'attention', layers),
    ssmLayers: kindRange(config, 'ssm', layers),
    heads: split('heads', config.attention.heads, tpSize, tpRank),
    kvHeads: sharedHead >= 0 ? { from: sharedHead, to: sharedHead + 1 } : split('KV heads', kvHeads, tpSize, tpRank),
    ssmHeads: split('SSM heads', config.ssm?.nheads ?? 0, tpSize, tpRank),
    ssmGroups: split('SSM groups', config.ssm?.ngroups ?? 0, tpSize, tpRank),
    shards: split('shards', shardCount, tpSize, tpRank),
    experts: split('experts', config.experts?.count ?? 0, epSize, epRank),
    expertShards: split('shards', shardCount, expertTpSize, expertTpRank),
    vocabulary: split('vocabulary entries', config.vocabSize, tpSize, tpRank),
    isFirstStage: ppRank === 0,
    isLastStage: ppRank === ppSize - 1,
  };
}

function stageLayers(count: number, { ppSize, ppRank, stages }: Parallelism): Range {
  if (stages === null) {
    return { from: Math.floor((count * ppRank) / ppSize), to: Math.floor((count * (ppRank + 1)) / ppSize) };
  }
  const sum = (upTo: number): number => stages.slice(0, upTo).reduce((total, layers) => total + layers, 0);
  if (stages.length !== ppSize) throw badInput('stages', `${ppSize} numbers of layers, one a stage`, stages.join(','));
  for (const [stage, layers] of stages.entries()) requireInteger(`stages[${stage}]`, layers, 0, count);
  if (sum(ppSize) !== count) throw badInput('stages', `the ${count} layers of the model in all`, sum(ppSize));
  return { from: sum(ppRank), to: sum(ppRank + 1) };
}

function kindRange(config: ModelConfig, mixer: 'attention' | 'ssm', layers: Range): Range {
  return { from: countLayers(config, mixer, layers.from), to: countLayers(config, mixer, layers.to) };
}

/** The slice as the handoff SDK describes attention state. */
export function kvLayout(config: ModelConfig, slice: RankSlice): KvLayout {
  const { tpSize, tpRank, ppSize, ppRank, globalRank } = slice.parallelism;
  return {
    numLayersGlobal: countLayers(config, 'attention'),
    numKvHeadsGlobal: config.attention.kvHeads,
    headDim: config.attention.headDim,
    tpSize,
    tpRank,
    ppSize,
    ppRank,
    globalRank,
    layerStart: slice.attentionLayers.from,
    layerEnd: slice.attentionLayers.to,
  };
}

/** The slice as the handoff SDK describes SSM state; null for attention-only models. */
export function ssmLayout(config: ModelConfig, slice: RankSlice): SsmLayout | null {
  if (config.ssm === null) return null;
  const { globalRank, tpSize, tpRank } = slice.parallelism;
  const { from, to } = slice.ssmLayers;
  return { globalRank, tpSize, tpRank, layerStart: from, numLayers: to - from, dims: config.ssm };
}

export function sizeOf(range: Range): number {
  return range.to - range.from;
}
