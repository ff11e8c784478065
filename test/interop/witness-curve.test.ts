/**
 * Keys and proven names a second time, with other people's CURVE: peers of pyzmq that hold their keys complete requests, and
 * whoever holds another key, claims another's name or has another role is refused.
 */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import { CoordinatorServer } from '../../lib/control/zeromq/coordinator-server.js';
import { makeKeyPair } from '../../lib/control/zeromq/curve-key.js';
import type { AllowList } from '../../lib/control/zeromq/curve-peers.js';
import { describeOptional } from '../support/optional.js';
import { until } from '../support/waiting.js';

const python = process.env['STATE_HANDOFF_PYTHON'] ?? 'python3';
const uses = 'import zmq, msgpack, sys; sys.exit(not zmq.has("curve"))';
const missing = spawnSync(python, ['-c', uses]).status === 0 ? null : `${python} has no pyzmq with CURVE and msgpack`;

describeOptional('witness', missing, 'peers of pyzmq with keys', () => {
  const own = makeKeyPair();
  const keys = Object.fromEntries(
    ['prefill_s0_dp0', 'decode_s0_dp0', 'frontend', 'mallory'].map((name) => [name, makeKeyPair()]),
  );
  const peers: AllowList = Object.fromEntries(
    Object.entries(keys).map(([name, { publicKey }]) => [
      name,
      { role: name.includes('_') ? 'engine' : 'client', key: publicKey },
    ]),
  );
  const children: ChildProcess[] = [];
  const log: string[] = [];
  let server: CoordinatorServer;
  beforeEach(async () => {
    log.length = 0;
    server = await CoordinatorServer.start({
      core: new Coordinator({ instance: 'witnessed', isDisaggregated: true }),
      curve: { secretKey: own.secretKey, peers },
      log: (_level, event, fields) => void log.push(`${event}: ${String(fields['peer'])}, ${String(fields['reason'])}`),
    });
  });
  afterEach(async () => {
    for (const child of children.splice(0)) child.kill('SIGKILL');
    await server.close();
  });

  /** A witness that says it is `name`, with the keys of `holder`. */
  function witness(name: string, args: readonly string[], { secretKey } = keys[name]!) {
    const env = { ...process.env, NAME: name, SECRET_KEY: secretKey, SERVER_KEY: own.publicKey };
    const [what, last] = args as [string, string];
    const given = [join(__dirname, 'witness.py'), what, server.address, 'multi-frame', last];
    const child = spawn(python, given, { stdio: ['ignore', 'pipe', 'pipe'], env });
    children.push(child);
    const said = { output: '', errors: '' };
    child.stdout.on('data', (chunk: Buffer) => (said.output += chunk.toString()));
    child.stderr.on('data', (chunk: Buffer) => (said.errors += chunk.toString()));
    return { said, ended: new Promise<number | null>((resolve) => child.on('close', resolve)) };
  }

  it('complete requests', async () => {
    const engines = ['prefill', 'decode'].map((role) => witness(`${role}_s0_dp0`, ['engine', role]));
    await until('both engines are registered', () => server.snapshot().engines.length === 2);
    const count = 5;
    const { said, ended } = witness('frontend', ['client', String(count)]);
    expect([await ended, said.errors]).toEqual([0, '']);
    const heard = said.output.trim().split('\n');
    const replies = heard.map((line) => JSON.parse(line) as [number, number, number[]]).filter(([each]) => each === 21);
    expect(replies.sort((a, b) => a[1] - b[1])).toEqual(
      Array.from({ length: count }, (_, at) => [21, at, [at + 3, at + 4, at + 5]]),
    );
    const names = server.snapshot().engines.map(({ peer }) => peer);
    expect(names.sort()).toEqual(['decode_s0_dp0', 'prefill_s0_dp0']);
    expect(server.wire).toMatchObject({ refusedKeys: 0, refusedMessages: 0 });
    expect(engines.map((engine) => engine.said.errors)).toEqual(['', '']);
  });

  it('are refused with a key that is not on the list, before they say anything', async () => {
    const { said } = witness('frontend', ['client', '1'], makeKeyPair());
    await until('the key is refused', () => server.wire.refusedKeys > 0);
    expect([said.output, server.wire.received, server.snapshot().clients]).toEqual(['', 0, 0]);
  });

  it('are refused under a name whose key they do not hold', async () => {
    const engine = witness('prefill_s0_dp0', ['engine', 'prefill'], keys['decode_s0_dp0']);
    expect(await engine.ended).toBe(0);
    expect(engine.said.output).toBe('refused: the name is not proven by the key that it belongs to\n');
    const client = witness('frontend', ['client', '1'], keys['mallory']);
    await until('the client is refused', () => log.some((line) => line.startsWith('message refused: frontend')));
    expect([client.said.output, server.snapshot().clients, server.snapshot().engines]).toEqual(['', 0, []]);
  });

  it('are refused in a role that is not theirs', async () => {
    const engine = witness('mallory', ['engine', 'prefill']);
    expect(await engine.ended).toBe(0);
    expect(engine.said.output).toBe('refused: REGISTER_ROLE is not for a peer of the role client\n');
  });
});
