/**
 * Which layouts are handed over to which, by which models, in which situations. `npm test` runs 46 pairs, each
 * with every model in every situation; `npm run test:layouts` runs every pair.
 */
import { smallModel, type LayerConfig, type ModelConfig, type ModelKind } from '../../examples/engine/config.js';
import type { LayoutInstanceOptions } from './layout-instance.js';
import type { RankShape } from '../../examples/engine/rank-place.js';

type Shape = Partial<RankShape>;
type Memory = Pick<LayoutInstanceOptions, 'kvAxes' | 'convAxes' | 'recurrentAxes' | 'bufferPerLayer'>;

/** Names of two shapes. */
export type Pair = readonly [source: string, target: string];

export type Situation = 'cold' | 'cached prefix' | 'partial block' | 'MTP';

export const kinds: readonly ModelKind[] = ['attention', 'hybrid', 'moe'];
export const situations: readonly Situation[] = ['cold', 'cached prefix', 'partial block', 'MTP'];

/** By how many ranks; `.` between sizes, so that names stay short. */
export const shapes: Readonly<Record<string, Shape>> = {
  TP1: {},
  TP2: { tp: 2 },
  TP4: { tp: 4 },
  TP8: { tp: 8 },
  PP2: { pp: 2 },
  PP3: { pp: 3 },
  PP4: { pp: 4 },
  PP6: { pp: 6 },
  'PP3.402': { stages: [4, 0, 2] },
  'TP2.PP2': { tp: 2, pp: 2 },
  'TP2.PP3': { tp: 2, pp: 3 },
  'TP4.PP2': { tp: 4, pp: 2 },
  'DP2.EP2': { dp: 2, ep: 2 },
  'TP2.DP2.EP2': { tp: 2, dp: 2, ep: 2 },
  'TP2.EP2': { tp: 2, ep: 2, expertTp: 1 },
  'DP2.PP2.EP2': { dp: 2, pp: 2, ep: 2 },
};

/** 46 pairs: everything to and from one rank, and the rest among each other. */
export const somePairs: readonly Pair[] = [
  ...Object.keys(shapes).map((shape) => ['TP1', shape] as const),
  ...Object.keys(shapes)
    .slice(1)
    .map((shape) => [shape, 'TP1'] as const),
  ['TP2', 'TP4'],
  ['TP4', 'TP2'],
  ['TP8', 'TP2.PP2'],
  ['TP2.PP2', 'TP8'],
  ['PP2', 'PP3'],
  ['PP3', 'PP4'],
  ['PP6', 'TP4'],
  ['TP4.PP2', 'PP6'],
  ['TP2.PP3', 'TP4.PP2'],
  ['TP4', 'DP2.EP2'],
  ['DP2.EP2', 'TP2.PP2'],
  ['TP2.EP2', 'DP2.PP2.EP2'],
  ['TP2.DP2.EP2', 'PP4'],
  ['PP3.402', 'TP2.PP3'],
  ['PP4', 'PP3.402'],
];

/** Orders of axes that differ between the two sides, by turns. */
export const memories: readonly Memory[] = [
  {},
  { kvAxes: ['block', 'plane', 'layer', 'head', 'token', 'dim'], bufferPerLayer: false },
  { kvAxes: ['plane', 'layer', 'block', 'head', 'token', 'dim'], bufferPerLayer: true },
  {
    kvAxes: ['layer', 'block', 'token', 'plane', 'head', 'dim'],
    convAxes: ['slot', 'layer', 'channel', 'dim'],
    recurrentAxes: ['slot', 'layer', 'head', 'dim'],
  },
];

/** Six layers with four KV heads: what eight tensor ranks and six stages can share, some of it as replicas. */
export function layoutModel(kind: ModelKind, numSpeculativeTokens: number): ModelConfig {
  const attention: LayerConfig = { mixer: 'attention', feedForward: 'dense' };
  const ssm: LayerConfig = { mixer: 'ssm', feedForward: 'dense' };
  const experts: LayerConfig = { mixer: 'attention', feedForward: 'experts' };
  const layers = {
    attention: [attention, attention, attention, attention, attention, attention],
    hybrid: [ssm, attention, ssm, ssm, attention, ssm],
    moe: [attention, experts, attention, experts, experts, attention],
  };
  return smallModel(kind, {
    name: `layout-${kind}`,
    layers: layers[kind],
    attention: { heads: 8, kvHeads: 4, headDim: 4, ropeTheta: 10_000 },
    ssm: kind === 'hybrid' ? { nheads: 8, headdim: 4, dState: 4, ngroups: 8, dConv: 4 } : null,
    feedForwardDim: 32,
    experts: kind === 'moe' ? { count: 4, perToken: 2, dim: 16 } : null,
    numSpeculativeTokens,
  });
}

export interface LayoutCase {
  readonly source: string;
  readonly target: string;
  readonly kind: ModelKind;
  readonly situation: Situation;
  readonly sourceMemory: Memory;
  readonly targetMemory: Memory;
  /** Tokens per block. */
  readonly sourceBlock: number;
  readonly targetBlock: number;
  /** Whether replicas on the source share the reading. */
  readonly balance: 'first' | 'spread';
  /** What brings the log of each side to its ranks. */
  readonly carrier: 'group' | 'host';
}

/** From each to each. */
export function everyPair(): Pair[] {
  const names = Object.keys(shapes);
  return names.flatMap((source) => names.map((target): Pair => [source, target]));
}

/** Every model in every situation over each pair. */
export function layoutCases(pairs: readonly Pair[]): LayoutCase[] {
  return pairs.flatMap(([source, target], pair) =>
    kinds.flatMap((kind, k) =>
      situations.map((situation, s) => ({
        source,
        target,
        kind,
        situation,
        sourceMemory: memories[(pair + k) % memories.length]!,
        targetMemory: memories[(pair + k + s + 1) % memories.length]!,
        sourceBlock: [4, 4, 8, 2, 4][(pair + s) % 5]!,
        targetBlock: [4, 8, 4, 2, 2][(pair + s) % 5]!,
        carrier: (pair + k + s) % 3 === 0 ? ('host' as const) : ('group' as const),
        balance: (pair + k) % 2 === 0 ? ('first' as const) : ('spread' as const),
      })),
    ),
  );
}
