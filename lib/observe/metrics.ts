/**
 * Counters and histograms of one instance, kept as plain numbers; exporters read `snapshot()`.
 *
 * Every terminal path of a request moves exactly one of the `outcome` counters, so their sum is the number of requests.
 */

/** Ends of an import: refused before it was queued, or one of the others. */
export type ImportOutcome = 'completed' | 'failed' | 'aborted' | 'refused';
/** Ends of a pin. */
export type PinOutcome = 'released' | 'expired' | 'attested';

/** One histogram at one moment. */
export interface HistogramSnapshot {
  /** Upper bounds; counts has one more entry, for what is above the last. */
  readonly bounds: readonly number[];
  readonly counts: readonly number[];
  readonly sum: number;
  readonly count: number;
}

/** All counters and histograms at one moment. */
export interface MetricsSnapshot {
  readonly labels: { readonly role: string; readonly instance: string; readonly rank: number };
  readonly counters: Readonly<Record<string, number>>;
  /** By transport name. */
  readonly transferSeconds: Readonly<Record<string, HistogramSnapshot>>;
  readonly transferBytes: Readonly<Record<string, HistogramSnapshot>>;
  readonly queueSeconds: HistogramSnapshot;
  readonly pinSeconds: HistogramSnapshot;
}

const secondsBounds = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300];
const bytesBounds = [12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34].map((power) => 2 ** power);

/** Fixed buckets, no allocation on the hot path. */
export class Histogram {
  private readonly counts: Float64Array;
  private sum = 0;
  private count = 0;

  /** @param bounds - upper bounds, ascending */
  constructor(private readonly bounds: readonly number[]) {
    this.counts = new Float64Array(bounds.length + 1);
  }

  /** @param times - how often the value was seen */
  observe(value: number, times = 1): void {
    let index = 0;
    while (index < this.bounds.length && value > (this.bounds[index] as number)) index += 1;
    this.counts[index] = (this.counts[index] as number) + times;
    this.sum += value * times;
    this.count += times;
  }

  snapshot(): HistogramSnapshot {
    return { bounds: this.bounds, counts: [...this.counts], sum: this.sum, count: this.count };
  }
}

export class Metrics {
  private readonly counters = new Map<string, number>();
  private readonly transferSeconds = new Map<string, Histogram>();
  private readonly transferBytes = new Map<string, Histogram>();
  readonly queueSeconds = new Histogram(secondsBounds);
  readonly pinSeconds = new Histogram(secondsBounds);

  constructor(readonly labels: MetricsSnapshot['labels']) {}

  count(name: string, by = 1): void {
    this.counters.set(name, (this.counters.get(name) ?? 0) + by);
  }

  value(name: string): number {
    return this.counters.get(name) ?? 0;
  }

  importOutcome(outcome: ImportOutcome): void {
    this.count(`imports_${outcome}_total`);
  }

  pinOutcome(outcome: PinOutcome, ageMs: number): void {
    this.count(`pins_${outcome}_total`);
    this.pinSeconds.observe(ageMs / 1000);
  }

  transfer(transport: string, seconds: number, bytes: number): void {
    histogram(this.transferSeconds, transport, secondsBounds).observe(seconds);
    histogram(this.transferBytes, transport, bytesBounds).observe(bytes);
  }

  snapshot(): MetricsSnapshot {
    const all = (map: Map<string, Histogram>): Record<string, HistogramSnapshot> =>
      Object.fromEntries([...map].map(([name, histogram]) => [name, histogram.snapshot()]));
    return {
      labels: this.labels,
      counters: Object.fromEntries(this.counters),
      transferSeconds: all(this.transferSeconds),
      transferBytes: all(this.transferBytes),
      queueSeconds: this.queueSeconds.snapshot(),
      pinSeconds: this.pinSeconds.snapshot(),
    };
  }
}

function histogram(map: Map<string, Histogram>, name: string, bounds: readonly number[]): Histogram {
  let found = map.get(name);
  if (found === undefined) {
    found = new Histogram(bounds);
    map.set(name, found);
  }
  return found;
}
