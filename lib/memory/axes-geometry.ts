/**
 * How an engine's buffer is laid out: named axes with sizes and byte strides, in any order.
 *
 * KV buffers use `plane` (K = 0, V = 1), `layer`, `block`, `token`, `head`, `dim`; conv state `layer`, `slot`,
 * `channel`, `dim` (conv width); recurrent state `layer`, `slot`, `head`, `dim` (headdim * d_state).
 */
export type AxisName = 'plane' | 'layer' | 'block' | 'token' | 'head' | 'dim' | 'slot' | 'channel';

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
  readonly axes: readonly Axis[];
}
