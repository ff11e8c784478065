/**
 * A peer's buffers as named axes: read from our `geometry` extension, or made from the reference's slices. Every axis is
 * compared with what the rest of the descriptor says, and every buffer lies inside its region.
 */
import { argumentError } from '../errors.js';
import { isRecord } from '../json.js';
import { fieldError, integerField, listField, optionalStringField, own, type Fields } from '../json-fields.js';
import { elementBytesMax, int32Max, type TicketLimits } from '../limits.js';
import { bufferEnd, defaultContent, type Axis, type AxisName, type BufferGeometry } from '../memory/axes-geometry.js';
import type { PeerRegion, ReferenceSlices } from './rank-descriptor.js';

/** K and V. */
const planesMax = 2;

/** What a buffer must agree with. */
export interface ExpectedBuffer {
  readonly elementBytes: number;
  /** Sizes that are known beforehand. */
  readonly sizes: Readonly<Partial<Record<AxisName, number>>>;
  readonly required: readonly AxisName[];
  readonly allowed: readonly AxisName[];
  /** Global layers of the rank. */
  readonly layerStart: number;
  readonly layerCount: number;
}

/** @throws `TICKET_INVALID` */
export function parseBuffers(
  descriptor: Fields,
  path: string,
  expected: ExpectedBuffer,
  regions: readonly PeerRegion[],
  limits: TicketLimits,
): { readonly buffers: readonly BufferGeometry[]; readonly layerStarts: readonly number[] } {
  const buffers: BufferGeometry[] = [];
  const layerStarts: number[] = [];
  for (const [index, value] of listField(descriptor, 'geometry', path, limits.buffersMax).entries()) {
    const at = `${path}.geometry[${index}]`;
    if (!isRecord(value)) throw argumentError(at, 'a map', value, 'TICKET_INVALID');
    const content = optionalStringField(value, 'content', at, limits.nameLengthMax) ?? undefined;
    const isData = content === undefined || content === defaultContent;
    const [least, most] = isData ? [expected.elementBytes, expected.elementBytes] : [1, elementBytesMax];
    const elementBytes = integerField(value, 'element_size', at, least, most);
    const region = integerField(value, 'region', at, 0, regions.length - 1);
    const offsetBytes = integerField(value, 'offset_bytes', at, 0, Number.MAX_SAFE_INTEGER);
    const axes = parseAxes(value, at, expected, isData);
    const end = bufferEnd({ region, offsetBytes, elementBytes, axes });
    const { byteLength } = regions[region]!;
    if (end > byteLength) {
      throw argumentError(at, `a buffer inside the ${byteLength} bytes of region ${region}`, end, 'TICKET_INVALID');
    }
    const layers = axes.find(({ name }) => name === 'layer')?.size ?? 1;
    const layerEnd = expected.layerStart + expected.layerCount;
    const layerStart = integerField(value, 'layer_start', at, expected.layerStart, layerEnd - layers);
    const planes = axes.find(({ name }) => name === 'plane')?.size ?? 1;
    const planeStart = Object.hasOwn(value, 'plane_start')
      ? integerField(value, 'plane_start', at, 0, Math.max(planesMax - planes, 0))
      : undefined;
    buffers.push({
      ...{ region, offsetBytes, elementBytes, axes },
      ...(planeStart === undefined ? {} : { planeStart }),
      ...(content === undefined ? {} : { content }),
    });
    layerStarts.push(layerStart);
  }
  return { buffers, layerStarts };
}

function parseAxes(buffer: Fields, path: string, expected: ExpectedBuffer, isData: boolean): Axis[] {
  const axes: Axis[] = [];
  for (const [index, value] of listField(buffer, 'axes', path, expected.allowed.length).entries()) {
    const at = `${path}.axes[${index}]`;
    if (!Array.isArray(value) || value.length !== 3) {
      throw argumentError(at, '[name, size, stride in bytes]', value, 'TICKET_INVALID');
    }
    const [name, size, strideBytes] = value as [unknown, unknown, unknown];
    const known = expected.allowed.find((allowed) => allowed === name);
    if (known === undefined || axes.some((axis) => axis.name === known)) {
      throw argumentError(`${at}[0]`, `each of ${expected.allowed.join(', ')} at most once`, name, 'TICKET_INVALID');
    }
    // What lies beside the data has its own shape but for blocks, tokens and heads; one value may stand for several.
    const isOwn = !isData && known === 'dim';
    const wanted = isOwn ? undefined : isData || size !== 1 ? expected.sizes[known] : 1;
    if (!isCount(size, int32Max) || (wanted !== undefined && size !== wanted)) {
      throw argumentError(
        `${at}[1]`,
        wanted === undefined ? `a size in [1, ${int32Max}]` : `${wanted}`,
        size,
        'TICKET_INVALID',
      );
    }
    if (!isCount(strideBytes, Number.MAX_SAFE_INTEGER)) {
      throw argumentError(`${at}[2]`, 'a stride of 1 byte or more', strideBytes, 'TICKET_INVALID');
    }
    axes.push({ name: known, size, strideBytes });
  }
  for (const name of expected.required) {
    if (!axes.some((axis) => axis.name === name))
      throw fieldError(path, 'axes', `an axis named ${name}`, own(buffer, 'axes'), 'TICKET_INVALID');
  }
  // Data that leaves out more than one index would come without the rest of it.
  for (const [name, size] of Object.entries(isData ? expected.sizes : {})) {
    if (size > 1 && !axes.some((axis) => axis.name === name))
      throw fieldError(path, 'axes', `an axis named ${name} of ${size}`, own(buffer, 'axes'), 'TICKET_INVALID');
  }
  return axes;
}

function isCount(value: unknown, max: number): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 1 && value <= max;
}

/**
 * The row-major buffer that slices describe, in a region of its own with index `region`; null when the slices do not fit
 * these axes or their bytes would pass the end of the address space.
 */
export function sliceBuffer(
  slices: ReferenceSlices,
  elementBytes: number,
  region: number,
  sizes: readonly (readonly [AxisName, number])[],
): { readonly buffer: BufferGeometry; readonly region: PeerRegion } | null {
  const axes: Axis[] = [];
  let strideBytes = elementBytes;
  for (const [name, size] of [...sizes].reverse()) {
    if (name === 'block' || name === 'slot') {
      if (strideBytes !== slices.bytesPerSlice || strideBytes * size !== slices.outerStrideBytes) return null;
    }
    axes.unshift({ name, size, strideBytes });
    strideBytes *= size;
  }
  const byteLength = strideBytes;
  if (!Number.isSafeInteger(byteLength) || slices.baseAddress + BigInt(byteLength) > 1n << 64n) return null;
  if (byteLength !== slices.numOuter * slices.outerStrideBytes) return null;
  return {
    buffer: { region, offsetBytes: 0, elementBytes, axes },
    region: { kind: 'cuda', byteLength, baseAddress: slices.baseAddress },
  };
}
