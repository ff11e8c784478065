/**
 * The paged KV pool as the model reads and writes it: one address rule a layer, over the bytes that are transferred.
 */
import type { KvBuffers, Region } from 'state-handoff';
import { badInput } from './bad-input.js';
import { BufferView } from './buffer-view.js';

/**
 * Where one layer's keys and values lie: number `keys + block * block + token * token + head * head + dim * dim`, and
 * the same from `values`.
 */
export interface KvLayerAddress {
  readonly numbers: Float32Array;
  readonly keys: number;
  readonly values: number;
  readonly blockStride: number;
  readonly tokenStride: number;
  readonly headStride: number;
  readonly dimStride: number;
}

export interface KvShape {
  readonly layers: number;
  readonly blockCount: number;
  readonly blockSize: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

export class KvMemory {
  /** By layer of this rank. */
  readonly layers: readonly KvLayerAddress[];

  /** @throws `ENGINE_CONTEXT_INVALID` when the buffers do not hold each layer once with this shape */
  constructor(
    kv: KvBuffers,
    regions: readonly Region[],
    readonly shape: KvShape,
  ) {
    const layers = new Array<KvLayerAddress | undefined>(shape.layers).fill(undefined);
    for (const [index, geometry] of kv.buffers.entries()) {
      const field = `kv.buffers[${index}]`;
      const view = new BufferView(field, geometry, regions);
      view.requireSize('plane', 2);
      view.requireSize('block', shape.blockCount);
      view.requireSize('token', shape.blockSize);
      view.requireSize('head', shape.kvHeads);
      view.requireSize('dim', shape.headDim);
      const first = (kv.layerStarts[index] ?? 0) - kv.layout.layerStart;
      for (let i = 0; i < view.size('layer'); i++) {
        if (first + i < 0 || first + i >= shape.layers || layers[first + i] !== undefined) {
          throw badInput(
            `${field}.layer`,
            'each layer of this rank in one buffer',
            first + i,
            'ENGINE_CONTEXT_INVALID',
          );
        }
        const keys = view.base + i * view.stride('layer');
        layers[first + i] = {
          numbers: view.numbers,
          keys,
          values: keys + view.stride('plane'),
          blockStride: view.stride('block'),
          tokenStride: view.stride('token'),
          headStride: view.stride('head'),
          dimStride: view.stride('dim'),
        };
      }
    }
    this.layers = layers.map((layer, index) => {
      if (layer === undefined)
        throw badInput('kv.buffers', `a buffer with layer ${index}`, 'none', 'ENGINE_CONTEXT_INVALID');
      return layer;
    });
  }

  /** Numbers of one block over all layers. */
  get blockNumbers(): number {
    const { layers, blockSize, kvHeads, headDim } = this.shape;
    return layers * 2 * blockSize * kvHeads * headDim;
  }

  /** The content of a block in the order layer, plane, token, head, dim, whatever the layout. */
  readBlock(block: number): Float32Array {
    const content = new Float32Array(this.blockNumbers);
    this.walkBlock(block, (numbers, from, at) => {
      content[at] = numbers[from]!;
    });
    return content;
  }

  /** The inverse of {@link readBlock}. */
  writeBlock(block: number, content: Float32Array): void {
    this.walkBlock(block, (numbers, to, at) => {
      numbers[to] = content[at]!;
    });
  }

  private walkBlock(block: number, visit: (numbers: Float32Array, index: number, at: number) => void): void {
    const { blockSize, kvHeads, headDim } = this.shape;
    let at = 0;
    for (const layer of this.layers) {
      for (const plane of [layer.keys, layer.values]) {
        for (let token = 0; token < blockSize; token++) {
          for (let head = 0; head < kvHeads; head++) {
            const row = plane + block * layer.blockStride + token * layer.tokenStride + head * layer.headStride;
            for (let dim = 0; dim < headDim; dim++) visit(layer.numbers, row + dim * layer.dimStride, at++);
          }
        }
      }
    }
  }
}
