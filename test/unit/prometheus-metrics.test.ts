/** Metrics as Prometheus reads them: a coordinator's over HTTP, an instance's from a registry of its user. */
import { get, request as httpRequest } from 'node:http';
import { connect } from 'node:net';
import { Registry } from 'prom-client';
import type { ToCoordinator } from '../../lib/control/protocol/messages.js';
import { encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { openMetrics, type MetricsEndpoint } from '../../lib/control/zeromq/metrics-endpoint.js';
import { registerHandoffMetrics } from '../../lib/metrics.js';
import { registerFamilies } from '../../lib/observe/prometheus.js';
import { finishedBody, handoffBody, submitMessage } from '../support/coordinator-desk.js';
import { DrivenCoordinator } from '../support/driven-coordinator.js';
import { createWorld, promptOf } from '../support/lifecycle-fixture.js';

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

interface Page {
  readonly status: number;
  readonly type: string;
  readonly text: string;
}

function load(url: string, method = 'GET'): Promise<Page> {
  return new Promise((resolve, reject) => {
    const call = httpRequest(url, { method, agent: false }, (response) => {
      let text = '';
      response.on('data', (chunk: Buffer) => (text += chunk.toString()));
      response.on('end', () =>
        resolve({ status: response.statusCode!, type: response.headers['content-type'] ?? '', text }),
      );
    });
    call.once('error', reject).end();
  });
}

/** `name{label="…"}` to its number, without the process's own. */
function samplesOf(text: string): Map<string, number> {
  const lines = text.split('\n').filter((line) => line.startsWith('state_handoff_'));
  return new Map(
    lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]),
  );
}

class Scene extends DrivenCoordinator {
  metrics!: MetricsEndpoint;

  static override async open(): Promise<Scene> {
    const scene = new Scene();
    await scene.start();
    ends.push(() => scene.close());
    scene.metrics = await openMetrics(0, scene.server, scene.core);
    ends.push(() => scene.metrics.close());
    return scene;
  }

  async scrape(): Promise<Map<string, number>> {
    const { status, type, text } = await load(this.metrics.url);
    expect(status).toBe(200);
    expect(type).toBe('text/plain; version=0.0.4; charset=utf-8');
    return samplesOf(text);
  }
}

const reply = (requestId: number, body: Uint8Array): ToCoordinator => ({
  header: 'ENGINE_REPLY',
  replies: [{ requestId, needsDetokenize: false, body }],
});

