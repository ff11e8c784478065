/**
 * A coordinator's counters, gauges and histograms as Prometheus families, under names that operators of vLLM and Dynamo
 * know. Names and help texts only: the core, the server and the engines count.
 */
import type { HistogramSnapshot } from '../../observe/metrics.js';
import { registerFamilies, type Family, type PrometheusRegistry, type Sample } from '../../observe/prometheus.js';
import type { Coordinator } from '../coordinator/coordinator.js';
import type { CoordinatorSnapshot, EngineSnapshot } from '../coordinator/interface.js';
import type { RequestTimingsSnapshot } from '../coordinator/request-timings.js';
import type { CoordinatorServer, WireCounters } from './coordinator-server.js';
import { shown } from './shell-status.js';

interface Observed {
  readonly core: CoordinatorSnapshot;
  readonly timings: RequestTimingsSnapshot;
  readonly wire: WireCounters;
  readonly silent: ReadonlySet<string>;
}

/**
 * Shows how a coordinator is in a prom-client registry, every name with the prefix `state_handoff_`; nothing is done
 * between scrapes.
 *
 * @param coordinator - the core that `server` was started with
 * @param registry - prom-client's `Registry`, one a coordinator
 * @throws Error of the registry, when a name is taken in it
 */
export function registerCoordinatorMetrics(
  server: CoordinatorServer,
  coordinator: Coordinator,
  registry: PrometheusRegistry,
): void {
  registerFamilies(registry, 'state_handoff_', families, () => {
    const core = server.snapshot();
    const silent = new Set(core.engines.map(({ peer }) => peer).filter((peer) => server.isSilent(peer)));
    return { core, timings: coordinator.timings(), wire: server.wire, silent };
  });
}

const counters = (
  help: string,
  read: (observed: Observed) => number | readonly Sample<number>[],
): Family<Observed> => ({ type: 'counter', help, read: (observed) => listed(read(observed)) });

const gauge = (help: string, read: (observed: Observed) => number | readonly Sample<number>[]): Family<Observed> => ({
  type: 'gauge',
  help,
  read: (observed) => listed(read(observed)),
});

const histogram = (
  help: string,
  read: (timings: RequestTimingsSnapshot) => readonly Sample<HistogramSnapshot>[],
): Family<Observed> => ({ type: 'histogram', help, read: ({ timings }) => read(timings) });

const ofEngine = (
  help: string,
  read: (engine: EngineSnapshot, observed: Observed) => number | null,
): Family<Observed> =>
  gauge(help, (observed) =>
    observed.core.engines.flatMap((engine) => {
      const value = read(engine, observed);
      return value === null ? [] : [{ labels: { engine: shown(engine.peer), role: engine.role }, value }];
    }),
  );

function listed(value: number | readonly Sample<number>[]): readonly Sample<number>[] {
  return typeof value === 'number' ? [{ value }] : value;
}

const by = (label: string, values: Readonly<Record<string, number>>): readonly Sample<number>[] =>
  Object.entries(values).map(([name, value]) => ({ labels: { [label]: name }, value }));

const grouped = <Item>(
  label: string,
  items: readonly Item[],
  nameOf: (item: Item) => string,
  join: (before: number, item: Item) => number,
): readonly Sample<number>[] => {
  const groups = new Map<string, number>();
  for (const item of items) groups.set(nameOf(item), join(groups.get(nameOf(item)) ?? 0, item));
  return by(label, Object.fromEntries(groups));
};

const counted = (core: CoordinatorSnapshot, name: string): number => core.counters[name] ?? 0;

/** Blocks by state, as an engine reported them last. */
const blockStates: Readonly<Record<string, string>> = {
  usable: 'blocks_usable',
  free: 'blocks_free',
  evictable: 'blocks_evictable',
  pinned: 'blocks_pinned',
  quarantined: 'blocks_quarantined',
};

