/** Builders of a prefill instance's descriptors: any parallelism, attention-only or hybrid, one buffer or one a layer. */
import type { KvBuffers, SsmBuffers } from '../../lib/engine-context.js';
import type { WireObject } from '../../lib/json.js';
import type { Axis, AxisName } from '../../lib/memory/axes-geometry.js';
import {
  buildKvMeta,
  exportKvDescriptor,
  exportSsmDescriptors,
  type HandoffFields,
  type KvMetaInput,
} from '../../lib/prefill/handoff-metadata.js';

export interface Shape {
  readonly tpSize: number;
  readonly ppSize: number;
  readonly layers: number;
  readonly heads: number;
  readonly headDim: number;
  readonly blockSize: number;
  readonly poolSize: number;
  readonly slots: number;
  readonly isHybrid: boolean;
  readonly isPerLayer: boolean;
  /** Whether descriptors carry addresses, as peers that read by address need. */
  readonly hasAddresses: boolean;
}

export const smallShape: Shape = {
  tpSize: 1,
  ppSize: 1,
  layers: 4,
  heads: 4,
  headDim: 8,
  blockSize: 16,
  poolSize: 101,
  slots: 9,
  isHybrid: false,
  isPerLayer: false,
  hasAddresses: false,
};

const elementBytes = 2;

/** Axes of a row-major buffer, outermost first. */
export function rowMajor(sizes: readonly (readonly [AxisName, number])[], bytes = elementBytes): Axis[] {
  let strideBytes = bytes;
  const axes: Axis[] = [];
  for (const [name, size] of [...sizes].reverse()) {
    axes.unshift({ name, size, strideBytes });
    strideBytes *= size;
  }
  return axes;
}

export const bytesOf = (axes: readonly Axis[]): number => axes[0]!.size * axes[0]!.strideBytes;

export function kvBuffers(shape: Shape, ppRank: number, tpRank: number): KvBuffers {
  const layersEach = shape.layers / shape.ppSize;
  const layerStart = ppRank * layersEach;
  const heads = Math.max(1, shape.heads / shape.tpSize);
  const inner = [
    ['block', shape.poolSize],
    ['token', shape.blockSize],
    ['head', heads],
    ['dim', shape.headDim],
  ] as const;
  const layout = {
    numLayersGlobal: shape.layers,
    numKvHeadsGlobal: shape.heads,
    headDim: shape.headDim,
    tpSize: shape.tpSize,
    tpRank,
    ppSize: shape.ppSize,
    ppRank,
    globalRank: ppRank * shape.tpSize + tpRank,
    layerStart,
    layerEnd: layerStart + layersEach,
  };
  if (!shape.isPerLayer) {
    const axes = rowMajor([['plane', 2], ['layer', layersEach], ...inner]);
    return { layout, buffers: [{ region: 0, offsetBytes: 0, elementBytes, axes }], layerStarts: [layerStart] };
  }
  const axes = rowMajor([['plane', 2], ...inner]);
  return {
    layout,
    buffers: Array.from({ length: layersEach }, (_, layer) => ({
      region: 0,
      offsetBytes: layer * bytesOf(axes),
      elementBytes,
      axes,
    })),
    layerStarts: Array.from({ length: layersEach }, (_, layer) => layerStart + layer),
  };
}

export const ssmDims = { nheads: 8, headdim: 4, dState: 2, ngroups: 4, dConv: 3 };

export function ssmBuffers(shape: Shape, ppRank: number, tpRank: number, layers = 2): SsmBuffers {
  const { nheads, headdim, dState, ngroups, dConv } = ssmDims;
  const convWidth = (nheads * headdim + 2 * ngroups * dState) / shape.tpSize;
  const conv = rowMajor([
    ['layer', Math.max(1, layers)],
    ['slot', shape.slots],
    ['channel', convWidth],
    ['dim', dConv],
  ]);
  const recurrent = rowMajor(
    [
      ['layer', Math.max(1, layers)],
      ['slot', shape.slots],
      ['head', nheads / shape.tpSize],
      ['dim', headdim * dState],
    ],
    4,
  );
  return {
    layout: {
      globalRank: ppRank * shape.tpSize + tpRank,
      tpSize: shape.tpSize,
      tpRank,
      layerStart: ppRank * layers,
      numLayers: layers,
      dims: ssmDims,
    },
    conv: { region: 1, offsetBytes: 0, elementBytes, axes: conv },
    recurrent: { region: 2, offsetBytes: 0, elementBytes: 4, axes: recurrent },
    physicalSlots: shape.slots,
  };
}