describe('a coordinator over HTTP', () => {
  test('tells where requests are, how they ended and how long each part took', async () => {
    const scene = await Scene.open();
    await scene.register('prefill');
    await scene.register('decode');
    await scene.say('client', { header: 'CONNECT' });
    await scene.say('client', submitMessage(7));
    scene.now += 200;
    let samples = await scene.scrape();
    expect(samples.get('state_handoff_inflight_requests{phase="prefill"}')).toBe(1);
    expect(samples.get('state_handoff_pins{state="prefilling"}')).toBe(1);
    expect(samples.get('state_handoff_pin_oldest_age_seconds{state="prefilling"}')).toBeCloseTo(0.2);
    await scene.say('prefill', reply(0, handoffBody()));
    scene.now += 30;
    await scene.say('decode', { header: 'KV_READ_DONE', requestId: 0 });
    scene.now += 600;
    const delta = { requestId: 0, body: encodeValue(wireMap({ request_id: 0, new_tokens: [1] })) };
    await scene.say('decode', { header: 'ENGINE_REPLY_PARTIAL', partials: [delta] });
    scene.now += 60;
    const three = { requestId: 0, body: encodeValue(wireMap({ request_id: 0, new_tokens: [2, 3, 4] })) };
    await scene.say('decode', { header: 'ENGINE_REPLY_PARTIAL', partials: [three] });
    scene.now += 340;
    const none = { requestId: 0, body: encodeValue(wireMap({ request_id: 0, new_tokens: [] })) };
    await scene.say('decode', { header: 'ENGINE_REPLY_PARTIAL', partials: [none] });
    scene.now += 3_600;
    await scene.say('decode', { header: 'ENGINE_REPLY_PARTIAL', partials: [delta] });
    await scene.say('decode', reply(0, finishedBody));
    samples = await scene.scrape();
    const sum = (name: string) => [
      samples.get(`state_handoff_${name}_count`),
      Math.round(samples.get(`state_handoff_${name}_sum`)! * 1e6) / 1e6,
    ];
    expect(sum('request_prefill_time_seconds')).toEqual([1, 0.2]);
    expect(sum('kv_transfer_time_seconds')).toEqual([1, 0.03]);
    expect(sum('time_to_first_token_seconds')).toEqual([1, 0.83]);
    // Of three tokens that came together each took a third; a delta without tokens is no token, and the reply is none.
    expect(sum('inter_token_latency_seconds')).toEqual([4, 0.06 + 3.94]);
    expect(samples.get('state_handoff_inter_token_latency_seconds_bucket{le="0.025"}')).toBe(3);
    expect(sum('request_decode_time_seconds')).toEqual([1, 4.6]);
    expect(sum('e2e_request_latency_seconds')).toEqual([1, 4.83]);
    expect(samples.get('state_handoff_time_to_first_token_seconds_bucket{le="0.75"}')).toBe(0);
    expect(samples.get('state_handoff_time_to_first_token_seconds_bucket{le="1"}')).toBe(1);
    expect(samples.get('state_handoff_time_to_first_token_seconds_bucket{le="+Inf"}')).toBe(1);
    for (const role of ['prefill', 'decode'])
      expect(samples.get(`state_handoff_request_queue_time_seconds_count{role="${role}"}`)).toBe(1);
    expect(samples.get('state_handoff_requests_total{outcome="completed"}')).toBe(1);
    expect(samples.get('state_handoff_inflight_requests{phase="prefill"}')).toBe(0);
    expect([...samples.keys()].filter((key) => key.startsWith('state_handoff_pin'))).toEqual([]);
    expect(samples.get('state_handoff_engines{role="decode"}')).toBe(1);
    expect(samples.get('state_handoff_engine_request_capacity{engine="prefill",role="prefill"}')).toBe(4);
    expect(samples.get('state_handoff_messages_received_total')).toBe(scene.server.wire.received);
    expect(samples.get('state_handoff_received_bytes_total')).toBeGreaterThan(100);
    expect(samples.get('state_handoff_clients')).toBe(1);
  });

  test('what failed, was aborted or was refused is counted apart, and is no latency of completed requests', async () => {
    const scene = await Scene.open();
    await scene.say('client', { header: 'CONNECT' });
    // No engine: it fails.
    await scene.say('client', submitMessage(1));
    await scene.register('prefill');
    await scene.say('client', submitMessage(2));
    await scene.say('client', { header: 'ABORT_REQUEST', requestId: 2 });
    await scene.say('prefill', { header: 'REQUEST_ABORTED', requestId: 1, sourceSafe: true });
    await scene.say('client', submitMessage(3, { return_log_probs: true, skip_prompt_log_probs: false }));
    const samples = await scene.scrape();
    const outcome = (name: string) => samples.get(`state_handoff_requests_total{outcome="${name}"}`);
    expect(['completed', 'failed', 'aborted', 'refused'].map(outcome)).toEqual([0, 1, 1, 1]);
    expect(samples.get('state_handoff_e2e_request_latency_seconds_count')).toBe(0);
    expect(samples.get('state_handoff_time_to_first_token_seconds_count')).toBe(0);
    expect(samples.get('state_handoff_request_prefill_time_seconds_count')).toBe(0);
  });

  test('shows what engines report, and which of them fell silent', async () => {
    const scene = await Scene.open();
    await scene.register('decode');
    const load = { blocks_usable: 100, blocks_free: 20, blocks_evictable: 5, blocks_quarantined: 3, interval_ms: 1000 };
    await scene.say('decode', { header: 'ENGINE_STATUS', status: wireMap(load) });
    const labels = 'engine="decode",role="decode"';
    let samples = await scene.scrape();
    expect(samples.get(`state_handoff_engine_kv_cache_usage_perc{${labels}}`)).toBe(0.75);
    expect(samples.get(`state_handoff_engine_kv_blocks{${labels},state="quarantined"}`)).toBe(3);
    expect(samples.has(`state_handoff_engine_kv_blocks{${labels},state="pinned"}`)).toBe(false);
    expect(samples.get(`state_handoff_engine_silent{${labels}}`)).toBe(0);
    scene.now += 3_001;
    samples = await scene.scrape();
    expect(samples.get(`state_handoff_engine_silent{${labels}}`)).toBe(1);
  });

  test('has a registry of its own and the process beside it', async () => {
    const [one, two] = [await Scene.open(), await Scene.open()];
    await one.say('client', { header: 'CONNECT' });
    expect((await one.scrape()).get('state_handoff_clients')).toBe(1);
    expect((await two.scrape()).get('state_handoff_clients')).toBe(0);
    expect((await load(one.metrics.url)).text).toContain('process_resident_memory_bytes ');
  });

  test('answers GET /metrics alone, and every scrape anew', async () => {
    const scene = await Scene.open();
    expect(await load(scene.metrics.url.replace('/metrics', '/'))).toMatchObject({ status: 404 });
    expect(await load(scene.metrics.url, 'POST')).toMatchObject({ status: 405 });
    expect(await load(`${scene.metrics.url}?name=x`)).toMatchObject({ status: 200 });
    expect((await scene.scrape()).get('state_handoff_clients')).toBe(0);
    await scene.say('client', { header: 'CONNECT' });
    expect((await scene.scrape()).get('state_handoff_clients')).toBe(1);
    expect(new URL(scene.metrics.url).hostname).toBe('127.0.0.1');
  });

  test('listens at the loopback address alone: another address of this machine has nothing at that port', async () => {
    const scene = await Scene.open();
    expect(await load(scene.metrics.url)).toMatchObject({ status: 200 });
    await expect(load(scene.metrics.url.replace('127.0.0.1', '127.0.0.2'))).rejects.toMatchObject({
      code: expect.stringMatching(/^E[A-Z]+$/) as string,
    });
  });

  test('refuses a port that is none or is taken', async () => {
    const scene = await Scene.open();
    const port = Number(new URL(scene.metrics.url).port);
    await expect(openMetrics(port, scene.server, scene.core)).rejects.toMatchObject({
      code: 'OPTION_INVALID',
      message: `metrics-port: 127.0.0.1:${port} cannot be listened at because EADDRINUSE`,
    });
    await expect(openMetrics(65_536, scene.server, scene.core)).rejects.toMatchObject({
      message: 'metrics-port: expected a port, or 0 for a free one, got 65536',
    });
  });

  test('ends with connections open', async () => {
    const scene = await Scene.open();
    await new Promise<void>((resolve, reject) => {
      get(scene.metrics.url, (response) => response.resume().on('end', resolve)).once('error', reject);
    });
    await scene.metrics.close();
    await expect(load(scene.metrics.url)).rejects.toMatchObject({ code: 'ECONNREFUSED' });
  });
});

