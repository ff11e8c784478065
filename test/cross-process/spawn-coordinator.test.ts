/** `spawnCoordinator`: what it says of the process it started, how it refuses, and that the process never outlives its own. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { CoordinatorClient, spawnCoordinator, wireMap, type SpawnedCoordinator } from 'state-handoff/coordinator';
import { gone } from '../support/demo-run.js';

const compiled = join(__dirname, '..', '..', 'dist', 'lib');
const program = join(compiled, 'cli', 'state-handoff.js');
const started: SpawnedCoordinator[] = [];
const lines: string[] = [];
const start = async (settings = {}): Promise<SpawnedCoordinator> => {
  const coordinator = await spawnCoordinator(settings, { program, onLog: (line) => lines.push(line) });
  started.push(coordinator);
  return coordinator;
};

afterEach(async () => {
  for (const coordinator of started.splice(0)) await coordinator.close();
  lines.length = 0;
});

it('listens where it says, and is gone when close resolves', async () => {
  const coordinator = await start({ 'log-level': 'debug' });
  expect(coordinator.fellBack).toBe(false);
  const client = await CoordinatorClient.connect({ address: coordinator.address, connectMs: 30_000 });
  expect(client.instance).toBe(coordinator.listening['instance']);
  client.close();
  await coordinator.close();
  expect(await coordinator.ended).toEqual({ status: 0, signal: null });
  await gone([coordinator.processId]);
  expect(lines.map((line) => (JSON.parse(line) as { msg: string }).msg)).toContain('drained');
});

it('takes a free port when the wanted one is taken', async () => {
  const taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  const { port } = taken.address() as { port: number };
  const coordinator = await start({ address: `tcp://127.0.0.1:${port}` });
  expect(coordinator.fellBack).toBe(true);
  expect(coordinator.address).not.toBe(`tcp://127.0.0.1:${port}`);
  taken.close();
});

it('learns from the shards of a deployment which engines there are, and whether they have roles', async () => {
  const shards = (spec: string) => start({ 'inference-shards': spec });
  const split = await shards('tp=2,role=prefill+tp=1,dp=2,role=decode');
  expect(split.listening['engines']).toEqual(['prefill_s0_dp0', 'decode_s1_dp0', 'decode_s1_dp1']);
  const whole = await shards('tp=2,dp=2');
  expect(whole.listening['engines']).toEqual(['mp-coord-0', 'mp-coord-1']);
  expect((await start()).listening['engines']).toBeNull();
  // Without roles it takes no engine that has one: nobody to prefill is no reason that it gives.
  const reason = async ({ address }: SpawnedCoordinator): Promise<string> => {
    const client = await CoordinatorClient.connect({ address, connectMs: 30_000 });
    try {
      for await (const { kind } of client.addRequest([1], wireMap({}))) return kind;
      return 'nothing';
    } catch (error) {
      return (error as Error).message;
    } finally {
      client.close();
    }
  };
  expect(await reason(split)).toContain('no prefill engine is registered');
  expect(await reason(whole)).toContain('no engine is registered');
  await expect(shards('tp=2,role=prefill')).rejects.toMatchObject({
    code: 'OPTION_INVALID',
    message: expect.stringContaining('inference-shards: shards: expected at least one with role=decode'),
  });
  await expect(start({ aggregated: true, 'inference-shards': 'role=prefill+role=decode' })).rejects.toThrow(
    'inference-shards: shards: expected no role beside aggregated',
  );
});

it('says why it did not start', async () => {
  await expect(start({ policy: 'by-weather' })).rejects.toMatchObject({
    code: 'OPTION_INVALID',
    message: expect.stringContaining('policy: expected'),
  });
  await expect(start({ 'no such flag': true })).rejects.toMatchObject({ code: 'OPTION_INVALID' });
  await expect(start({ insecure: null as never })).rejects.toMatchObject({ code: 'OPTION_INVALID' });
  const other = join(__dirname, '..', 'support', 'reporter.js');
  await expect(spawnCoordinator({}, { program: other })).rejects.toMatchObject({
    code: 'PEER_UNREACHABLE',
    message: expect.stringContaining('it ended with 0'),
  });
});

it('ends with the process that started it, even when that one is killed', async () => {
  const source = `require(${JSON.stringify(join(compiled, 'coordinator.js'))}).spawnCoordinator()
    .then(({ processId }) => process.stdout.write(String(processId)))`;
  const owner = spawn(process.execPath, ['-e', source], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [said] = (await once(owner.stdout, 'data')) as [Buffer];
  const processId = Number(said.toString());
  expect(processId).toBeGreaterThan(0);
  owner.kill('SIGKILL');
  await gone([owner.pid!, processId]);
});
