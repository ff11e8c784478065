/**
 * What a peer says about one of its ranks, once and for every request (spec 1.5.1): layout, buffers, regions and the
 * grants of its transports. Field by field checked here; what comes out needs no further look.
 *
 * Buffers come from our `geometry` extension. A peer without it (the reference) describes slices of a row-major buffer,
 * which are turned into the same named axes over regions of its own.
 */
import { argumentError } from '../errors.js';
import { isRecord, setOwn } from '../json.js';
import {
  fieldError,
  integerField,
  listField,
  optionalStringField,
  own,
  recordField,
  uint64,
  type Fields,
} from '../json-fields.js';
import { elementBytesMax, int32Max, type TicketLimits } from '../limits.js';
import type { BufferGeometry } from '../memory/axes-geometry.js';
import { ownedLayers, type KvLayout } from '../memory/kv-layout.js';
import { layerCoverFault } from '../memory/layer-cover.js';
import type { SsmLayout } from '../memory/ssm-layout.js';
import { parseKvLayout, parseSsmLayout } from './described-layout.js';
import { parseBuffers, sliceBuffer } from './peer-buffer.js';
import type { KvEndpoint } from './plan-kv.js';
import type { MemoryKind, TransportGrant } from './transport.js';

/** A region of the peer. */
export interface PeerRegion {
  readonly kind: MemoryKind;
  readonly byteLength: number;
  /** Known for peers that describe slices; null where only the transport's grant knows. */
  readonly baseAddress: bigint | null;
}

/** The reference's own words for a row-major buffer: address of (outer o, block b) = base + o * outerStride + b * slice. */
export interface ReferenceSlices {
  readonly baseAddress: bigint;
  readonly deviceId: number;
  readonly numOuter: number;
  readonly outerStrideBytes: number;
  readonly bytesPerSlice: number;
  readonly blocksAxis: number;
}

/** What every descriptor says, whatever state it is of. */
export interface DescribedBlocks {
  readonly numBlocks: number;
  readonly elementBytes: number;
  readonly headsPerPartition: number;
  readonly headDim: number;
  readonly slices: ReferenceSlices | null;
}

/** One rank's attention state. */
export interface PeerKv extends DescribedBlocks {
  readonly globalRank: number;
  readonly tokensPerBlock: number;
  readonly endpoint: KvEndpoint;
  readonly regions: readonly PeerRegion[];
  /** Opaque grants by transport name. */
  readonly transports: Readonly<Record<string, TransportGrant>>;
  readonly agentName: string | null;
  readonly agentMetadataBase64: string | null;
}

export type SsmStateKind = 'conv' | 'recurrent';

/** One rank's state of one kind. */
export interface PeerSsmState extends DescribedBlocks {
  readonly layout: SsmLayout;
  /** Without axes for a rank that holds no SSM layer. */
  readonly buffer: BufferGeometry;
  /** Regions to append to the rank's own; none when `buffer` refers to those. */
  readonly regions: readonly PeerRegion[];
}

/**
 * @throws `TICKET_INVALID`, also for a descriptor that leaves open which part of the model it holds or how its bytes lie:
 *   the reference allows that for a copy between two equal ranks, but nothing could be checked then
 */
export function parseKvDescriptor(descriptor: Fields, path: string, limits: TicketLimits): PeerKv {
  const described = parseBlocks(descriptor, path);
  const tokensPerBlock = integerField(descriptor, 'tokens_per_block', path, 1, int32Max);
  const layout = parseKvLayout(descriptor, path, described);
  const regions = parseRegions(descriptor, path, limits);
  const kv = parseKvBuffers(descriptor, path, described, tokensPerBlock, layout, regions, limits);
  return {
    ...described,
    globalRank: layout.globalRank,
    tokensPerBlock,
    endpoint: { layout, buffers: kv.buffers, layerStarts: kv.layerStarts },
    regions: [...regions, ...kv.regions],
    transports: parseTransports(descriptor, path, limits),
    agentName: optionalStringField(descriptor, 'agent_name', path, limits.nameLengthMax),
    agentMetadataBase64: optionalStringField(descriptor, 'agent_metadata_b64', path, limits.blobLengthMax),
  };
}

