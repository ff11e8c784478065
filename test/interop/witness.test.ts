/**
 * Clients and engines of another language, written from the protocol's description with other people's msgpack and
 * ZeroMQ, at this coordinator; and this package's client with them.
 */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { CoordinatorClient } from '../../lib/control/client/coordinator-client.js';
import { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import { CoordinatorServer } from '../../lib/control/zeromq/coordinator-server.js';
import type { WireProfile } from '../../lib/control/protocol/codec.js';
import { wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { Float64 } from '../../lib/control/protocol/wire-value.js';
import { describeOptional } from '../support/optional.js';
import { until } from '../support/waiting.js';

const python = process.env['STATE_HANDOFF_PYTHON'] ?? 'python3';
const isThere = spawnSync(python, ['-c', 'import zmq, msgpack']).status === 0;
const missing = isThere ? null : `${python} has no pyzmq and msgpack`;

describeOptional('witness', missing, 'peers of pyzmq and msgpack', () => {
  const children: ChildProcess[] = [];
  let server: CoordinatorServer | null = null;
  afterEach(async () => {
    for (const child of children.splice(0)) child.kill('SIGKILL');
    await server?.close();
    server = null;
  });

  interface Witness {
    readonly output: () => string;
    readonly errors: () => string;
    readonly ended: Promise<number | null>;
  }

  function witness(...args: string[]): Witness {
    const child = spawn(python, [join(__dirname, 'witness.py'), ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    children.push(child);
    let output = '';
    let errors = '';
    child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
    child.stderr.on('data', (chunk: Buffer) => (errors += chunk.toString()));
    return { output: () => output, errors: () => errors, ended: new Promise((resolve) => child.on('close', resolve)) };
  }

  it.each<WireProfile>(['single-frame', 'multi-frame'])('complete requests (%s)', async (profile) => {
    const core = new Coordinator({ instance: 'witnessed', isDisaggregated: true });
    server = await CoordinatorServer.start({ core, profile });
    const { address } = server;
    const engines = ['prefill', 'decode'].map((role) => witness('engine', address, profile, role));
    await until('both engines are registered', () => {
      if (engines.some((engine) => engine.errors() !== '')) throw new Error(engines.map((e) => e.errors()).join('\n'));
      return engines.every((engine) => engine.output().includes('registered'));
    });
    const count = 20;
    const asking = witness('client', address, profile, String(count));
    expect([await asking.ended, asking.errors()]).toEqual([0, '']);
    const heard = asking
      .output()
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as [number, number, number[]]);
    const firsts = Array.from({ length: count }, (_, number) => (number + 70_003) % 1000);
    const of = (header: number) => heard.filter(([each]) => each === header).sort((a, b) => a[1] - b[1]);
    expect(of(21)).toEqual(firsts.map((first, number) => [21, number, [first, first + 1, first + 2]]));
    expect(of(22)).toEqual(firsts.map((first, number) => [22, number, [first]]));

    const client = await CoordinatorClient.connect({ address, profile });
    const sampling = wireMap({ temperature: new Float64(1), num_tokens_to_generate: 2 });
    const request = client.addRequest([1, 2, 3], sampling);
    const bodies: unknown[] = [];
    for await (const { kind, body } of request)
      bodies.push([kind, body.get('new_tokens') ?? body.get('generated_tokens'), body.get('latency')]);
    expect(bodies).toEqual([
      ['partial', [6], undefined],
      ['final', [6, 7], new Float64(1)],
    ]);
    client.close();
    await until('every source was released', () => engines[0]!.output().split('released').length - 1 === count + 1);
    expect(server.snapshot()).toMatchObject({
      requests: { queuedPrefill: 0, prefill: 0, queuedDecode: 0, decode: 0, terminating: 0 },
      pins: [],
    });
    expect(engines.map((engine) => engine.errors())).toEqual(['', '']);
  });
});
