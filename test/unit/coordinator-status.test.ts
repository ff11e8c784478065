/** `state-handoff status` against a coordinator whose clock is driven: who is stopped is said to be, and nobody else. */
import { Dealer } from 'zeromq';
import { status } from '../../lib/cli/status.js';
import { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import { encodeMessage } from '../../lib/control/protocol/codec.js';
import type { ToCoordinator } from '../../lib/control/protocol/messages.js';
import { wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { CoordinatorServer } from '../../lib/control/zeromq/coordinator-server.js';
import { until } from '../support/waiting.js';

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

class Scene {
  now = 1_000;
  server!: CoordinatorServer;
  private readonly sockets = new Map<string, Dealer>();

  static async open(): Promise<Scene> {
    const scene = new Scene();
    const core = new Coordinator({ instance: 'run', isDisaggregated: true });
    scene.server = await CoordinatorServer.start({ core, clock: { now: () => scene.now } });
    ends.push(() => scene.server.close());
    return scene;
  }

  /** Says it, and comes back once the coordinator has heard it. */
  async say(peer: string, message: ToCoordinator): Promise<void> {
    let socket = this.sockets.get(peer);
    if (socket === undefined) {
      this.sockets.set(peer, (socket = new Dealer({ routingId: peer, linger: 0 })));
      socket.connect(this.server.address);
      ends.push(() => socket!.close());
    }
    const before = this.server.wire.received;
    await socket.send(encodeMessage('multi-frame', 'coordinator', message) as Uint8Array[]);
    await until(`${peer} is heard`, () => this.server.wire.received > before);
  }

  async register(role: 'prefill' | 'decode'): Promise<void> {
    const entry = wireMap({
      request_capacity: 4,
      tokens_per_block: 16,
      element_size: 2,
      head_dim: 8,
      num_layers_global: 2,
      num_kv_heads_global: 2,
    });
    await this.say(role, { header: 'REGISTER_ROLE', role, transport: 'host', instanceMeta: [entry], extension: null });
  }

  async report(role: 'prefill' | 'decode'): Promise<void> {
    const load = { blocks_usable: 100, blocks_free: 20, interval_ms: 1_000 };
    await this.say(role, { header: 'ENGINE_STATUS', status: wireMap(load) });
  }

  /** What the command prints. */
  async shown(...more: string[]): Promise<string[]> {
    const lines: string[] = [];
    const output = {
      write: (line: string) => void lines.push(line),
      writeError: (line: string) => void lines.push(line),
    };
    expect(await status([this.server.address, '--timeout-ms', '30000', ...more], output)).toBe(0);
    return lines;
  }
}

test('says STOPPED, and for how long, of the engine that misses its reports, and takes it back', async () => {
  const scene = await Scene.open();
  for (const role of ['prefill', 'decode'] as const) {
    await scene.register(role);
    await scene.report(role);
  }
  scene.now += 2_000;
  await scene.report('prefill');
  scene.now += 1_000;
  const stopped = (lines: string[]) => lines.filter((line) => line.includes('STOPPED'));
  expect(stopped(await scene.shown())).toEqual([]);
  scene.now += 1;
  const lines = await scene.shown();
  expect(stopped(lines)).toEqual([
    'engine decode: decode, 0 active, 0 queued of 4, slots 0 of 0, STOPPED: not heard for 3001 ms',
  ]);
  expect(lines.filter((line) => line.startsWith('engine '))).toHaveLength(2);
  const { engines } = JSON.parse((await scene.shown('--json'))[0]!) as { engines: Record<string, unknown>[] };
  const told = engines.map((engine) => [engine['peer'], engine['silent'], engine['silent_ms']]);
  expect(told).toEqual([
    ['prefill', false, 1_001],
    ['decode', true, 3_001],
  ]);
  await scene.report('decode');
  expect(stopped(await scene.shown())).toEqual([]);
});

test('an engine that never said how often it reports is not called stopped', async () => {
  const scene = await Scene.open();
  await scene.register('decode');
  scene.now += 3_600_000;
  expect((await scene.shown()).join('\n')).not.toContain('STOPPED');
});
