/** The middle one of what was measured, the upper of two; the measurements stay in their order. */
export function median(values: readonly number[]): number {
  return [...values].sort((left, right) => left - right)[values.length >> 1] as number;
}
