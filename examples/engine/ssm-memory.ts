/**
 * The live SSM slots: the conv state `[x | B | C] × dConv` and the recurrent state `heads × (headdim · dState)` of each
 * layer and slot, over the bytes that are transferred.
 */
import type { Region, SsmBuffers } from 'state-handoff';
import { BufferView } from './buffer-view.js';

/** Number `base + slot * slotStride + row * rowStride + dim * dimStride`; a row is a channel or a head. */
export interface SsmStateAddress {
  readonly numbers: Float32Array;
  readonly base: number;
  readonly slotStride: number;
  readonly rowStride: number;
  readonly dimStride: number;
  readonly rows: number;
  readonly dims: number;
}

export interface SsmShape {
  readonly layers: number;
  readonly channels: number;
  readonly convWidth: number;
  readonly heads: number;
  /** headdim · dState */
  readonly stateDim: number;
}

export class SsmMemory {
  /** By SSM layer of this rank. */
  readonly conv: readonly SsmStateAddress[];
  readonly recurrent: readonly SsmStateAddress[];
  /** Numbers of one slot over all layers. */
  readonly slotNumbers: number;

  /** @throws `ENGINE_CONTEXT_INVALID` when a buffer has another shape */
  constructor(
    ssm: SsmBuffers,
    regions: readonly Region[],
    readonly shape: SsmShape,
  ) {
    const addresses = (field: string, view: BufferView, row: 'channel' | 'head', rows: number, dims: number) => {
      view.requireSize('layer', shape.layers);
      view.requireSize('slot', ssm.physicalSlots);
      view.requireSize(row, rows);
      view.requireSize('dim', dims);
      return Array.from({ length: shape.layers }, (_, layer) => ({
        numbers: view.numbers,
        base: view.base + layer * view.stride('layer'),
        slotStride: view.stride('slot'),
        rowStride: view.stride(row),
        dimStride: view.stride('dim'),
        rows,
        dims,
      }));
    };
    const conv = new BufferView('ssm.conv', ssm.conv, regions);
    const recurrent = new BufferView('ssm.recurrent', ssm.recurrent, regions);
    this.conv = addresses('ssm.conv', conv, 'channel', shape.channels, shape.convWidth);
    this.recurrent = addresses('ssm.recurrent', recurrent, 'head', shape.heads, shape.stateDim);
    this.slotNumbers = shape.layers * (shape.channels * shape.convWidth + shape.heads * shape.stateDim);
  }

  /** Numbers before `layer`'s part in what {@link readLayer} and {@link readSlot} write. */
  layerOffset(layer: number): number {
    return (this.slotNumbers / this.shape.layers) * layer;
  }

  zero(slot: number): void {
    this.writeSlot(slot, new Float32Array(this.slotNumbers));
  }

  /** One layer's state of `slot`, conv before recurrent, into `into` from `at` on. */
  readLayer(layer: number, slot: number, into: Float32Array, at: number): void {
    const next = readState(this.conv[layer]!, slot, into, at);
    readState(this.recurrent[layer]!, slot, into, next);
  }

  readSlot(slot: number): Float32Array {
    const content = new Float32Array(this.slotNumbers);
    for (let layer = 0; layer < this.shape.layers; layer++)
      this.readLayer(layer, slot, content, this.layerOffset(layer));
    return content;
  }

  /** Puts back what {@link readSlot} (or {@link readLayer} for every layer) read, from `at` on. */
  writeSlot(slot: number, content: Float32Array, at = 0): void {
    let next = at;
    for (let layer = 0; layer < this.shape.layers; layer++) {
      next = writeState(this.conv[layer]!, slot, content, next);
      next = writeState(this.recurrent[layer]!, slot, content, next);
    }
  }
}

function readState(state: SsmStateAddress, slot: number, into: Float32Array, at: number): number {
  for (let row = 0; row < state.rows; row++) {
    let from = state.base + slot * state.slotStride + row * state.rowStride;
    for (let dim = 0; dim < state.dims; dim++, from += state.dimStride) into[at++] = state.numbers[from]!;
  }
  return at;
}

function writeState(state: SsmStateAddress, slot: number, content: Float32Array, at: number): number {
  for (let row = 0; row < state.rows; row++) {
    let to = state.base + slot * state.slotStride + row * state.rowStride;
    for (let dim = 0; dim < state.dims; dim++, to += state.dimStride) state.numbers[to] = content[at++]!;
  }
  return at;
}