export interface Described {
  readonly rankDescriptors: readonly WireObject[];
  readonly ssmRankDescriptors: readonly { readonly conv: WireObject; readonly recurrent: WireObject }[] | null;
}

export function describeInstance(shape: Shape): Described {
  const ranks = Array.from({ length: shape.ppSize * shape.tpSize }, (_, rank) => ({
    ppRank: Math.floor(rank / shape.tpSize),
    tpRank: rank % shape.tpSize,
    rank,
  }));
  const place = (rank: number, part: number) =>
    shape.hasAddresses
      ? { baseAddress: 0x7f00_0000_0000n + BigInt(rank * 3 + part) * (1n << 32n), deviceId: rank }
      : null;
  return {
    rankDescriptors: ranks.map(({ ppRank, tpRank, rank }) => {
      const kv = kvBuffers(shape, ppRank, tpRank);
      const ssm = ssmBuffers(shape, ppRank, tpRank);
      const kvBytes = kv.buffers.reduce((sum, { axes }) => sum + bytesOf(axes), 0);
      return exportKvDescriptor({
        kv,
        blockSize: shape.blockSize,
        poolSize: shape.poolSize,
        regions: [kvBytes, bytesOf(ssm.conv.axes), bytesOf(ssm.recurrent.axes)]
          .slice(0, shape.isHybrid ? 3 : 1)
          .map((byteLength) => ({ kind: 'host', byteLength })),
        transports: { host: { path: `@peer-${rank}`, token: 'secret' } },
        place: place(rank, 0),
      });
    }),
    ssmRankDescriptors: shape.isHybrid
      ? ranks.map(({ ppRank, tpRank, rank }) =>
          exportSsmDescriptors({
            ssm: ssmBuffers(shape, ppRank, tpRank),
            convPlace: place(rank, 1),
            recurrentPlace: place(rank, 2),
          }),
        )
      : null,
  };
}

export const sampleHandoff: HandoffFields = {
  instance: 'prefill-a',
  incarnation: 'boot-1',
  handoffId: 7,
  epoch: 3,
  model: 'sample-1',
  dtype: 'bfloat16',
  promptTokens: 40,
  promptDigest: null,
  blockGenerations: BigUint64Array.of(5n, (1n << 64n) - 1n, 0n),
  slotGeneration: null,
};

/** A valid `kv_meta` for a 40-token prompt in blocks 5, 9, 2. */
export function sampleKvMeta(shape: Shape, changes: Partial<KvMetaInput> = {}): Record<string, unknown> {
  const described = describeInstance(shape);
  return buildKvMeta({
    tpSize: shape.tpSize,
    ppSize: shape.ppSize,
    ...described,
    blockIds: [5, 9, 2],
    resumeTokens: [11, 12],
    resumeLogProbs: null,
    slot: shape.isHybrid ? 4 : null,
    handoff: shape.isHybrid ? { ...sampleHandoff, slotGeneration: 77n } : sampleHandoff,
    ...changes,
  });
}

/** Metadata that a test changes at places that no type knows. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any -- see above
export type Meta = Record<string, any>;

export const sampleBlocks = [5, 9, 2];
export const hybridShape: Shape = { ...smallShape, isHybrid: true };

/** As if it had come over the wire: no two parts share an object. */
function copy(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(copy);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, copy(inner)]));
}

/** A deep, mutable copy of a valid meta, changed. */
export function changedKvMeta(shape: Shape, change: (meta: Meta) => void): Meta {
  const meta = copy(sampleKvMeta(shape)) as Meta;
  change(meta);
  return meta;
}
