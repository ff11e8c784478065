/**
 * Which ranks of a peer this rank exchanges state with, and what: the plan of a pair of instances as one of their ranks
 * sees it, whatever the request. Peers whose ranks cannot fill this one are refused, with both sides in the error.
 */
import { HandoffError, isHandoffError } from '../errors.js';
import type { JsonValue } from '../json.js';
import { ownedHeads, ownedLayers, type KvLayout } from '../memory/kv-layout.js';
import { ownedSsmLayers, type SsmLayout } from '../memory/ssm-layout.js';
import { cellsInWords, requireSameContents, requireWhole } from './plan-coverage.js';
import { blockTokens, kvCoverFault, planKv, replicaGroups, requireSameModel, type KvEndpoint } from './plan-kv.js';
import { planSsm, requireSameSsm, ssmCoverFault, ssmReplicaGroups, type SsmEndpoint } from './plan-ssm.js';
import type { RectangleTemplate } from './rectangle.js';

/** One rank of a peer, as its descriptors tell it; the same object for the same descriptors. */
export interface PeerRank {
  /** Unique for (instance, incarnation, rank). */
  readonly key: string;
  readonly kv: KvEndpoint;
  readonly ssm: SsmEndpoint | null;
  /** Opaque grants by transport name. */
  readonly transports: Readonly<Record<string, JsonValue>>;
}

/** This side's own buffers. */
export interface OwnState {
  readonly kv: KvEndpoint;
  readonly ssm: SsmEndpoint | null;
}

/**
 * Which of several replicas of a shard is read: `first`, the one with the smallest global rank (the reference's rule), or
 * `spread`, each of them a share of the blocks.
 */
export type Balance = 'first' | 'spread';

/** Part `index` of `count` equal parts. */
export interface Part {
  readonly index: number;
  readonly count: number;
}

/** What one of the peer's ranks and this rank exchange, whatever the request. */
export interface RankPlan {
  readonly rank: PeerRank;
  readonly kv: readonly RectangleTemplate[];
  /** Of the blocks, where replicas share the load. */
  readonly kvPart: Part;
  readonly ssm: readonly RectangleTemplate[];
  /** Tokens per block. */
  readonly sourceTokens: number;
  readonly targetTokens: number;
}

/** Which of its states a source rank pushes. */
export interface PushDuties {
  readonly kv: boolean;
  readonly ssm: boolean;
}

const whole: Part = { index: 0, count: 1 };

/** The receiver expects each shard once, from the replica that stands for it; the source follows the same rule. */
export function pushDuties(instance: readonly PeerRank[], globalRank: number): PushDuties {
  const standsFor = (groups: readonly (readonly number[])[]): boolean =>
    groups.some(([first]) => instance[first as number]?.kv.layout.globalRank === globalRank);
  const ssm = ssmLayouts(instance);
  return {
    kv: standsFor(replicaGroups(instance.map((rank) => rank.kv.layout))),
    ssm: ssm.length === instance.length && standsFor(ssmReplicaGroups(ssm)),
  };
}

/**
 * The target's view: what it reads from each rank of the peer; null for ranks that have nothing for it.
 *
 * @throws `INCOMPATIBLE` when the ranks do not hold all of this rank's state, or some of it twice
 */
export function planPull(own: OwnState, ranks: readonly PeerRank[], balance: Balance): readonly (RankPlan | null)[] {
  return explained(ranks, [own], () => {
    const kvLayouts = ranks.map((rank) => rank.kv.layout);
    const ssm = ssmLayouts(ranks);
    if (ssm.length !== (own.ssm === null ? 0 : ranks.length)) {
      throw new HandoffError('INCOMPATIBLE', 'expected SSM state on both sides or on neither');
    }
    for (const { kv, ssm } of ranks) {
      requireSameModel(kv.layout, own.kv.layout);
      if (ssm !== null && own.ssm !== null) requireSameSsm(ssm.layout, own.ssm.layout);
    }
    requireCover('attention', kvCoverFault(kvLayouts, own.kv.layout));
    if (own.ssm !== null) requireCover('SSM', ssmCoverFault(ssm, own.ssm.layout));
    const seed = own.kv.layout.globalRank;
    const kvParts = parts(replicaGroups(kvLayouts), balance, seed);
    // One slot has no rows to share out, so replicas of SSM state take turns by target rank.
    const ssmReaders = parts(ssmReplicaGroups(ssm), balance, seed);
    const plans = ranks.map((rank, index) => {
      const kvPart = kvParts.get(index);
      const ssmPart = ssmReaders.get(index);
      return planRank(rank, own, rank, kvPart ?? null, ssmPart !== undefined && ssmPart.index === 0);
    });
    requireBuffers(own, plans);
    return plans;
  });
}

