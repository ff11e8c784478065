/**
 * One instance's counters, histograms and load as Prometheus families (spec 13.6). Names and help texts only: what they
 * count is counted by `Metrics` and `load()`.
 */
import { isHandoffError } from '../errors.js';
import type { StateHandoff } from '../state-handoff.js';
import type { Load } from './inspection.js';
import type { HistogramSnapshot, MetricsSnapshot } from './metrics.js';
import {
  registerFamilies,
  type Family,
  type PrometheusLabels,
  type PrometheusRegistry,
  type Sample,
} from './prometheus.js';

interface Observed {
  readonly metrics: MetricsSnapshot;
  readonly load: Load;
  readonly quarantined: number;
  readonly pinAgesMs: readonly number[];
}

/** How an instance's metrics are shown. */
export interface HandoffMetricsOptions {
  /** Before every name. Default `state_handoff_`. */
  readonly prefix?: string;
}

/**
 * Shows what `handoff` counts, and how loaded it is, in a prom-client registry; nothing is done between scrapes. Samples
 * have the labels `role`, `instance` and `rank`. Both sides; call it after `setupKvTransfer`. Until then, and once the
 * handoff is closed, its families are empty.
 *
 * @param registry - prom-client's `Registry`; a scrape reads each number where it is kept
 * @throws Error of the registry, when a name is taken in it: give each instance of one process a registry of its own
 */
export function registerHandoffMetrics(
  handoff: StateHandoff,
  registry: PrometheusRegistry,
  { prefix = 'state_handoff_' }: HandoffMetricsOptions = {},
): void {
  registerFamilies(registry, prefix, families, () => observe(handoff));
}

function observe(handoff: StateHandoff): Observed | null {
  try {
    const { quarantine, pins } = handoff.inspect();
    const pinAgesMs = pins.map(({ ageMs }) => ageMs);
    return { metrics: handoff.metrics(), load: handoff.load(), quarantined: quarantine.length, pinAgesMs };
  } catch (error) {
    // Not set up, or closed: nothing to show.
    if (isHandoffError(error)) return null;
    throw error;
  }
}

type Source = Observed | null;

const counter = (
  help: string,
  name: string,
  labelled?: { readonly label: string; readonly values: readonly string[] },
): Family<Source> => ({
  type: 'counter',
  help,
  read: samples(({ metrics: { counters } }) =>
    labelled === undefined
      ? [{ value: counters[`${name}_total`] ?? 0 }]
      : labelled.values.map((value) => ({
          labels: { [labelled.label]: value },
          value: counters[`${name}_${value}_total`] ?? 0,
        })),
  ),
});

const gauge = (help: string, read: (observed: Observed) => readonly Sample<number>[]): Family<Source> => ({
  type: 'gauge',
  help,
  read: samples(read),
});

const histogram = (
  help: string,
  read: (observed: Observed) => readonly Sample<HistogramSnapshot>[],
): Family<Source> => ({ type: 'histogram', help, read: samples(read) });

/** With the labels that all samples of an instance have. */
function samples<Value>(read: (observed: Observed) => readonly Sample<Value>[]) {
  return (observed: Source): readonly Sample<Value>[] => {
    if (observed === null) return [];
    const { role, instance, rank } = observed.metrics.labels;
    return read(observed).map(({ labels, value }) => ({ labels: { role, instance, rank, ...labels }, value }));
  };
}

const byTransport = (histograms: Readonly<Record<string, HistogramSnapshot>>): readonly Sample<HistogramSnapshot>[] =>
  Object.entries(histograms).map(([transport, value]) => ({ labels: { transport }, value }));

const inState = (states: Readonly<Record<string, number>>, label = 'state'): readonly Sample<number>[] =>
  Object.entries(states).map(([state, value]) => ({ labels: { [label]: state } satisfies PrometheusLabels, value }));

const families: Readonly<Record<string, Family<Source>>> = {
  kv_imports_total: counter('Imports by how they ended; each ends once', 'imports', {
    label: 'outcome',
    values: ['completed', 'failed', 'aborted', 'refused'],
  }),
  kv_imports_quarantined_total: counter(
    'Imports whose memory could still be written when they ended',
    'imports_quarantined',
  ),
  kv_pins_total: counter('Handoffs pinned', 'pins'),
  kv_pins_ended_total: counter('Pins by how they ended', 'pins', {
    label: 'outcome',
    values: ['released', 'expired', 'attested'],
  }),
  kv_pins_overdue_total: counter('Pins that outlived their limit and may not end by it', 'pins_overdue'),
  kv_transfer_seconds: histogram('Time of a transfer, from its start until it was quiet', ({ metrics }) =>
    byTransport(metrics.transferSeconds),
  ),
  kv_transfer_bytes: histogram('Bytes of a transfer', ({ metrics }) => byTransport(metrics.transferBytes)),
  kv_import_queue_time_seconds: histogram('Time that an import waited for room', ({ metrics }) => [
    { value: metrics.queueSeconds },
  ]),
  kv_pin_age_seconds: histogram('Age of a pin when it ended', ({ metrics }) => [{ value: metrics.pinSeconds }]),
  num_requests_running: gauge('Decode: imports between reservation and admission; prefill: pins', ({ load }) => [
    { value: load.active },
  ]),
  num_requests_waiting: gauge('Decode: imports that wait for room; prefill: permits not used yet', ({ load }) => [
    { value: load.queued },
  ]),
  kv_blocks: gauge(
    'Blocks of the pool; states overlap: quarantined, pinned and reserved ones are not free',
    ({ load }) =>
      inState({
        usable: load.blocksUsable,
        free: load.blocksFree,
        evictable: load.blocksEvictable,
        pinned: load.blocksPinned,
        quarantined: load.blocksQuarantined,
        reserved: load.blocksReserved,
      }),
  ),
  kv_cache_usage_perc: gauge('Share of usable blocks that are neither free nor evictable, 0 to 1', ({ load }) => [
    { value: load.blocksUsable === 0 ? 0 : 1 - (load.blocksFree + load.blocksEvictable) / load.blocksUsable },
  ]),
  ssm_slots: gauge('SSM slots of a hybrid model', ({ load }) =>
    load.slotsTotal === null ? [] : inState({ free: load.slotsFree ?? 0, total: load.slotsTotal }),
  ),
  kv_imports_in_quarantine: gauge('Imports whose memory may still be written', ({ quarantined }) => [
    { value: quarantined },
  ]),
  kv_pin_oldest_age_seconds: gauge('Age of the oldest pin; 0 without one', ({ pinAgesMs }) => [
    { value: Math.max(0, ...pinAgesMs) / 1000 },
  ]),
};
