/** `state-handoff status` against a coordinator whose clock is driven: who is stopped is said to be, and nobody else. */
import { status } from '../../lib/cli/status.js';
import { wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { DrivenCoordinator } from '../support/driven-coordinator.js';

let scene: DrivenCoordinator;
beforeEach(async () => {
  scene = await DrivenCoordinator.open();
});
afterEach(() => scene.close());

function report(role: 'prefill' | 'decode'): Promise<void> {
  const load = { blocks_usable: 100, blocks_free: 20, interval_ms: 1_000 };
  return scene.say(role, { header: 'ENGINE_STATUS', status: wireMap(load) });
}

/** What the command prints. */
async function shown(...more: string[]): Promise<string[]> {
  const lines: string[] = [];
  const output = {
    write: (line: string) => void lines.push(line),
    writeError: (line: string) => void lines.push(line),
  };
  expect(await status([scene.server.address, '--timeout-ms', '30000', ...more], output)).toBe(0);
  return lines;
}

test('says STOPPED, and for how long, of the engine that misses its reports, and takes it back', async () => {
  for (const role of ['prefill', 'decode'] as const) {
    await scene.register(role);
    await report(role);
  }
  scene.now += 2_000;
  await report('prefill');
  scene.now += 1_000;
  const stopped = (lines: string[]) => lines.filter((line) => line.includes('STOPPED'));
  expect(stopped(await shown())).toEqual([]);
  scene.now += 1;
  const lines = await shown();
  expect(stopped(lines)).toEqual([
    'engine decode: decode, 0 active, 0 queued of 4, slots 0 of 0, STOPPED: not heard for 3001 ms',
  ]);
  expect(lines.filter((line) => line.startsWith('engine '))).toHaveLength(2);
  const { engines } = JSON.parse((await shown('--json'))[0]!) as { engines: Record<string, unknown>[] };
  const told = engines.map((engine) => [engine['peer'], engine['silent'], engine['silent_ms']]);
  expect(told).toEqual([
    ['prefill', false, 1_001],
    ['decode', true, 3_001],
  ]);
  await report('decode');
  expect(stopped(await shown())).toEqual([]);
});

test('an engine that never said how often it reports is not called stopped', async () => {
  await scene.register('decode');
  scene.now += 3_600_000;
  expect((await shown()).join('\n')).not.toContain('STOPPED');
});