/**
 * What is wrong with ranks that should be one whole instance, in words, or null: together they hold each layer and head
 * once, but for replicas.
 *
 * @param ssmLayers - SSM layers of the whole model, if there may be more than the ranks tell of
 */
export function instanceFault(ranks: readonly PeerRank[], ssmLayers = 0): string | null {
  const [first] = ranks;
  if (first === undefined) return null;
  const one = { tpSize: 1, tpRank: 0, layerStart: 0 };
  const layouts = ranks.map(({ kv }) => kv.layout);
  const fault = kvCoverFault(layouts, { ...first.kv.layout, ...one, layerEnd: first.kv.layout.numLayersGlobal });
  if (fault !== null) return `attention state: ${fault}`;
  const ssm = ssmLayouts(ranks);
  if (ssm[0] === undefined) return null;
  const numLayers = Math.max(ssmLayers, ...ssm.map((layout) => ownedSsmLayers(layout).to));
  const ssmFault = ssmCoverFault(ssm, { ...ssm[0], ...one, numLayers });
  return ssmFault === null ? null : `SSM state: ${ssmFault}`;
}

function ssmLayouts(ranks: readonly PeerRank[]): readonly SsmLayout[] {
  return ranks.flatMap(({ ssm }) => (ssm === null ? [] : [ssm.layout]));
}

/**
 * The target's ranks together want all of the model: one that is missing, or told to be another, would leave a part of
 * the state behind without anybody noticing.
 *
 * @throws `INCOMPATIBLE`
 */
export function requireWholeTarget(sources: readonly PeerRank[], targets: readonly PeerRank[]): void {
  explained(sources, targets, () => {
    const fault = instanceFault(
      targets,
      Math.max(0, ...ssmLayouts(sources).map((layout) => ownedSsmLayers(layout).to)),
    );
    if (fault !== null) throw new HandoffError('INCOMPATIBLE', `the target's ${fault}`);
  });
}

/**
 * Of all ranks of an instance that pulls, and those of a peer, the pairs that exchange something, by what each granted. A
 * rank that the peer cannot fill has none: it refuses the handoff by itself.
 */
export function pullPairs(
  instance: readonly PeerRank[],
  ranks: readonly PeerRank[],
  balance: Balance,
): { readonly own: PeerRank['transports']; readonly peer: PeerRank['transports'] }[] {
  return instance.flatMap((own) => {
    try {
      const plans = planPull(own, ranks, balance);
      return plans.flatMap((plan) => (plan === null ? [] : [{ own: own.transports, peer: plan.rank.transports }]));
    } catch (error) {
      if (isHandoffError(error)) return [];
      throw error;
    }
  });
}

/** A source's view: what it sends to each rank of the peer. @throws `INCOMPATIBLE` */
export function planPush(own: OwnState, ranks: readonly PeerRank[], duties: PushDuties): readonly (RankPlan | null)[] {
  return explained([own], ranks, () =>
    ranks.map((rank) => planRank(own, rank, rank, duties.kv ? whole : null, duties.ssm)),
  );
}

/** By rank: which part of its shard it gives. Ranks that give nothing are left out. */
function parts(groups: readonly (readonly number[])[], balance: Balance, seed: number): ReadonlyMap<number, Part> {
  const result = new Map<number, Part>();
  for (const group of groups) {
    const count = balance === 'first' ? 1 : group.length;
    // Turned by the target's rank, so that the first part, which a short prompt consists of, is not always one rank's.
    for (let turn = 0; turn < count; turn++) {
      result.set(group[turn] as number, { index: (turn + seed) % count, count });
    }
  }
  return result;
}

