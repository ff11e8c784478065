/** Half-open ranges of layers, heads and channels, as ownership is told by them. Empty ranges are ranges too. */

/** Indices `from … to - 1`. */
export interface IndexRange {
  readonly from: number;
  readonly to: number;
}

/** What both hold, or null for nothing. */
export function intersection(a: IndexRange, b: IndexRange): IndexRange | null {
  const from = Math.max(a.from, b.from);
  const to = Math.min(a.to, b.to);
  return from < to ? { from, to } : null;
}

export function rangeSize({ from, to }: IndexRange): number {
  return to - from;
}

/** The same indices, counted from `origin`. */
export function relativeTo({ from, to }: IndexRange, origin: number): IndexRange {
  return { from: from - origin, to: to - origin };
}