function parseKvBuffers(
  descriptor: Fields,
  path: string,
  described: DescribedBlocks,
  tokensPerBlock: number,
  layout: KvLayout,
  regions: readonly PeerRegion[],
  limits: TicketLimits,
): { buffers: readonly BufferGeometry[]; layerStarts: readonly number[]; regions: readonly PeerRegion[] } {
  const layerCount = layout.layerEnd - layout.layerStart;
  if (own(descriptor, 'geometry') !== undefined) {
    const expected = {
      elementBytes: described.elementBytes,
      sizes: {
        block: described.numBlocks,
        token: tokensPerBlock,
        head: described.headsPerPartition,
        dim: described.headDim,
      },
      required: ['block'] as const,
      allowed: ['plane', 'layer', 'block', 'token', 'head', 'dim'] as const,
      layerStart: layout.layerStart,
      layerCount,
    };
    const parsed = parseBuffers(descriptor, path, expected, regions, limits);
    const fault = layerCoverFault(parsed.buffers, parsed.layerStarts, ownedLayers(layout));
    if (fault !== null) throw argumentError(`${path}.geometry`, fault.expected, fault.got, 'TICKET_INVALID');
    return { ...parsed, regions: [] };
  }
  if (layerCount === 0) return { buffers: [], layerStarts: [], regions: [] };
  const planes = (described.slices?.numOuter ?? 0) / layerCount;
  const derived =
    planes !== 1 && planes !== 2
      ? null
      : sliceBuffer(described.slices!, described.elementBytes, regions.length, [
          ['plane', planes],
          ['layer', layerCount],
          ['block', described.numBlocks],
          ['token', tokensPerBlock],
          ['head', described.headsPerPartition],
          ['dim', described.headDim],
        ]);
  if (derived === null) {
    throw argumentError(
      path,
      'a geometry, or slices of one row-major buffer [plane, layer, block, token, head, dim]',
      descriptor,
      'TICKET_INVALID',
    );
  }
  return { buffers: [derived.buffer], layerStarts: [layout.layerStart], regions: [derived.region] };
}

/** @throws `SSM_METADATA_INVALID` for the SSM layout, `TICKET_INVALID` for the rest */
export function parseSsmDescriptor(
  descriptor: Fields,
  path: string,
  kind: SsmStateKind,
  regions: readonly PeerRegion[],
  limits: TicketLimits,
): PeerSsmState {
  const described = parseBlocks(descriptor, path);
  // A slot is one state, whatever the prompt's length.
  integerField(descriptor, 'tokens_per_block', path, 1, 1);
  const layout = parseSsmLayout(descriptor, path);
  const { nheads, headdim, ngroups, dState } = layout.dims;
  const width = (kind === 'conv' ? nheads * headdim + 2 * ngroups * dState : nheads) / layout.tpSize;
  if (described.headsPerPartition !== width) {
    throw fieldError(
      path,
      'heads_per_partition',
      `${width}, as the layout implies`,
      described.headsPerPartition,
      'SSM_METADATA_INVALID',
    );
  }
  const split = kind === 'conv' ? 'channel' : 'head';
  if (layout.numLayers === 0) {
    return {
      ...described,
      layout,
      buffer: { region: 0, offsetBytes: 0, elementBytes: described.elementBytes, axes: [] },
      regions: [],
    };
  }
  if (own(descriptor, 'geometry') !== undefined) {
    const expected = {
      elementBytes: described.elementBytes,
      sizes: { slot: described.numBlocks, [split]: width },
      required: ['slot', split] as const,
      allowed: ['layer', 'slot', split, 'dim'] as const,
      layerStart: layout.layerStart,
      layerCount: layout.numLayers,
    };
    const { buffers } = parseBuffers(descriptor, path, expected, regions, limits);
    if (buffers.length !== 1)
      throw fieldError(path, 'geometry', 'one buffer', descriptor['geometry'], 'SSM_METADATA_INVALID');
    const buffer = buffers[0]!;
    const layers = buffer.axes.find(({ name }) => name === 'layer')?.size ?? 1;
    if (layers !== layout.numLayers) {
      throw fieldError(
        path,
        'geometry',
        `all ${layout.numLayers} layers in one buffer`,
        layers,
        'SSM_METADATA_INVALID',
      );
    }
    return { ...described, layout, buffer, regions: [] };
  }
  const derived =
    described.slices === null
      ? null
      : sliceBuffer(described.slices, described.elementBytes, regions.length, [
          ['layer', layout.numLayers],
          ['slot', described.numBlocks],
          [split, width],
          ['dim', described.headDim],
        ]);
  if (derived === null) {
    throw argumentError(
      path,
      `a geometry, or slices of one row-major buffer [layer, slot, ${split}, dim]`,
      descriptor,
      'SSM_METADATA_INVALID',
    );
  }
  return { ...described, layout, buffer: derived.buffer, regions: [derived.region] };
}