const families: Readonly<Record<string, Family<Observed>>> = {
  requests_total: counters('Requests by how they ended', ({ core }) =>
    by('outcome', {
      completed: counted(core, 'completed'),
      failed: counted(core, 'failed'),
      aborted: counted(core, 'aborted'),
      refused: counted(core, 'refused'),
    }),
  ),
  requests_submitted_total: counters('Requests that were taken in', ({ core }) => counted(core, 'submitted')),
  requests_confirmed_safe_total: counters('Failed requests whose source turned out safe later', ({ core }) =>
    counted(core, 'confirmed'),
  ),
  inflight_requests: gauge('Requests at an engine, by phase; terminating: told to stop, or in doubt', ({ core }) =>
    by('phase', {
      prefill: core.requests.prefill,
      decode: core.requests.decode,
      terminating: core.requests.terminating,
    }),
  ),
  queued_requests: gauge('Requests that wait for room, by the role they wait for', ({ core }) =>
    by('role', { prefill: core.requests.queuedPrefill, decode: core.requests.queuedDecode }),
  ),
  time_to_first_token_seconds: histogram(
    'From the submission until something generated went to the client',
    (timings) => [{ value: timings.firstToken }],
  ),
  inter_token_latency_seconds: histogram(
    'Between generated tokens that went to the client, of requests that stream',
    (timings) => [{ value: timings.interToken }],
  ),
  e2e_request_latency_seconds: histogram('From the submission until the reply, of completed requests', (timings) => [
    { value: timings.whole },
  ]),
  request_queue_time_seconds: histogram('Waiting for room, by role', (timings) => [
    { labels: { role: 'prefill' }, value: timings.queuePrefill },
    { labels: { role: 'decode' }, value: timings.queueDecode },
  ]),
  request_prefill_time_seconds: histogram('On the prefill engine, until its handoff came', (timings) => [
    { value: timings.prefill },
  ]),
  kv_transfer_time_seconds: histogram('From the order to import until the source was read', (timings) => [
    { value: timings.transfer },
  ]),
  request_decode_time_seconds: histogram('On the engine that generates, after the transfer', (timings) => [
    { value: timings.decode },
  ]),
  engines: gauge('Registered engines by role', ({ core }) =>
    grouped(
      'role',
      core.engines,
      ({ role }) => role,
      (before) => before + 1,
    ),
  ),
  engines_missing: gauge(
    'Engines of the deployment (--inference-shards) that are not registered',
    ({ core }) => core.missing.length,
  ),
  engines_registered_total: counters('Registrations that were accepted', ({ core }) =>
    counted(core, 'enginesRegistered'),
  ),
  engines_rejected_total: counters('Registrations that were refused', ({ core }) => counted(core, 'enginesRejected')),
  engines_removed_total: counters('Engines that left, were lost or registered again', ({ core }) =>
    counted(core, 'enginesRemoved'),
  ),
  engine_silent: ofEngine('1 when an engine missed three of its reports: stopped, not dead', ({ peer }, { silent }) =>
    silent.has(peer) ? 1 : 0,
  ),
  engine_requests_running: ofEngine('Requests with a reservation on the engine', ({ active }) => active),
  engine_requests_waiting: ofEngine('Requests in the queue of the engine', ({ queued }) => queued),
  engine_request_capacity: ofEngine('Requests that the engine takes at once', ({ requestCapacity }) => requestCapacity),
  engine_slots_used: ofEngine('SSM slots reserved on the engine', ({ slotsUsed }) => slotsUsed),
  engine_slot_capacity: ofEngine('SSM slots of the engine', ({ slotCapacity }) => slotCapacity),
  engine_kv_blocks: gauge('KV blocks as the engine reported them last, by state', ({ core }) =>
    core.engines.flatMap(({ peer, role, load }) =>
      Object.entries(blockStates).flatMap(([state, key]) =>
        load[key] === undefined ? [] : [{ labels: { engine: shown(peer), role, state }, value: load[key] }],
      ),
    ),
  ),
  engine_kv_cache_usage_perc: ofEngine('Share of usable blocks neither free nor evictable, 0 to 1', ({ load }) => {
    const { blocks_usable: usable, blocks_free: free, blocks_evictable: evictable } = load;
    if (usable === undefined || free === undefined || evictable === undefined || usable <= 0) return null;
    return 1 - (free + evictable) / usable;
  }),
  pins: gauge('Pinned sources by state; in-doubt: held until a proof', ({ core }) =>
    grouped(
      'state',
      core.pins,
      ({ state }) => state,
      (before) => before + 1,
    ),
  ),
  pin_oldest_age_seconds: gauge('Age of the oldest pinned source, by state', ({ core }) =>
    grouped(
      'state',
      core.pins,
      ({ state }) => state,
      (before, { ageMs }) => Math.max(before, ageMs / 1000),
    ),
  ),
  clients: gauge('Connected clients', ({ core }) => core.clients),
  prompt_bytes: gauge('Bytes of requests that wait to be sent on', ({ core }) => core.promptBytes),
  affinity_entries: gauge('Prefix hashes of the routing table', ({ core }) => core.affinityEntries),
  messages_received_total: counters('Messages from peers', ({ wire }) => wire.received),
  messages_sent_total: counters('Messages to peers', ({ wire }) => wire.sent),
  messages_malformed_total: counters('Messages that were none, dropped', ({ wire }) => wire.malformed),
  messages_ignored_total: counters('Messages that had no say: late, twice, from the wrong peer', ({ core }) =>
    counted(core, 'ignored'),
  ),
  messages_refused_total: counters(
    'Messages under an unproven name, or of a kind that is not for the role (CURVE)',
    ({ wire }) => wire.refusedMessages,
  ),
  connections_refused_total: counters(
    'Connections with a key that is not on the list (CURVE)',
    ({ wire }) => wire.refusedKeys,
  ),
  messages_undelivered_total: counters('Messages whose peer was gone', ({ wire }) => wire.undelivered),
  received_bytes_total: counters('Bytes of messages from peers', ({ wire }) => wire.receivedBytes),
  sent_bytes_total: counters('Bytes of messages to peers', ({ wire }) => wire.sentBytes),
  outbox_bytes: gauge('Bytes that wait for peers that do not read', ({ wire }) => wire.waitingBytes),
  requests_overflowed_total: counters(
    'Requests ended because their client read too slowly',
    ({ wire }) => wire.overflowed,
  ),
};
