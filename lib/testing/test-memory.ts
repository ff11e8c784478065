/**
 * The memory of one rank of a test engine: small buffers of a model that does not exist, where every element has a
 * value of its own.
 *
 * An element's value follows from the mark of its block (or slot) and its place in the *whole* model (layer, plane, head,
 * token, …), so ranks of any layout agree about it, and one wrong, stale or misplaced byte is found by looking.
 */
import { argumentError } from '../errors.js';
import type { KvBuffers, SsmBuffers } from '../engine-context.js';
import type { Axis, AxisName, BufferGeometry } from '../memory/axes-geometry.js';
import type { IndexRange as Range } from '../memory/index-range.js';
import { PlainRegion } from '../memory/plain-region.js';
import type { SsmDims } from '../memory/ssm-layout.js';

/** A model as far as its state goes; the same for all ranks and instances that hand over to each other. */
export interface TestModelShape {
  readonly layers: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Tokens per block. */
  readonly blockSize: number;
  /** 4 makes a wrong element certain to be found; 1 and 2 are for odd layouts. */
  readonly elementBytes: 1 | 2 | 4;
  /** Null: attention only. */
  readonly ssm: { readonly layers: number; readonly dims: SsmDims } | null;
}

/** Where a rank stands in its instance. */
export interface TestRankPosition {
  readonly tpSize: number;
  readonly tpRank: number;
  readonly ppSize: number;
  readonly ppRank: number;
  readonly globalRank: number;
  /** First layer of this stage and one past its last, for attention and for SSM layers; left out: as even as can be. */
  readonly layers?: Range;
  readonly ssmLayers?: Range;
}

/** Axes of a test engine's attention buffer. */
export type KvAxisName = Extract<AxisName, 'plane' | 'layer' | 'block' | 'token' | 'head' | 'dim'>;

/** The reference's order, outermost first. */
export const kvAxesDefault: readonly KvAxisName[] = ['plane', 'layer', 'block', 'token', 'head', 'dim'];

/** A small attention-only model that TP 1, 2 and 4 and PP 1 and 2 can share. */
export const smallShape: TestModelShape = {
  layers: 2,
  kvHeads: 4,
  headDim: 1,
  blockSize: 4,
  elementBytes: 4,
  ssm: null,
};

/** A single rank that owns the whole model. */
export const wholeModel: TestRankPosition = { tpSize: 1, tpRank: 0, ppSize: 1, ppRank: 0, globalRank: 0 };

/** By stage: one past its last layer of either kind. A stage that ends where it begins has none. */
export interface StageEnds {
  readonly layers: readonly number[];
  readonly ssmLayers: readonly number[];
}

/** All ranks of an instance, pipeline stage major, tensor-parallel rank minor (spec 1.5.2). */
export function rankPositions(
  tpSize: number,
  ppSize: number,
  firstGlobalRank = 0,
  ends: StageEnds | null = null,
): TestRankPosition[] {
  const window = (of: readonly number[], stage: number): Range => ({ from: of[stage - 1] ?? 0, to: of[stage]! });
  return Array.from({ length: tpSize * ppSize }, (_, index) => {
    const ppRank = Math.floor(index / tpSize);
    return {
      tpSize,
      tpRank: index % tpSize,
      ppSize,
      ppRank,
      globalRank: firstGlobalRank + index,
      ...(ends === null ? {} : { layers: window(ends.layers, ppRank), ssmLayers: window(ends.ssmLayers, ppRank) }),
    };
  });
}

type Elements = Uint8Array | Uint16Array | Uint32Array;

/** The elements of one block or slot in one buffer: where they lie from its first, and which ones of the model they are. */
class Pattern {
  readonly offsets: number[] = [];
  readonly keys: number[] = [];

  constructor(
    readonly region: number,
    readonly elements: Elements,
    /** Of the block or slot axis, in elements. */
    readonly stride: number,
    readonly count: number,
  ) {}

