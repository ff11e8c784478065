/**
 * The memory of one engine: regions, KV and SSM buffers laid out in any order of axes, and the allocators that hand out
 * blocks and slots. It describes the buffers to the handoff SDK and opens them to the model.
 */
import type {
  AxisName,
  BlockAllocator,
  BufferGeometry,
  KvBuffers,
  Region,
  SlotAllocator,
  SsmBuffers,
} from 'state-handoff';
import { badInput, requireInteger } from './bad-input.js';
import type { ModelConfig } from './config.js';
import { KvMemory } from './kv-memory.js';
import { kvLayout, rankSlice, sizeOf, ssmLayout, type RankSlice } from './rank-slice.js';
import { SsmMemory } from './ssm-memory.js';

export type KvAxis = 'plane' | 'layer' | 'block' | 'token' | 'head' | 'dim';
export type ConvAxis = 'layer' | 'slot' | 'channel' | 'dim';
export type RecurrentAxis = 'layer' | 'slot' | 'head' | 'dim';

export interface EngineMemoryOptions {
  readonly model: ModelConfig;
  /** Defaults to the whole model. */
  readonly slice?: RankSlice;
  /** Tokens per block. */
  readonly blockSize: number;
  /** Its `poolSize` says how many blocks the KV buffer has. */
  readonly blocks: BlockAllocator;
  /** Null for attention-only models. */
  readonly slots: SlotAllocator | null;
  /** Slots in memory, a dummy slot included. Defaults to `slots.size`. */
  readonly physicalSlots?: number;
  /** Host memory that the chosen transport can read: `allocateHostRegion`, say. */
  readonly allocateRegion: (bytes: number, name: string) => Region;
  /** Names complete blocks: `computeBlockHashes`. Not called without prefix caching. */
  readonly hashBlocks: (tokens: Int32Array, blockSize: number, salt: string | null) => BigInt64Array;
  /** Outermost first. */
  readonly kvAxes?: readonly KvAxis[];
  readonly convAxes?: readonly ConvAxis[];
  readonly recurrentAxes?: readonly RecurrentAxis[];
  /** One KV buffer for each layer instead of one for all. */
  readonly bufferPerLayer?: boolean;
}

const kvAxesDefault: readonly KvAxis[] = ['plane', 'layer', 'block', 'token', 'head', 'dim'];
const convAxesDefault: readonly ConvAxis[] = ['layer', 'slot', 'channel', 'dim'];
const recurrentAxesDefault: readonly RecurrentAxis[] = ['layer', 'slot', 'head', 'dim'];

export class EngineMemory {
  readonly slice: RankSlice;
  readonly blockSize: number;
  readonly blocks: BlockAllocator;
  readonly slots: SlotAllocator | null;
  readonly regions: readonly Region[];
  readonly kv: KvBuffers;
  readonly ssm: SsmBuffers | null;
  readonly kvMemory: KvMemory;
  readonly ssmMemory: SsmMemory | null;
  /** A slot in memory that no request ever gets, for `dummy-work.ts`; null where there is none. */
  readonly dummySlot: number | null;
  readonly hashBlocks: EngineMemoryOptions['hashBlocks'];

  /** @throws `ARGUMENT_INVALID` naming the option */
  constructor(options: EngineMemoryOptions) {
    const { model, blocks, slots, blockSize } = options;
    requireInteger('memory.blockSize', blockSize, 1);
    if ((slots === null) !== (model.ssm === null)) {
      throw badInput('memory.slots', 'a slot allocator if and only if the model has SSM layers', slots);
    }
    this.slice = options.slice ?? rankSlice(model);
    this.blockSize = blockSize;
    this.blocks = blocks;
    this.slots = slots;
    this.hashBlocks = options.hashBlocks;
    const regions: Region[] = [];
    this.regions = regions;
    const place = <Name extends AxisName>(
      name: string,
      order: readonly Name[],
      sizes: Readonly<Record<Name, number>>,
    ): BufferGeometry => {
      const { axes, bytes } = rowMajor(name, order, sizes);
      regions.push(options.allocateRegion(Math.max(bytes, 4), name));
      return { region: regions.length - 1, offsetBytes: 0, elementBytes: 4, axes };
    };
    const layers = sizeOf(this.slice.attentionLayers);
    const kvHeads = sizeOf(this.slice.kvHeads);
    const { headDim } = model.attention;
    const perBuffer = options.bufferPerLayer === true ? 1 : layers;
    const buffers: BufferGeometry[] = [];
    const layerStarts: number[] = [];
    for (let layer = 0; layer < layers; layer += perBuffer) {
      const sizes = {
        plane: 2,
        layer: perBuffer,
        block: blocks.poolSize,
        token: blockSize,
        head: kvHeads,
        dim: headDim,
      };
      buffers.push(place(`kv-${layer}`, options.kvAxes ?? kvAxesDefault, sizes));
      layerStarts.push(this.slice.attentionLayers.from + layer);
    }
    this.kv = { layout: kvLayout(model, this.slice), buffers, layerStarts };
    this.kvMemory = new KvMemory(this.kv, regions, {
      layers,
      blockCount: blocks.poolSize,
      blockSize,
      kvHeads,
      headDim,
    });
    const layout = ssmLayout(model, this.slice);
    if (layout === null || slots === null) {
      this.ssm = null;
      this.ssmMemory = null;
      this.dummySlot = null;
      return;
    }
    const { headdim, dState, dConv } = layout.dims;
    const physicalSlots = options.physicalSlots ?? slots.size;
    requireInteger('memory.physicalSlots', physicalSlots, slots.size);
    this.dummySlot = physicalSlots > slots.size ? slots.size : null;
    const heads = sizeOf(this.slice.ssmHeads);
    const shape = {
      layers: layout.numLayers,
      channels: heads * headdim + 2 * sizeOf(this.slice.ssmGroups) * dState,
      convWidth: dConv,
      heads,
      stateDim: headdim * dState,
    };
    const common = { layer: shape.layers, slot: physicalSlots };
    this.ssm = {
      layout,
      physicalSlots,
      conv: place('conv', options.convAxes ?? convAxesDefault, { ...common, channel: shape.channels, dim: dConv }),
      recurrent: place('recurrent', options.recurrentAxes ?? recurrentAxesDefault, {
        ...common,
        head: heads,
        dim: shape.stateDim,
      }),
    };
    this.ssmMemory = new SsmMemory(this.ssm, regions, shape);
  }

  /** Gives the regions back. @throws `MEMORY_IN_DOUBT` while a transfer may touch one */
  close(): void {
    for (const region of this.regions) region.close();
  }
}

function rowMajor<Name extends AxisName>(
  buffer: string,
  order: readonly Name[],
  sizes: Readonly<Record<Name, number>>,
): { axes: BufferGeometry['axes']; bytes: number } {
  const names = Object.keys(sizes);
  if (order.length !== names.length || new Set(order).size !== order.length || order.some((name) => !(name in sizes))) {
    throw badInput(`memory.${buffer}.axes`, `each of ${names.join(', ')} once`, order.join(', '));
  }
  let strideBytes = 4;
  const axes = [...order].reverse().map((name) => {
    const axis = { name, size: sizes[name], strideBytes };
    strideBytes *= sizes[name];
    return axis;
  });
  return { axes: axes.reverse(), bytes: strideBytes };
}
