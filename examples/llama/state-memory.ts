/**
 * The blocks through which state travels: one registered region, every block with all layers of its tokens, and the
 * description of it that the SDK wants. llama.cpp never computes on this memory; it is copied into and out of.
 */
import { allocateHostRegion, type Axis, type AxisName, type KvBuffers, type Region } from 'state-handoff';
import type { BlockForm, CacheType, LlamaCache, LlamaModel } from './llama.js';

const elementBytes: Readonly<Record<CacheType, number>> = { float16: 2, bfloat16: 2, float32: 4 };

export class StateMemory {
  readonly regions: readonly [Region];
  readonly kv: KvBuffers;
  readonly form: BlockForm;
  readonly blockBytes: number;
  private readonly bytes: Uint8Array;

  /** @param poolSize - blocks, the dummy block included */
  constructor(model: LlamaModel, dtype: CacheType, blockTokens: number, poolSize: number) {
    const { layers, heads, headDim } = model.facts;
    const element = elementBytes[dtype];
    const strides = {
      dim: element,
      head: headDim * element,
      token: heads * headDim * element,
      plane: blockTokens * heads * headDim * element,
      layer: 2 * blockTokens * heads * headDim * element,
      block: layers * 2 * blockTokens * heads * headDim * element,
    };
    const sizes = { block: poolSize, layer: layers, plane: 2, token: blockTokens, head: heads, dim: headDim };
    const axis = (name: AxisName & keyof typeof sizes): Axis => ({
      name,
      size: sizes[name],
      strideBytes: strides[name],
    });
    const axes = (['block', 'layer', 'plane', 'token', 'head', 'dim'] as const).map(axis);
    this.blockBytes = strides.block;
    this.regions = [allocateHostRegion({ bytes: poolSize * strides.block, name: 'llama-state' })];
    this.bytes = new Uint8Array(this.regions[0].buffer!);
    this.form = { blockTokens, blockStride: strides.block, layerStride: strides.layer, planeStride: strides.plane };
    this.kv = {
      layout: {
        numLayersGlobal: layers,
        numKvHeadsGlobal: heads,
        headDim,
        tpSize: 1,
        tpRank: 0,
        ppSize: 1,
        ppRank: 0,
        globalRank: 0,
        layerStart: 0,
        layerEnd: layers,
      },
      layerStarts: [0],
      buffers: [{ region: 0, offsetBytes: 0, elementBytes: element, axes }],
    };
  }

  /** Copies tokens [from, to) of a sequence into `blocks`, the first of which gets token `from`. */
  save(cache: LlamaCache, sequence: number, from: number, to: number, blocks: Int32Array): void {
    cache.exportBlocks(sequence, from, to, blocks, this.form, this.bytes);
  }

  /** Appends tokens [from, to), which lie in `blocks`, to a sequence that ends before `from`. */
  load(cache: LlamaCache, sequence: number, from: number, to: number, blocks: Int32Array): void {
    cache.importBlocks(sequence, from, to, blocks, this.form, this.bytes);
  }

  /** Flips one bit of a block, for those who want to see that it is noticed: in the exponent of its first value. */
  flipBit(block: number): void {
    const at = block * this.blockBytes + this.form.planeStride + this.kv.buffers[0]!.elementBytes - 1;
    this.bytes[at] = this.bytes[at]! ^ 0x40;
  }
}