  add(offset: number, ...place: readonly number[]): void {
    this.offsets.push(offset);
    this.keys.push(place.reduce((key, index) => Math.imul(key, 0x01000193) ^ (index + 1), 0x2f0b4a27));
  }

  fill(id: number, mark: number): void {
    const base = id * this.stride;
    for (let i = 0; i < this.keys.length; i++)
      this.elements[base + this.offsets[i]!] = elementValue(mark, this.keys[i]!);
  }

  fault(id: number, mark: number): string | null {
    const base = id * this.stride;
    const mask = 2 ** (8 * this.elements.BYTES_PER_ELEMENT) - 1;
    for (let i = 0; i < this.keys.length; i++) {
      const at = base + this.offsets[i]!;
      const expected = (elementValue(mark, this.keys[i]!) & mask) >>> 0;
      if (this.elements[at] !== expected) {
        return `element ${at} of region ${this.region}: expected ${expected}, got ${this.elements[at]}`;
      }
    }
    return null;
  }
}

function elementValue(mark: number, key: number): number {
  const mixed = Math.imul(mark ^ key, 0x9e3779b1);
  return Math.imul(mixed ^ (mixed >>> 15), 0x85ebca6b);
}

/** A test engine's state memory, where every byte has a value of its own. */
export class TestMemory {
  readonly regions: readonly PlainRegion[];
  readonly kv: KvBuffers;
  readonly ssm: SsmBuffers | null;
  readonly #block: Pattern;
  readonly #slot: readonly Pattern[];

