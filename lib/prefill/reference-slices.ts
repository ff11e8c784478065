/**
 * A buffer in the reference's words (spec 1.5.1): slices of a row-major buffer around its block axis. What those words
 * cannot say is refused, with the axis that is in the way.
 */
import { argumentError } from '../errors.js';
import type { WireObject } from '../json.js';
import type { AxisName, BufferGeometry } from '../memory/axes-geometry.js';

/** Where a buffer begins for a peer that reads by address. */
export interface BufferPlace {
  readonly baseAddress: bigint;
  /** CUDA ordinal; 0 for host memory. */
  readonly deviceId: number;
}

/**
 * `base_addr`, `outer_stride_bytes`, `device_id`, `num_outer`, `bytes_per_slice` and `blocks_axis` of a buffer whose
 * axes lie in the order `names`, outermost first, without gaps.
 *
 * @throws `ENGINE_CONTEXT_INVALID` naming the axis
 */
export function referenceSlices(
  buffer: BufferGeometry,
  names: readonly AxisName[],
  path: string,
  place: BufferPlace,
): WireObject {
  const code = 'ENGINE_CONTEXT_INVALID';
  for (const axis of buffer.axes) {
    if (!names.includes(axis.name))
      throw argumentError(`${path}.axes.${axis.name}`, `axes ${names.join(', ')} only`, axis.name, code);
  }
  let strideBytes = buffer.elementBytes;
  let bytesPerSlice = 0;
  let outerStrideBytes = 0;
  let numOuter = 1;
  for (let index = names.length - 1; index >= 0; index--) {
    const name = names[index]!;
    const axis = buffer.axes.find((each) => each.name === name);
    if (axis === undefined) {
      // An axis of one index may be left out; a latent without heads has none to name.
      if (name !== 'block' && name !== 'slot') continue;
      throw argumentError(`${path}.axes.${name}`, 'an axis of that name', undefined, code);
    }
    if (axis.size > 1 && axis.strideBytes !== strideBytes) {
      throw argumentError(
        `${path}.axes.${name}.strideBytes`,
        `${strideBytes}, as in a row-major buffer`,
        axis.strideBytes,
        code,
      );
    }
    if (name === 'block' || name === 'slot') {
      bytesPerSlice = strideBytes;
      outerStrideBytes = strideBytes * axis.size;
    } else if (bytesPerSlice !== 0) {
      numOuter *= axis.size;
    }
    strideBytes *= axis.size;
  }
  return {
    base_addr: place.baseAddress,
    outer_stride_bytes: outerStrideBytes,
    device_id: place.deviceId,
    num_outer: numOuter,
    bytes_per_slice: bytesPerSlice,
    blocks_axis: names.findIndex((name) => name === 'block' || name === 'slot'),
  };
}
