/**
 * How an engine's buffer is laid out: named axes with sizes and byte strides, in any order.
 *
 * KV buffers use `plane` (K = 0, V = 1), `layer`, `block`, `token`, `head`, `dim`; conv state `layer`, `slot`,
 * `channel`, `dim` (conv width); recurrent state `layer`, `slot`, `head`, `dim` (headdim * d_state).
 */
import { requireList, requireObject, requireText } from '../argument-shape.js';
import { argumentError } from '../errors.js';
import { requireInteger } from './integer-field.js';

/** What an axis of a buffer counts: K and V, layers, blocks, tokens of a block, KV heads, elements of a head; for SSM state also slots and channels. */
export type AxisName = 'plane' | 'layer' | 'block' | 'token' | 'head' | 'dim' | 'slot' | 'channel';

const axisNames: ReadonlySet<unknown> = new Set<AxisName>([
  ...(['plane', 'layer', 'block', 'token', 'head', 'dim', 'slot', 'channel'] as const),
]);

/** What a buffer holds when it does not say. */
export const defaultContent = 'kv';

/** One axis of a buffer. */
export interface Axis {
  readonly name: AxisName;
  readonly size: number;
  /** Bytes from one index to the next. */
  readonly strideBytes: number;
}

/** One engine buffer inside one registered region. */
export interface BufferGeometry {
  /** Index of the region in `EngineContext.regions`. */
  readonly region: number;
  readonly offsetBytes: number;
  readonly elementBytes: number;
  /** An axis of one index may be left out. */
  readonly axes: readonly Axis[];
  /** Attention: the first plane that this buffer holds; 1 for a buffer of V alone. Default 0. */
  readonly planeStart?: number;
  /**
   * What the buffer holds where a rank has buffers of several kinds: `scale` beside quantised data, `rope` beside a
   * latent. Only buffers of the same content are copied to each other. Default `kv`.
   */
  readonly content?: string;
}

/** What {@link rowMajorBuffer} lays out. */
export interface RowMajorInput {
  /** Default 0, as is the offset. */
  readonly region?: number;
  readonly offsetBytes?: number;
  readonly elementBytes: number;
  /** Outermost first, in any order of names. */
  readonly axes: readonly (readonly [name: AxisName, size: number])[];
  /** Bytes left free after all that lies inside one index of an axis: a padded row, a block rounded up. */
  readonly paddingBytes?: Readonly<Partial<Record<AxisName, number>>>;
  readonly planeStart?: number;
  readonly content?: string;
}

/**
 * A buffer whose axes nest in the order of the list, without gaps but for the padding that is asked for.
 *
 * @throws `ARGUMENT_INVALID` naming the axis for a size below 1, a negative padding or a name twice
 */
export function rowMajorBuffer(input: RowMajorInput): BufferGeometry {
  requireObject('input', input);
  const { region = 0, offsetBytes = 0, elementBytes, paddingBytes = {}, planeStart, content } = input;
  requireInteger('region', region, 0);
  requireInteger('offsetBytes', offsetBytes, 0);
  requireInteger('elementBytes', elementBytes, 1);
  requireList('axes', input.axes, 'a list of [name, size]');
  requireObject('paddingBytes', paddingBytes);
  input.axes.forEach((axis: unknown, index) => {
    requireList(`axes[${index}]`, axis, 'a [name, size]');
    requireAxisName(`axes[${index}][0]`, axis[0]);
  });
  const axes: Axis[] = [];
  let strideBytes = elementBytes;
  for (const [name, size] of [...input.axes].reverse()) {
    requireInteger(`axes.${name}.size`, size, 1);
    requireInteger(`paddingBytes.${name}`, paddingBytes[name] ?? 0, 0);
    if (axes.some((axis) => axis.name === name)) throw argumentError(`axes.${name}`, 'each axis once', name);
    strideBytes += paddingBytes[name] ?? 0;
    axes.unshift({ name, size, strideBytes });
    strideBytes *= size;
  }
  return {
    ...{ region, offsetBytes, elementBytes, axes },
    ...(planeStart === undefined ? {} : { planeStart }),
    ...(content === undefined ? {} : { content }),
  };
}

/** @throws `ARGUMENT_INVALID` naming the field below `path` that no buffer has */
export function requireGeometry(path: string, geometry: BufferGeometry): void {
  requireObject(path, geometry);
  requireInteger(`${path}.region`, geometry.region, 0);
  requireInteger(`${path}.offsetBytes`, geometry.offsetBytes, 0);
  requireInteger(`${path}.elementBytes`, geometry.elementBytes, 1);
  requireList(`${path}.axes`, geometry.axes, 'a list of axes');
  geometry.axes.forEach((axis, index) => {
    requireObject(`${path}.axes[${index}]`, axis);
    requireAxisName(`${path}.axes[${index}].name`, axis.name);
    requireInteger(`${path}.axes[${index}].size`, axis.size, 1);
    requireInteger(`${path}.axes[${index}].strideBytes`, axis.strideBytes, 0);
  });
  if (geometry.planeStart !== undefined) requireInteger(`${path}.planeStart`, geometry.planeStart, 0);
  if (geometry.content !== undefined) requireText(`${path}.content`, geometry.content);
}

function requireAxisName(path: string, name: unknown): void {
  if (!axisNames.has(name)) throw argumentError(path, `one of ${[...axisNames].join(', ')}`, name);
}

/** One past the last byte of a buffer, in its region. */
export function bufferEnd({ offsetBytes, elementBytes, axes }: BufferGeometry): number {
  return axes.reduce((end, { size, strideBytes }) => end + (size - 1) * strideBytes, offsetBytes + elementBytes);
}

/** Indices of an axis; 1 where a buffer leaves it out. */
export function axisSize({ axes }: BufferGeometry, name: AxisName): number {
  return axes.find((axis) => axis.name === name)?.size ?? 1;
}