function planRank(
  source: OwnState,
  target: OwnState,
  rank: PeerRank,
  kvPart: Part | null,
  withSsm: boolean,
): RankPlan | null {
  const kv = kvPart === null ? [] : planKv(source.kv, target.kv);
  const ssm = withSsm && source.ssm !== null && target.ssm !== null ? planSsm(source.ssm, target.ssm) : [];
  if (kv.length === 0 && ssm.length === 0) return null;
  if (kv.length > 0) requireSameContents(source.kv.buffers, target.kv.buffers);
  // Without attention state between them nothing is counted in tokens.
  const tokens =
    kv.length === 0
      ? { sourceTokens: 1, targetTokens: 1 }
      : { sourceTokens: blockTokens(source.kv.buffers), targetTokens: blockTokens(target.kv.buffers) };
  return { rank, kv, kvPart: kvPart ?? whole, ssm, ...tokens };
}

function requireCover(state: string, fault: string | null): void {
  if (fault !== null) throw new HandoffError('INCOMPATIBLE', `${state} state: ${fault}`);
}

/** Layouts may cover everything and buffers not: a layer without a buffer, keys without values, data without scales. */
function requireBuffers(own: OwnState, plans: readonly (RankPlan | null)[]): void {
  // Replicas give one and the same rectangles; the first part of each stands for all.
  const chosen = plans.flatMap((plan) => (plan === null ? [] : [plan]));
  const kv = chosen.filter(({ kvPart }) => kvPart.index === 0).map((plan) => plan.kv);
  const source = chosen.find((plan) => plan.kv.length > 0)?.sourceTokens ?? 1;
  requireWhole(kv, own.kv.buffers, 'block', { source, target: blockTokens(own.kv.buffers) });
  if (own.ssm === null || own.ssm.layout.numLayers === 0) return;
  const ssm = chosen.map((plan) => plan.ssm);
  requireWhole(ssm, [own.ssm.conv, own.ssm.recurrent], 'slot', { source: 1, target: 1 });
}

/** Puts both sides into what a plan is refused with. */
function explained<T>(sources: readonly OwnState[], targets: readonly OwnState[], plan: () => T): T {
  try {
    return plan();
  } catch (error) {
    if (!isHandoffError(error)) throw error;
    const [source, target] = [sideInWords(sources), sideInWords(targets)];
    throw new HandoffError(
      error.code,
      `the source cannot fill the target: ${error.message}. Source: ${source}. Target: ${target}`,
      { details: { ...error.details, source, target }, cause: error },
    );
  }
}

/** Ranks that are told one by one. */
const ranksShown = 8;

/** `TP 2 × PP 1 of 4 layers, 8 KV heads of 128, blocks of 16 tokens; rank 0: layers 0-3, heads 0-3; …` */
function sideInWords(ranks: readonly OwnState[]): string {
  const [first] = ranks;
  if (first === undefined) return 'no rank';
  const { layout } = first.kv;
  const ssm = first.ssm === null ? '' : `, SSM ${Object.values(first.ssm.layout.dims).join('/')}`;
  const model =
    `TP ${layout.tpSize} × PP ${layout.ppSize} of ${layout.numLayersGlobal} layers, ` +
    `${layout.numKvHeadsGlobal} KV heads of ${layout.headDim}${ssm}`;
  const shown = ranks.slice(0, ranksShown).map(rankInWords);
  const more = ranks.length > ranksShown ? [`and ${ranks.length - ranksShown} ranks more`] : [];
  return [model, ...shown, ...more].join('; ');
}

function rankInWords({ kv, ssm }: OwnState): string {
  const { layout, buffers } = kv;
  const held = cellsInWords({ layers: ownedLayers(layout), units: safeHeads(layout) });
  const layers = ssm === null ? { from: 0, to: 0 } : ownedSsmLayers(ssm.layout);
  const bytes = [...new Set(buffers.map(({ elementBytes }) => elementBytes))].join(' and ');
  return (
    `rank ${layout.globalRank}: ${held}` +
    (bytes === '' ? '' : `, ${bytes} bytes an element, ${blockTokens(buffers)} tokens a block`) +
    (ssm === null ? '' : `, ${layersInWords(layers)}`)
  );
}

function layersInWords({ from, to }: { readonly from: number; readonly to: number }): string {
  if (from === to) return 'no SSM layer';
  return to - from === 1 ? `SSM layer ${from}` : `SSM layers ${from}-${to - 1}`;
}

function safeHeads(layout: KvLayout): { readonly from: number; readonly to: number } {
  try {
    return ownedHeads(layout);
  } catch {
    return { from: 0, to: 0 };
  }
}
