/**
 * Which prefill rank gives what to which decode rank, in words: the plan of the library's planners for the demo's model
 * and layouts, as the ranks carry it out for every request.
 */
import { planKvReshard, planSsmReshard } from 'state-handoff';
import { RankPlace, rankSlice, type ModelConfig, type RankShape } from '../engine/index.js';
import { kvLayout, sizeOf, ssmLayout, type Range } from '../engine/rank-slice.js';
import type { EngineShapes } from './engine-shapes.js';

/** What one rank gives another. */
export interface PlanLink {
  readonly source: number;
  readonly target: number;
  /** `attention layers 0-3, KV heads 0-1` */
  readonly parts: readonly string[];
}

/** The plan from one engine to another; of several that share experts, each does the same. */
export interface InstancePlan {
  readonly title: string;
  /** What each rank holds, by rank. */
  readonly sources: readonly (readonly string[])[];
  readonly targets: readonly (readonly string[])[];
  readonly links: readonly PlanLink[];
}

/** One plan for each pair of different layouts. */
export function plansOf(model: ModelConfig, { prefill, decode }: EngineShapes): InstancePlan[] {
  const plans = prefill.flatMap((source) => decode.map((target) => planOf(model, source, target)));
  return plans.filter(({ title }, index) => plans.findIndex((other) => other.title === title) === index);
}

function planOf(model: ModelConfig, source: RankShape, target: RankShape): InstancePlan {
  const slicesOf = (shape: RankShape) =>
    Array.from({ length: shape.tp * shape.pp }, (_, rank) => rankSlice(model, new RankPlace(shape, rank).parallelism));
  const [sources, targets] = [slicesOf(source), slicesOf(target)];
  const links = new Map<string, { source: number; target: number; parts: string[] }>();
  const note = (from: number, to: number, part: string): void => {
    const link = links.get(`${from} ${to}`) ?? { source: from, target: to, parts: [] };
    links.set(`${from} ${to}`, link);
    link.parts.push(part);
  };
  const kvOf = (slices: typeof sources) => slices.map((slice) => kvLayout(model, slice));
  for (const { sourceRank, targetRank, layers, heads } of planKvReshard(kvOf(sources), kvOf(targets))) {
    note(sourceRank, targetRank, attentionPart(layers, heads));
  }
  if (model.ssm !== null) {
    const ssmOf = (slices: typeof sources) => slices.map((slice) => ssmLayout(model, slice)!);
    for (const { sourceRank, targetRank, band, layers, sourceUnits } of planSsmReshard(
      ssmOf(sources),
      ssmOf(targets),
    )) {
      // The bands of the conv state are cut as the heads are.
      if (band !== 'recurrent') continue;
      const first = sources[sourceRank]!.ssmHeads.from;
      note(sourceRank, targetRank, ssmPart(layers, { from: first + sourceUnits.from, to: first + sourceUnits.to }));
    }
  }
  const held = (slices: typeof sources) =>
    slices.map(({ attentionLayers, kvHeads, ssmLayers, ssmHeads }) => [
      ...(sizeOf(attentionLayers) === 0 ? [] : [attentionPart(attentionLayers, kvHeads)]),
      ...(sizeOf(ssmLayers) === 0 ? [] : [ssmPart(ssmLayers, ssmHeads)]),
    ]);
  return {
    title: `${model.name}: prefill ${shapeText(source)} to decode ${shapeText(target)}`,
    sources: held(sources),
    targets: held(targets),
    links: [...links.values()].sort((a, b) => a.source - b.source || a.target - b.target),
  };
}

/** A heading, and a line for each pair of ranks that exchange something. */
export function planLines({ title, links }: InstancePlan): string[] {
  return [
    `-- who gives what to whom, ${title} --`,
    ...links.map(({ source, target, parts }) => `prefill rank ${source} -> decode rank ${target}: ${parts.join('; ')}`),
  ];
}

/** `TP 2, PP 2`, and what else is not 1. */
function shapeText({ tp, pp, ep, expertTp, dp, stages }: RankShape): string {
  const experts = expertTp === tp ? [] : [`expert TP ${expertTp}`];
  const rest = [
    ['EP', ep],
    ['DP', dp],
  ] as const;
  return [
    `TP ${tp}`,
    stages ? `PP ${pp} (${stages.join('+')} layers)` : `PP ${pp}`,
    ...rest.filter(([, size]) => size > 1).map((pair) => pair.join(' ')),
    ...experts,
  ].join(', ');
}

function attentionPart(layers: Range, heads: Range): string {
  return `attention ${numbers('layer', layers)}, KV ${numbers('head', heads)}`;
}

function ssmPart(layers: Range, heads: Range): string {
  return `SSM ${numbers('layer', layers)}, ${numbers('head', heads)}`;
}

function numbers(noun: string, range: Range): string {
  return sizeOf(range) === 1 ? `${noun} ${range.from}` : `${noun}s ${range.from}-${range.to - 1}`;
}
