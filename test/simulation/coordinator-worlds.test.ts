/**
 * 2,000 simulated control planes around the coordinator's core, and every planted fault found: the command as a user runs
 * it, in processes of its own, so that a world that never ends is found as well.
 */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { planControl } from './coordinator/plan.js';
import { plantedFaults } from './coordinator/planted-faults.js';

const root = join(__dirname, '..', '..');

function run(...args: readonly string[]): Promise<string> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [join(root, 'scripts', 'simulate-coordinator.js'), ...args], { cwd: root });
    let output = '';
    child.stdout.on('data', (text: Buffer) => (output += text.toString()));
    child.stderr.on('data', (text: Buffer) => (output += text.toString()));
    child.on('close', (status) => resolve(`${output.trimEnd().slice(-10_000)}\nstatus ${status}`));
  });
}

test('2,000 control planes end well', async () => {
  const output = await run('--worlds', '2000', '--seed', '1');
  expect(output).toBe('simulate-coordinator: 2000 worlds, 0 failed\nstatus 0');
}, 900_000);

describe('planted faults', () => {
  test('there are ten or more, each with a name of its own, and each fits its file', () => {
    expect(plantedFaults.length).toBeGreaterThanOrEqual(10);
    expect(new Set(plantedFaults.map(({ name }) => name)).size).toBe(plantedFaults.length);
    for (const { name, file, from, to } of plantedFaults) {
      expect(`${name}: ${readFileSync(join(root, file), 'utf8').split(from).length - 1}`).toBe(`${name}: 1`);
      expect(from).not.toBe(to);
    }
  });

  // Two thousand worlds pass without a fault, so that a failing one is a find.
  test.each(plantedFaults.map(({ name }, index) => [name, index] as const))(
    '%s',
    async (_name, index) => {
      const output = await run('--fault', String(index));
      expect(output).toMatch(/simulate-coordinator: \d+ worlds, 1 failed\nstatus 1$/);
    },
    900_000,
  );
});

test('seeds bring every kind of trouble', () => {
  const plans = Array.from({ length: 400 }, (_, index) => planControl(index + 1));
  const share = (has: (plan: ReturnType<typeof planControl>) => boolean): number =>
    plans.filter(has).length / plans.length;
  expect(share(({ breaks }) => breaks.length > 0)).toBeGreaterThan(0.15);
  expect(share(({ deaths }) => deaths.length > 0)).toBeGreaterThan(0.2);
  expect(share(({ coordinatorRestarts }) => coordinatorRestarts.length > 0)).toBeGreaterThan(0.08);
  expect(share(({ clientBreaks }) => clientBreaks.length > 0)).toBeGreaterThan(0.06);
  expect(share(({ duplicate }) => duplicate > 0)).toBeGreaterThan(0.2);
  expect(share(({ loss }) => loss > 0)).toBeGreaterThan(0.1);
  expect(share(({ areOurs }) => !areOurs)).toBeGreaterThan(0.1);
  expect(share(({ transport }) => transport === 'nccl')).toBeGreaterThan(0.15);
  expect(share(({ isHybrid }) => isHybrid)).toBeGreaterThan(0.2);
});

test('the command names what it does not understand', async () => {
  expect(await run('--worlds', 'many')).toBe(
    'simulate-coordinator: expected --worlds N, --seed S or --fault I, got --worlds many\nstatus 1',
  );
});
