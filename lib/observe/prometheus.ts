/**
 * Numbers that are kept elsewhere, shown to a prom-client registry: each family is read when it is scraped, so nothing is
 * counted twice and nothing is done between scrapes. Loads no package: the caller's registry is all that it needs.
 */
import type { HistogramSnapshot } from './metrics.js';

/** What is used of prom-client's `Registry` (15.1). */
export interface PrometheusRegistry {
  /** Takes in a metric under its name; throws when the name is taken. */
  registerMetric(metric: never): void;
}

/** Labels of one sample, under their Prometheus names. */
export type PrometheusLabels = Readonly<Record<string, string | number>>;

/** One sample of a family. */
export interface Sample<Value> {
  readonly labels?: PrometheusLabels;
  readonly value: Value;
}

/** What a family is: its help text, and how its samples are read from a source. */
export type Family<Source> = { readonly help: string } & (
  | { readonly type: 'counter' | 'gauge'; readonly read: (source: Source) => readonly Sample<number>[] }
  | { readonly type: 'histogram'; readonly read: (source: Source) => readonly Sample<HistogramSnapshot>[] }
);

interface Value {
  readonly labels: PrometheusLabels;
  readonly value: number;
  readonly metricName?: string;
}

/**
 * Registers families under `prefix` and their names.
 *
 * @param source - called once for all families of one scrape
 * @throws Error of the registry, when one of the names is taken in it
 */
export function registerFamilies<Source>(
  registry: PrometheusRegistry,
  prefix: string,
  families: Readonly<Record<string, Family<Source>>>,
  source: () => Source,
): void {
  let current: Source | null = null;
  const once = (): Source => {
    if (current === null) {
      current = source();
      // A scrape asks for all families in one turn of the loop.
      queueMicrotask(() => (current = null));
    }
    return current;
  };
  for (const [name, family] of Object.entries(families))
    registry.registerMetric(new FamilyMetric(`${prefix}${name}`, family, once) as never);
}

/** Has the form of a prom-client metric. */
class FamilyMetric<Source> {
  readonly help: string;
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly aggregator = 'sum';

  constructor(
    /** The registry renames counters in the OpenMetrics format. */
    public name: string,
    private readonly family: Family<Source>,
    private readonly source: () => Source,
  ) {
    this.help = family.help;
    this.type = family.type;
  }

  get(): Promise<{ name: string; help: string; type: string; aggregator: string; values: readonly Value[] }> {
    const { name, help, type, aggregator, family } = this;
    const source = this.source();
    const values =
      family.type === 'histogram'
        ? family.read(source).flatMap((sample) => bucketsOf(name, sample))
        : family.read(source).map(({ labels = {}, value }) => ({ labels, value }));
    return Promise.resolve({ name, help, type, aggregator, values });
  }

  /** The numbers are not ours to reset. */
  reset(): void {
    return;
  }
}

function bucketsOf(name: string, { labels = {}, value: { bounds, counts, sum, count } }: Sample<HistogramSnapshot>) {
  let below = 0;
  const buckets = [...bounds.map(String), '+Inf'].map((le, index) => {
    below += counts[index] as number;
    return { metricName: `${name}_bucket`, labels: { le, ...labels }, value: below };
  });
  return [
    ...buckets,
    { metricName: `${name}_sum`, labels, value: sum },
    { metricName: `${name}_count`, labels, value: count },
  ];
}
