/**
 * Random pairs of parallel layouts from one number each: a model, how either side cuts it and lays it out, and which
 * blocks of a sequence move. Plain data; the same number gives the same pair.
 */
import type { AxisName } from '../../lib/memory/axes-geometry.js';
import { SeededRandom } from '../../lib/testing/seeded-random.js';

export interface PairModel {
  readonly layers: number;
  readonly heads: number;
  readonly headDim: number;
  /** 1: a latent, say. */
  readonly planes: 1 | 2;
  readonly elementBytes: 1 | 2 | 4;
  /** Element size of the scales beside the data; null for none. */
  readonly scaleBytes: 1 | 2 | 4 | null;
  readonly ssm: PairSsm | null;
}

export interface PairSsm {
  readonly layers: number;
  readonly nheads: number;
  readonly headdim: number;
  readonly dState: number;
  readonly ngroups: number;
  readonly dConv: number;
}

export interface PairSide {
  readonly tp: number;
  /** By stage: one past its last attention layer, and its last SSM layer. */
  readonly stages: readonly number[];
  readonly ssmStages: readonly number[];
  /** Ranks that hold the same: expert parallelism. */
  readonly copies: number;
  readonly tokens: number;
  readonly pool: number;
  readonly slots: number;
  readonly kvAxes: readonly AxisName[];
  readonly scaleAxes: readonly AxisName[];
  readonly convAxes: readonly AxisName[];
  readonly recurrentAxes: readonly AxisName[];
  readonly padding: number;
  readonly perLayer: boolean;
  readonly planesApart: boolean;
}

export interface LayoutPair {
  readonly seed: number;
  readonly model: PairModel;
  readonly source: PairSide;
  readonly target: PairSide;
  readonly balance: 'first' | 'spread';
  /** Block ids of the sequence on either side. */
  readonly sourceBlocks: readonly number[];
  readonly targetBlocks: readonly number[];
  /** Leading blocks of the target that are there already. */
  readonly skip: number;
  readonly sourceSlot: number;
  readonly targetSlot: number;
}

/** Bytes that all ranks of one side may take together. */
export const sideBytesMax = 24 << 10;

export function layoutPair(seed: number): LayoutPair {
  const random = new SeededRandom(seed);
  for (;;) {
    const pair = draw(random, seed);
    if (sideBytes(pair.model, pair.source) <= sideBytesMax && sideBytes(pair.model, pair.target) <= sideBytesMax) {
      return pair;
    }
  }
}

function draw(random: SeededRandom, seed: number): LayoutPair {
  const ssm = random.chance(0.4) ? drawSsm(random) : null;
  const planes = random.chance(0.8) ? 2 : 1;
  const model: PairModel = {
    layers: random.int(1, 6),
    heads: random.pick([1, 1, 2, 2, 3, 4, 4, 6, 8, 12, 16, 32, 64]),
    headDim: random.int(1, 5),
    planes,
    elementBytes: random.pick([1, 2, 4]),
    scaleBytes: random.chance(0.3) ? random.pick([1, 2, 4]) : null,
    ssm,
  };
  const tokens = random.pick([1, 2, 3, 4, 4, 6, 8, 16, 64]);
  const isEqual = random.chance(0.5);
  const source = drawSide(random, model, tokens);
  const target = drawSide(random, model, isEqual ? tokens : random.pick([1, 2, 3, 4, 6, 8, 12, 16, 32, 64]));
  const most = Math.min((source.pool - 1) * source.tokens, (target.pool - 1) * target.tokens);
  const length = random.int(1, most);
  const ids = (side: PairSide): number[] =>
    random.shuffle(Array.from({ length: side.pool }, (_, id) => id)).slice(0, Math.ceil(length / side.tokens));
  const targetBlocks = ids(target);
  return {
    ...{ seed, model, source, target, targetBlocks, sourceBlocks: ids(source) },
    balance: random.chance(0.4) ? 'spread' : 'first',
    skip: random.chance(0.5) ? 0 : random.int(0, targetBlocks.length),
    sourceSlot: random.int(0, source.slots - 1),
    targetSlot: random.int(0, target.slots - 1),
  };
}

function drawSsm(random: SeededRandom): PairSsm {
  const ngroups = random.pick([1, 2, 2, 4, 8]);
  return {
    layers: random.int(1, 4),
    nheads: ngroups * random.int(1, 2),
    headdim: random.int(1, 3),
    dState: random.int(1, 3),
    ngroups,
    dConv: random.int(1, 4),
  };
}

function drawSide(random: SeededRandom, model: PairModel, tokens: number): PairSide {
  const fits = (tp: number): boolean =>
    (model.heads % tp === 0 || tp % model.heads === 0) &&
    (model.ssm === null || (model.ssm.nheads % tp === 0 && model.ssm.ngroups % tp === 0));
  const stages = random.pick([1, 1, 2, 2, 3, 4, 8]);
  const axes = (names: readonly AxisName[]): readonly AxisName[] =>
    random.chance(0.3) ? names : random.shuffle([...names]);
  return {
    tp: random.pick([1, 2, 3, 4, 5, 6, 7, 8].filter(fits)),
    stages: cuts(random, model.layers, stages),
    ssmStages: cuts(random, model.ssm?.layers ?? 0, stages),
    copies: random.pick([1, 1, 1, 2, 3]),
    tokens,
    pool: random.int(2, 5),
    slots: random.int(1, 3),
    kvAxes: axes(['plane', 'layer', 'block', 'token', 'head', 'dim']),
    scaleAxes: axes(['plane', 'layer', 'block', 'token', 'head']),
    convAxes: axes(['layer', 'slot', 'channel', 'dim']),
    recurrentAxes: axes(['layer', 'slot', 'head', 'dim']),
    padding: random.chance(0.3) ? random.int(1, 9) : 0,
    perLayer: random.chance(0.3),
    planesApart: random.chance(0.3),
  };
}

/** Ends of `count` stages over `layers`, some of them empty. */
function cuts(random: SeededRandom, layers: number, count: number): number[] {
  const ends = Array.from({ length: count - 1 }, () => random.int(0, layers)).sort((a, b) => a - b);
  return [...ends, layers];
}

/** An upper bound of what all ranks of a side take. */
function sideBytes(model: PairModel, side: PairSide): number {
  const heads = Math.max(model.heads, side.tp);
  const cells = model.layers * model.planes * heads * side.tokens * side.pool;
  const data = cells * (model.headDim * model.elementBytes + (model.scaleBytes ?? 0));
  const { ssm } = model;
  const channels = ssm === null ? 0 : ssm.nheads * ssm.headdim + 2 * ssm.ngroups * ssm.dState;
  const state =
    ssm === null ? 0 : ssm.layers * side.slots * (channels * ssm.dConv + ssm.nheads * ssm.headdim * ssm.dState) * 4;
  // Padding widens the innermost axes most; four times is more than any order of them needs for most sizes.
  return side.copies * (data + state) * (side.padding === 0 ? 1 : 1 + side.padding);
}
