/**
 * 2,000 simulated worlds, and every planted fault found: the two commands as a user runs them.
 *
 * The worlds run in processes of their own, so that one that never ends is found as well.
 */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { plantedFaults } from './planted-faults.js';
import { planWorld, type InstancePlan, type WorldPlan } from './world-plan.js';
import { simulate } from './world.js';

const root = join(__dirname, '..', '..');

function run(
  script: string,
  ...args: readonly string[]
): Promise<{ readonly status: number | null; readonly output: string }> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [join(root, 'scripts', script), ...args], { cwd: root });
    let output = '';
    child.stdout.on('data', (text: Buffer) => (output += text.toString()));
    child.stderr.on('data', (text: Buffer) => (output += text.toString()));
    child.on('close', (status) => resolve({ status, output }));
  });
}

const lastLine = (output: string): string => output.trimEnd().split('\n').at(-1)!;

test('2,000 worlds end well', async () => {
  const { status, output } = await run('simulate.js', '--worlds', '2000', '--seed', '1', '--fresh');
  expect(lastLine(output) === 'simulate: 2000 worlds, 0 failed' ? '' : output.slice(-20_000)).toBe('');
  expect(status).toBe(0);
}, 900_000);

describe('planted faults', () => {
  test('there are twenty or more, each with a name of its own, and each fits its file', () => {
    expect(plantedFaults.length).toBeGreaterThanOrEqual(20);
    expect(new Set(plantedFaults.map(({ name }) => name)).size).toBe(plantedFaults.length);
    for (const { name, file, from, to } of plantedFaults) {
      expect(`${name}: ${readFileSync(join(root, file), 'utf8').split(from).length - 1}`).toBe(`${name}: 1`);
      expect(from).not.toBe(to);
      expect(from).not.toContain('\n');
    }
  });

  test('each is found', async () => {
    const { status, output } = await run('simulate-planted.js');
    const all = `simulate:planted: ${plantedFaults.length} faults, ${plantedFaults.length} found, 0 missed`;
    expect(lastLine(output) === all ? '' : output).toBe('');
    expect(status).toBe(0);
  }, 900_000);
});

test('a seed is one world: the same events, times and answers whenever it runs', async () => {
  for (const seed of [3, 11, 64]) expect(await simulate(seed)).toEqual(await simulate(seed));
});

test('seeds bring every layout, role count and kind of trouble', () => {
  const plans = Array.from({ length: 300 }, (_, index) => planWorld(index + 1));
  const instances = plans.flatMap((plan) => plan.instances);
  const rankCounts = new Set(instances.map(({ tpSize, ppSize }) => tpSize * ppSize));
  expect([...rankCounts].sort()).toEqual([1, 2, 3, 4, 5, 6, 8]);
  expect([...new Set(instances.map(({ tpSize }) => tpSize))].sort()).toEqual([1, 2, 4, 8]);
  expect([...new Set(instances.map(({ ppSize }) => ppSize))].sort()).toEqual([1, 2, 3, 4, 5]);
  const isAmong = (has: (plan: WorldPlan, instance: InstancePlan) => boolean) =>
    plans.some((plan) => plan.instances.some((instance) => has(plan, instance)));
  const isEmpty = (ends: readonly number[]) => ends.some((end, stage) => end === (ends[stage - 1] ?? 0));
  expect(isAmong((_, { stageEnds }) => stageEnds !== null && isEmpty(stageEnds.layers))).toBe(true);
  expect(
    isAmong(({ shape }, { stageEnds }) => shape.ssm !== null && stageEnds !== null && isEmpty(stageEnds.ssmLayers)),
  ).toBe(true);
  expect(isAmong(({ shape }, { ppSize }) => shape.layers % ppSize !== 0)).toBe(true); // uneven stages
  expect(isAmong(({ shape }, { tpSize }) => shape.kvHeads < tpSize)).toBe(true); // shared heads
  for (const role of ['prefill', 'decode']) {
    const counts = new Set(plans.map((plan) => plan.instances.filter((each) => each.role === role).length));
    expect([...counts].sort()).toEqual([1, 2, 3]);
  }
  for (const { requestCount } of plans)
    expect(requestCount === 500 || (requestCount >= 20 && requestCount <= 80)).toBe(true);
  const share = (has: (plan: ReturnType<typeof planWorld>) => boolean): number =>
    plans.filter(has).length / plans.length;
  expect(share(({ requestCount }) => requestCount === 500)).toBeGreaterThan(0.005);
  expect(share(({ hasFaults }) => !hasFaults)).toBeGreaterThan(0.1);
  expect(share(({ direction }) => direction === 'push')).toBeGreaterThan(0.05);
  expect(share(({ restarts }) => restarts.length > 0)).toBeGreaterThan(0.1);
  expect(share(({ losses }) => losses.length > 0)).toBeGreaterThan(0.1);
  expect(share(({ noticesLateReads }) => !noticesLateReads)).toBeGreaterThan(0.05);
  expect(share(({ shape }) => shape.ssm !== null)).toBeGreaterThan(0.1);
  for (const fault of [
    'drop',
    'stall',
    'error',
    'lateDone',
    'duplicate',
    'beginThrows',
    'pollThrows',
    'connectFails',
    'connectHangs',
  ] as const) {
    expect(share(({ faults }) => (faults[fault] ?? 0) > 0)).toBeGreaterThan(0.2);
  }
});

describe('the command', () => {
  test('names what it does not understand', async () => {
    expect(await run('simulate.js', '--worlds', 'many')).toEqual({
      status: 1,
      output: 'simulate: --worlds: expected an integer of at least 1, got many\n',
    });
    expect((await run('simulate.js', 'fast')).output).toContain(
      'expected --worlds N, --seed S, --jobs J or --fresh, got fast',
    );
  });
});