test('a coordinator over HTTP does not wait for who never ends its question', async () => {
  const scene = await Scene.open();
  const socket = connect(Number(new URL(scene.metrics.url).port), '127.0.0.1');
  ends.push(() => socket.destroy());
  const isOver = new Promise<void>((resolve) => socket.on('error', () => undefined).on('close', () => resolve()));
  await new Promise<void>((resolve) => socket.write('GET /met', () => resolve()));
  await load(scene.metrics.url);
  await scene.metrics.close();
  await isOver;
});

describe('an instance in a registry of its user', () => {
  test('shows both ends of a handoff under their labels', async () => {
    const { network, prefill, decode } = await createWorld();
    const registries = [prefill, decode].map(({ handoff }) => {
      const registry = new Registry();
      registerHandoffMetrics(handoff, registry);
      return registry;
    }) as [Registry, Registry];
    const read = async (registry: Registry) => samplesOf(await registry.metrics());
    const labels = (role: string, { handoff }: { handoff: { inspect(): { instance: string } } }) =>
      `role="${role}",instance="${handoff.inspect().instance}",rank="0"`;
    const of = { source: labels('prefill', prefill), target: labels('decode', decode) };
    const prompt = promptOf(4);
    const outcome = decode.add(2, prompt, prefill.handOver(2, prompt, { resumeTokens: [55] }));
    const pinned = await read(registries[0]);
    expect(pinned.get(`state_handoff_kv_pins_total{${of.source}}`)).toBe(1);
    expect(pinned.get(`state_handoff_num_requests_running{${of.source}}`)).toBe(1);
    expect(pinned.get(`state_handoff_kv_blocks{${of.source},state="pinned"}`)).toBe(1);
    expect((await read(registries[1])).get(`state_handoff_kv_imports_total{${of.target},outcome="completed"}`)).toBe(0);
    network.advance(1);
    decode.poll();
    decode.schedule();
    await decode.step(3);
    expect(outcome).toMatchObject({ settled: 1 });
    prefill.handoff.releaseHandoffBlocks(2);
    const target = await read(registries[1]);
    expect(target.get(`state_handoff_kv_imports_total{${of.target},outcome="completed"}`)).toBe(1);
    const bytes = [...target].filter(([key]) => key.startsWith('state_handoff_kv_transfer_bytes_count'));
    expect(bytes).toEqual([[`state_handoff_kv_transfer_bytes_count{${of.target},transport="scripted"}`, 1]]);
    const source = await read(registries[0]);
    expect(source.get(`state_handoff_kv_pins_ended_total{${of.source},outcome="released"}`)).toBe(1);
    expect(source.get(`state_handoff_kv_pin_age_seconds_count{${of.source}}`)).toBe(1);
    expect(source.get(`state_handoff_num_requests_running{${of.source}}`)).toBe(0);
  });

  test('is empty once closed, takes another prefix, and refuses a registry that has its names', async () => {
    const { prefill } = await createWorld();
    const registry = new Registry();
    registerHandoffMetrics(prefill.handoff, registry, { prefix: 'my_' });
    expect(await registry.metrics()).toContain('\nmy_kv_pins_total{');
    expect(() => registerHandoffMetrics(prefill.handoff, registry, { prefix: 'my_' })).toThrow(
      'already been registered',
    );
    await prefill.handoff.close();
    expect(await registry.metrics()).not.toContain('\nmy_');
  });

  test('is right in the OpenMetrics format too', async () => {
    const registry = new Registry();
    registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE as never);
    registerFamilies(
      registry,
      'x_',
      { things_total: { type: 'counter', help: 'h', read: () => [{ value: 3 }] } },
      () => 0,
    );
    expect(await registry.metrics()).toBe('# HELP x_things h\n# TYPE x_things counter\nx_things_total 3\n# EOF\n');
  });
});
