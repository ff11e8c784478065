/** `state-handoff/metrics`: what an instance counts, in a prom-client registry. Loads no package of its own. */
export { registerHandoffMetrics, type HandoffMetricsOptions } from './observe/handoff-metrics.js';
export type { PrometheusRegistry } from './observe/prometheus.js';
