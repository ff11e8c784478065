/**
 * The memory of one side of a layout pair in one stretch of bytes, and what belongs where: the value of every element
 * follows from its layer, plane, head, token and dim in the whole model, found by plain loops that know no plan.
 */
import { rowMajorBuffer, bufferEnd, type AxisName, type BufferGeometry } from '../../lib/memory/axes-geometry.js';
import type { KvLayout } from '../../lib/memory/kv-layout.js';
import type { SsmLayout } from '../../lib/memory/ssm-layout.js';
import type { PeerRank } from '../../lib/transfer/peer-pairing.js';
import type { PairModel, PairSide } from './layout-pair.js';

/** Writes `value`'s bytes at an offset. */
export type Store = (offset: number, value: number, bytes: number) => void;

export interface SideMemory {
  readonly ranks: readonly PeerRank[];
  readonly bytes: number;
  /** Every element of positions `from … to - 1` of the sequence in `blocks`. */
  storeTokens(salt: number, blocks: readonly number[], from: number, to: number, store: Store): void;
  storeSlot(salt: number, slot: number, store: Store): void;
}

const mix = (hash: number, value: number): number => {
  const mixed = Math.imul(hash ^ value, 0x9e3779b1);
  return mixed ^ (mixed >>> 15);
};

/** One buffer and the model's indices of its axes' origins. */
interface Placed {
  readonly buffer: BufferGeometry;
  readonly origin: Readonly<Partial<Record<AxisName, number>>>;
  readonly kind: number;
  /** Global channel of each local one, for the conv state. */
  readonly channels: readonly number[] | null;
}

export function sideMemory(model: PairModel, side: PairSide): SideMemory {
  const ranks: PeerRank[] = [];
  const data: Placed[] = [];
  const slots: Placed[] = [];
  let end = 0;
  const place = (
    names: readonly AxisName[],
    sizes: Readonly<Partial<Record<AxisName, number>>>,
    elementBytes: number,
    extra: { readonly planeStart?: number; readonly content?: string } = {},
  ): BufferGeometry => {
    // An axis of one index is left out half the time; a model without heads has none to name.
    const axes = names.filter((name) => sizes[name] !== undefined).map((name) => [name, sizes[name]!] as const);
    const paddingBytes = side.padding === 0 ? {} : { [axes[axes.length >> 1]![0]]: side.padding };
    const buffer = rowMajorBuffer({ region: 0, offsetBytes: end, elementBytes, axes, paddingBytes, ...extra });
    end = bufferEnd(buffer) + (side.padding % 3);
    return buffer;
  };
  for (let copy = 0; copy < side.copies; copy++) {
    for (const stage of side.stages.keys()) {
      for (let tpRank = 0; tpRank < side.tp; tpRank++) {
        const globalRank = ranks.length;
        const layers = window(side.stages, stage);
        const layout: KvLayout = {
          ...{ numLayersGlobal: model.layers, numKvHeadsGlobal: model.heads, headDim: model.headDim, globalRank },
          ...{ tpSize: side.tp, tpRank, ppSize: side.stages.length, ppRank: stage },
          ...{ layerStart: layers.from, layerEnd: layers.to },
        };
        const placed = placeKv(model, side, layout, place);
        data.push(...placed);
        const [conv, recurrent] = placeSsm(model, side, tpRank, window(side.ssmStages, stage), place);
        if (conv !== undefined && recurrent !== undefined) slots.push(conv, recurrent);
        ranks.push({
          key: `peer/${globalRank}`,
          kv: {
            layout,
            buffers: placed.map(({ buffer }) => buffer),
            layerStarts: placed.map(({ origin }) => origin.layer!),
          },
          ssm: ssmEndpoint(model, side, globalRank, tpRank, window(side.ssmStages, stage), conv, recurrent),
          transports: { host: globalRank },
        });
      }
    }
  }
  return {
    ranks,
    bytes: end,
    storeTokens(salt, blocks, from, to, store) {
      for (const placed of data) storeBlocks(placed, salt, side.tokens, blocks, from, to, store);
    },
    storeSlot(salt, slot, store) {
      for (const placed of slots) storeState(placed, salt, slot, store);
    },
  };
}

interface Window {
  readonly from: number;
  readonly to: number;
}

function window(ends: readonly number[], stage: number): Window {
  return { from: stage === 0 ? 0 : ends[stage - 1]!, to: ends[stage]! };
}

type Place = (
  names: readonly AxisName[],
  sizes: Readonly<Partial<Record<AxisName, number>>>,
  elementBytes: number,
  extra?: { readonly planeStart?: number; readonly content?: string },
) => BufferGeometry;