  /**
   * @param poolSize - blocks, the dummy block included
   * @param slotCount - SSM slots in memory; ignored for attention-only models
   * @throws `ARGUMENT_INVALID` when the model cannot be split that way
   */
  constructor(
    readonly shape: TestModelShape,
    readonly position: TestRankPosition,
    readonly poolSize: number,
    slotCount: number,
    kvAxes: readonly KvAxisName[] = kvAxesDefault,
  ) {
    const regions: PlainRegion[] = [];
    const buffer = (
      sizes: readonly (readonly [AxisName, number])[],
    ): { geometry: BufferGeometry; elements: Elements } => {
      const { elementBytes } = shape;
      let strideBytes = elementBytes;
      const axes: Axis[] = [];
      for (const [name, size] of [...sizes].reverse()) {
        axes.unshift({ name, size, strideBytes });
        strideBytes *= size;
      }
      const region = new PlainRegion(strideBytes);
      const geometry = { region: regions.push(region) - 1, offsetBytes: 0, elementBytes, axes };
      const View = elementBytes === 1 ? Uint8Array : elementBytes === 2 ? Uint16Array : Uint32Array;
      return { geometry, elements: new View(region.buffer) };
    };
    [this.kv, this.#block] = this.#makeKv(buffer, kvAxes);
    if (shape.ssm === null) {
      this.ssm = null;
      this.#slot = [];
    } else {
      [this.ssm, this.#slot] = this.#makeSsm(buffer, shape.ssm, slotCount);
    }
    this.regions = regions;
  }

  /** Writes the state that belongs to `mark` into all of a block. */
  fillBlock(block: number, mark: number): void {
    this.#block.fill(block, mark);
  }

  /** The first element of a block that does not belong to `mark`, in words, or null. */
  blockFault(block: number, mark: number): string | null {
    return this.#block.fault(block, mark);
  }

  /** Fills a slot with the marks of a prompt. */
  fillSlot(slot: number, mark: number): void {
    for (const pattern of this.#slot) pattern.fill(slot, mark);
  }

  /** What is wrong with a slot that should hold these marks; null: nothing. */
  slotFault(slot: number, mark: number): string | null {
    for (const pattern of this.#slot) {
      const fault = pattern.fault(slot, mark);
      if (fault !== null) return fault;
    }
    return null;
  }

  /** Whether a region holds SSM state (slots) rather than attention state (blocks). */
  isSlotRegion(region: number): boolean {
    return region !== this.#block.region;
  }

  /** Which block or slot a byte of a region belongs to. */
  idAt(region: number, offsetBytes: number): number {
    const pattern = region === this.#block.region ? this.#block : this.#slot.find((each) => each.region === region)!;
    return Math.floor(offsetBytes / (pattern.stride * this.shape.elementBytes)) % pattern.count;
  }

  #makeKv(
    buffer: (sizes: readonly (readonly [AxisName, number])[]) => { geometry: BufferGeometry; elements: Elements },
    kvAxes: readonly KvAxisName[],
  ): [KvBuffers, Pattern] {
    const { shape, position, poolSize } = this;
    if ([...kvAxes].sort().join() !== [...kvAxesDefault].sort().join()) {
      throw argumentError('kvAxes', `the axes ${kvAxesDefault.join(', ')} in some order`, kvAxes.join(', '));
    }
    const heads = headRange(shape.kvHeads, position);
    const layers = position.layers ?? layerRange(shape.layers, position);
    const { tpSize, tpRank, ppSize, ppRank, globalRank } = position;
    const layout = {
      ...{ numLayersGlobal: shape.layers, numKvHeadsGlobal: shape.kvHeads, headDim: shape.headDim },
      ...{ tpSize, tpRank, ppSize, ppRank, globalRank, layerStart: layers.from, layerEnd: layers.to },
    };
    if (layers.from === layers.to) {
      return [{ layout, buffers: [], layerStarts: [] }, new Pattern(-1, new Uint8Array(0), 0, poolSize)];
    }
    const sizes: Record<KvAxisName, number> = {
      plane: 2,
      layer: layers.to - layers.from,
      block: poolSize,
      token: shape.blockSize,
      head: heads.to - heads.from,
      dim: shape.headDim,
    };
    const { geometry, elements } = buffer(kvAxes.map((name) => [name, sizes[name]]));
    const stride = strides(geometry);
    const pattern = new Pattern(geometry.region, elements, stride('block'), poolSize);
    for (let plane = 0; plane < 2; plane++) {
      for (let layer = layers.from; layer < layers.to; layer++) {
        for (let token = 0; token < shape.blockSize; token++) {
          for (let head = heads.from; head < heads.to; head++) {
            for (let dim = 0; dim < shape.headDim; dim++) {
              const offset =
                plane * stride('plane') +
                (layer - layers.from) * stride('layer') +
                token * stride('token') +
                (head - heads.from) * stride('head') +
                dim * stride('dim');
              pattern.add(offset, plane, layer, token, head, dim);
            }
          }
        }
      }
    }
    return [{ layout, buffers: [geometry], layerStarts: [layers.from] }, pattern];
  }

  #makeSsm(
    buffer: (sizes: readonly (readonly [AxisName, number])[]) => { geometry: BufferGeometry; elements: Elements },
    ssm: NonNullable<TestModelShape['ssm']>,
    slotCount: number,
  ): [SsmBuffers, readonly Pattern[]] {
    const { tpSize, tpRank, globalRank } = this.position;
    const { dims } = ssm;
    if (dims.nheads % tpSize !== 0)
      throw argumentError('position.tpSize', `a divisor of ${dims.nheads} SSM heads`, tpSize);
    if (dims.ngroups % tpSize !== 0)
      throw argumentError('position.tpSize', `a divisor of ${dims.ngroups} SSM groups`, tpSize);
    const layers = this.position.ssmLayers ?? layerRange(ssm.layers, this.position);
    const layerCount = layers.to - layers.from;
    const layout = { globalRank, tpSize, tpRank, layerStart: layers.from, numLayers: layerCount, dims };
    if (layerCount === 0) {
      const nothing: BufferGeometry = { region: 0, offsetBytes: 0, elementBytes: this.shape.elementBytes, axes: [] };
      return [{ layout, conv: nothing, recurrent: nothing, physicalSlots: slotCount }, []];
    }
    // The channel axis is x, then B, then C, each cut by rank on its own (spec 5).
    const bands = [dims.nheads * dims.headdim, dims.ngroups * dims.dState, dims.ngroups * dims.dState];
    const channels = bands.reduce((sum, width) => sum + width, 0) / tpSize;
    const conv = buffer([
      ['layer', layerCount],
      ['slot', slotCount],
      ['channel', channels],
      ['dim', dims.dConv],
    ]);
    const convStride = strides(conv.geometry);
    const convPattern = new Pattern(conv.geometry.region, conv.elements, convStride('slot'), slotCount);
    const headCount = dims.nheads / tpSize;
    const headBytes = dims.headdim * dims.dState;
    const recurrent = buffer([
      ['layer', layerCount],
      ['slot', slotCount],
      ['head', headCount],
      ['dim', headBytes],
    ]);
    const recurrentStride = strides(recurrent.geometry);
    const recurrentPattern = new Pattern(
      recurrent.geometry.region,
      recurrent.elements,
      recurrentStride('slot'),
      slotCount,
    );
    for (let layer = layers.from; layer < layers.to; layer++) {
      const layerIndex = layer - layers.from;
      let local = 0;
      for (const [band, width] of bands.entries()) {
        const each = width / tpSize;
        for (let i = 0; i < each; i++, local++) {
          for (let dim = 0; dim < dims.dConv; dim++) {
            const offset = layerIndex * convStride('layer') + local * convStride('channel') + dim;
            convPattern.add(offset, 2, layer, band, tpRank * each + i, dim);
          }
        }
      }
      for (let head = 0; head < headCount; head++) {
        for (let dim = 0; dim < headBytes; dim++) {
          const offset = layerIndex * recurrentStride('layer') + head * recurrentStride('head') + dim;
          recurrentPattern.add(offset, 3, layer, tpRank * headCount + head, dim);
        }
      }
    }
    return [
      { layout, conv: conv.geometry, recurrent: recurrent.geometry, physicalSlots: slotCount },
      [convPattern, recurrentPattern],
    ];
  }
}

/** One mark a block of `tokens`, the partial last one included: it follows from all tokens up to the block's end. */
export function promptMarks(tokens: Int32Array, blockSize: number, salt: string | null = null): Uint32Array {
  const marks = new Uint32Array(Math.ceil(tokens.length / blockSize));
  let mark = 0x811c9dc5;
  for (const character of salt ?? '') mark = Math.imul(mark ^ character.charCodeAt(0), 0x01000193);
  for (let i = 0; i < tokens.length; i++) {
    mark = Math.imul(mark ^ tokens[i]!, 0x01000193);
    marks[Math.floor(i / blockSize)] = mark ^ (mark >>> 13);
  }
  return marks;
}

function headRange(heads: number, { tpSize, tpRank }: TestRankPosition): Range {
  if (heads % tpSize === 0) return { from: (tpRank * heads) / tpSize, to: ((tpRank + 1) * heads) / tpSize };
  if (tpSize % heads !== 0) throw argumentError('position.tpSize', `a divisor or a multiple of ${heads} heads`, tpSize);
  const head = Math.floor((tpRank * heads) / tpSize);
  return { from: head, to: head + 1 };
}

function layerRange(layers: number, { ppSize, ppRank }: TestRankPosition): Range {
  if (layers < ppSize) throw argumentError('position.ppSize', `at most ${layers} stages`, ppSize);
  return { from: Math.floor((layers * ppRank) / ppSize), to: Math.floor((layers * (ppRank + 1)) / ppSize) };
}

/** Strides in elements. */
function strides(geometry: BufferGeometry): (name: AxisName) => number {
  const byName = new Map(geometry.axes.map(({ name, strideBytes }) => [name, strideBytes / geometry.elementBytes]));
  return (name) => byName.get(name)!;
}