function parseBlocks(descriptor: Fields, path: string): DescribedBlocks {
  return {
    numBlocks: integerField(descriptor, 'num_blocks', path, 1, int32Max),
    elementBytes: integerField(descriptor, 'element_size', path, 1, elementBytesMax),
    headsPerPartition: integerField(descriptor, 'heads_per_partition', path, 1, int32Max),
    headDim: integerField(descriptor, 'head_dim', path, 1, int32Max),
    slices: parseSlices(descriptor, path),
  };
}

function parseSlices(descriptor: Fields, path: string): ReferenceSlices | null {
  const base = own(descriptor, 'base_addr');
  if (base === undefined) return null;
  return {
    baseAddress: uint64(base, `${path}.base_addr`),
    deviceId: integerField(descriptor, 'device_id', path, 0, int32Max),
    numOuter: integerField(descriptor, 'num_outer', path, 0, int32Max),
    outerStrideBytes: integerField(descriptor, 'outer_stride_bytes', path, 1, Number.MAX_SAFE_INTEGER),
    bytesPerSlice: integerField(descriptor, 'bytes_per_slice', path, 1, Number.MAX_SAFE_INTEGER),
    blocksAxis: integerField(descriptor, 'blocks_axis', path, 0, 16),
  };
}

function parseRegions(descriptor: Fields, path: string, limits: TicketLimits): readonly PeerRegion[] {
  if (own(descriptor, 'regions') === undefined) return [];
  return listField(descriptor, 'regions', path, limits.regionsMax).map((region, index) => {
    const at = `${path}.regions[${index}]`;
    if (!isRecord(region)) throw argumentError(at, 'a map', region, 'TICKET_INVALID');
    const kind = own(region, 'kind');
    if (kind !== 'host' && kind !== 'cuda')
      throw argumentError(`${at}.kind`, '"host" or "cuda"', kind, 'TICKET_INVALID');
    return { kind, byteLength: integerField(region, 'bytes', at, 0, Number.MAX_SAFE_INTEGER), baseAddress: null };
  });
}

function parseTransports(
  descriptor: Fields,
  path: string,
  limits: TicketLimits,
): Readonly<Record<string, TransportGrant>> {
  const transports: Record<string, TransportGrant> = {};
  if (own(descriptor, 'transports') === undefined) return transports;
  const grants = Object.entries(recordField(descriptor, 'transports', path));
  if (grants.length > limits.transportsMax) {
    throw argumentError(`${path}.transports`, `at most ${limits.transportsMax} transports`, grants, 'TICKET_INVALID');
  }
  for (const [name, grant] of grants) {
    if (name.length < 1 || name.length > limits.nameLengthMax) {
      throw argumentError(
        `${path}.transports`,
        `names of 1 to ${limits.nameLengthMax} characters`,
        name,
        'TICKET_INVALID',
      );
    }
    // Opaque here: the transport of that name checks it in `connect`.
    setOwn(transports, name, grant);
  }
  return transports;
}
