/**
 * A registered buffer as float32 numbers, addressed by its named axes. The engine never assumes an order of axes: it
 * multiplies indices by strides, so every layout that the SDK can describe is computed on in place.
 */
import type { AxisName, BufferGeometry, Region } from 'state-handoff';
import { badInput } from './bad-input.js';

export class BufferView {
  /** All numbers of the region. */
  readonly numbers: Float32Array;
  /** Index of the buffer's first number. */
  readonly base: number;
  private readonly geometry: BufferGeometry;

  /** @throws `ENGINE_CONTEXT_INVALID` when the buffer is not float32 in host memory, or does not lie in its region */
  constructor(
    private readonly field: string,
    geometry: BufferGeometry,
    regions: readonly Region[],
  ) {
    const buffer = regions[geometry.region]?.buffer ?? null;
    if (buffer === null) throw this.invalid('region', 'the index of a host region', geometry.region);
    if (geometry.elementBytes !== 4) throw this.invalid('elementBytes', '4 (float32)', geometry.elementBytes);
    this.geometry = geometry;
    this.numbers = new Float32Array(buffer, 0, Math.floor(buffer.byteLength / 4));
    this.base = this.numbersIn('offsetBytes', geometry.offsetBytes);
    // A stage without such a layer has a buffer of no numbers.
    const isEmpty = geometry.axes.some(({ size }) => size === 0);
    const extents = geometry.axes.map(({ name, size }) => (size - 1) * this.stride(name));
    const last = isEmpty ? 0 : extents.reduce((sum, extent) => sum + extent, this.base);
    if (last >= this.numbers.length) {
      throw this.invalid('axes', `an extent of at most ${this.numbers.length} numbers`, last + 1);
    }
  }

  /** Numbers from one index of `name` to the next. An axis that the buffer lacks has size 1. */
  stride(name: AxisName): number {
    const axis = this.geometry.axes.find((candidate) => candidate.name === name);
    return axis === undefined ? 0 : this.numbersIn(`axes.${name}.strideBytes`, axis.strideBytes);
  }

  size(name: AxisName): number {
    return this.geometry.axes.find((candidate) => candidate.name === name)?.size ?? 1;
  }

  requireSize(name: AxisName, expected: number): void {
    if (this.size(name) !== expected) throw this.invalid(`axes.${name}.size`, String(expected), this.size(name));
  }

  private numbersIn(part: string, bytes: number): number {
    if (!Number.isInteger(bytes / 4) || bytes < 0) throw this.invalid(part, 'a multiple of 4 bytes', bytes);
    return bytes / 4;
  }

  private invalid(part: string, expected: string, got: unknown): Error {
    return badInput(`${this.field}.${part}`, expected, got, 'ENGINE_CONTEXT_INVALID');
  }
}