function placeKv(model: PairModel, side: PairSide, { tpRank, layerStart, layerEnd }: KvLayout, place: Place): Placed[] {
  const placed: Placed[] = [];
  const held = Math.max(1, model.heads / side.tp);
  const firstHead = Math.floor((tpRank * model.heads) / side.tp);
  const isLatent = model.heads === 1 && model.planes === 1;
  const kinds = [{ names: side.kvAxes, elementBytes: model.elementBytes, content: undefined as string | undefined }];
  if (model.scaleBytes !== null)
    kinds.push({ names: side.scaleAxes, elementBytes: model.scaleBytes, content: 'scale' });
  for (const [kind, { names, elementBytes, content }] of kinds.entries()) {
    const step = side.perLayer ? 1 : layerEnd - layerStart;
    for (let layer = layerStart; layer < layerEnd; layer += step) {
      const planeStep = side.planesApart ? 1 : model.planes;
      for (let plane = 0; plane < model.planes; plane += planeStep) {
        const buffer = place(
          names,
          {
            ...(isLatent && side.perLayer ? {} : { plane: planeStep }),
            ...(step === 1 && side.planesApart ? {} : { layer: step }),
            ...{ block: side.pool, token: side.tokens },
            ...(isLatent ? {} : { head: held }),
            ...(content === undefined ? { dim: model.headDim } : {}),
          },
          elementBytes,
          { ...(plane === 0 ? {} : { planeStart: plane }), ...(content === undefined ? {} : { content }) },
        );
        placed.push({ buffer, kind, channels: null, origin: { layer, plane, head: firstHead, dim: 0 } });
      }
    }
  }
  return placed;
}

function placeSsm({ ssm }: PairModel, side: PairSide, tpRank: number, { from, to }: Window, place: Place): Placed[] {
  if (ssm === null || from === to) return [];
  const channels: number[] = [];
  let first = 0;
  for (const width of [ssm.nheads * ssm.headdim, ssm.ngroups * ssm.dState, ssm.ngroups * ssm.dState]) {
    const each = width / side.tp;
    for (let channel = 0; channel < each; channel++) channels.push(first + tpRank * each + channel);
    first += width;
  }
  const held = ssm.nheads / side.tp;
  const layer = to - from;
  const conv = place(side.convAxes, { layer, slot: side.slots, channel: channels.length, dim: ssm.dConv }, 4);
  const sizes = { layer, slot: side.slots, head: held, dim: ssm.headdim * ssm.dState };
  const recurrent = place(side.recurrentAxes, sizes, 2);
  return [
    { buffer: conv, kind: 2, channels, origin: { layer: from } },
    { buffer: recurrent, kind: 3, channels: null, origin: { layer: from, head: tpRank * held } },
  ];
}

function ssmEndpoint(
  { ssm }: PairModel,
  side: PairSide,
  globalRank: number,
  tpRank: number,
  { from, to }: Window,
  conv: Placed | undefined,
  recurrent: Placed | undefined,
): PeerRank['ssm'] {
  if (ssm === null) return null;
  const { layers: _layers, ...dims } = ssm;
  const layout: SsmLayout = { globalRank, tpSize: side.tp, tpRank, layerStart: from, numLayers: to - from, dims };
  const nothing = (elementBytes: number): BufferGeometry => ({ region: 0, offsetBytes: 0, elementBytes, axes: [] });
  return { layout, conv: conv?.buffer ?? nothing(4), recurrent: recurrent?.buffer ?? nothing(2) };
}

interface Walk {
  readonly count: number;
  readonly stride: number;
  readonly origin: number;
}

function walkOf({ buffer, origin }: Placed, name: AxisName): Walk {
  const axis = buffer.axes.find((each) => each.name === name);
  return { count: axis?.size ?? 1, stride: axis?.strideBytes ?? 0, origin: origin[name] ?? 0 };
}

function storeBlocks(
  placed: Placed,
  salt: number,
  tokens: number,
  blocks: readonly number[],
  from: number,
  to: number,
  store: Store,
): void {
  const { offsetBytes, elementBytes } = placed.buffer;
  const [block, token] = [walkOf(placed, 'block'), walkOf(placed, 'token')];
  const [plane, layer] = [walkOf(placed, 'plane'), walkOf(placed, 'layer')];
  const [head, dim] = [walkOf(placed, 'head'), walkOf(placed, 'dim')];
  const kind = mix(salt, placed.kind);
  for (let position = from; position < to; position++) {
    const at = offsetBytes + blocks[Math.floor(position / tokens)]! * block.stride + (position % tokens) * token.stride;
    const positioned = mix(kind, position);
    for (let p = 0; p < plane.count; p++) {
      for (let l = 0; l < layer.count; l++) {
        const celled = mix(mix(positioned, plane.origin + p), layer.origin + l);
        for (let h = 0; h < head.count; h++) {
          const headed = mix(celled, head.origin + h);
          const row = at + p * plane.stride + l * layer.stride + h * head.stride;
          for (let d = 0; d < dim.count; d++) store(row + d * dim.stride, mix(headed, d), elementBytes);
        }
      }
    }
  }
}

function storeState(placed: Placed, salt: number, slot: number, store: Store): void {
  const { offsetBytes, elementBytes } = placed.buffer;
  const at = offsetBytes + slot * walkOf(placed, 'slot').stride;
  const unit = walkOf(placed, placed.channels === null ? 'head' : 'channel');
  const [layer, dim] = [walkOf(placed, 'layer'), walkOf(placed, 'dim')];
  const kind = mix(salt, placed.kind);
  for (let l = 0; l < layer.count; l++) {
    for (let u = 0; u < unit.count; u++) {
      const marked = mix(mix(kind, layer.origin + l), placed.channels?.[u] ?? unit.origin + u);
      const row = at + l * layer.stride + u * unit.stride;
      for (let d = 0; d < dim.count; d++) store(row + d * dim.stride, mix(marked, d), elementBytes);
    }
  }
}
