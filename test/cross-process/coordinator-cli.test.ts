/** `state-handoff coordinator` and `status` as processes: what they print, what they refuse, how they end. */
import { execFileSync, spawn, spawnSync, type ChildProcess } from 'node:child_process';
import {
  chmodSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Dealer } from 'zeromq';
import { decodeMessage, encodeMessage, type WireProfile } from '../../lib/control/protocol/codec.js';
import type { ToClient, ToCoordinator, ToEngine } from '../../lib/control/protocol/messages.js';
import { encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { until } from '../support/waiting.js';

const command = join(__dirname, '..', '..', 'dist', 'lib', 'cli', 'state-handoff.js');
const children: ChildProcess[] = [];
const sockets: Dealer[] = [];
afterEach(() => {
  for (const socket of sockets.splice(0)) socket.close();
  for (const child of children.splice(0)) if (child.exitCode === null) child.kill('SIGKILL');
});

interface Running {
  readonly child: ChildProcess;
  readonly first: {
    readonly event: string;
    readonly address: string;
    readonly fell_back: boolean;
    readonly metrics: string | null;
    readonly engines: readonly string[] | null;
  };
  readonly ended: Promise<number | null>;
  readonly log: () => string;
}

async function run(...args: string[]): Promise<Running> {
  const child = spawn(process.execPath, [command, 'coordinator', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  children.push(child);
  let log = '';
  child.stderr.on('data', (chunk: Buffer) => (log += chunk.toString()));
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
  const line = await new Promise<string>((resolve, reject) => {
    let text = '';
    child.stdout.on('data', (chunk: Buffer) => {
      text += chunk.toString();
      if (text.includes('\n')) resolve(text.slice(0, text.indexOf('\n')));
    });
    void ended.then((code) => reject(new Error(`ended with ${code}: ${log}`)));
  });
  return { child, first: JSON.parse(line) as Running['first'], ended, log: () => log };
}

function connect(address: string, routingId?: string): Dealer {
  const socket = new Dealer({ linger: 0, ...(routingId === undefined ? {} : { routingId }) });
  socket.connect(address);
  sockets.push(socket);
  return socket;
}

// A coordinator that should have refused would run for ever: the limit ends it, with no status.
const call = (...args: string[]) =>
  spawnSync(process.execPath, [command, ...args], { encoding: 'utf8', timeout: 120_000, killSignal: 'SIGKILL' });
const meta = wireMap({
  request_capacity: 4,
  tokens_per_block: 16,
  element_size: 4,
  head_dim: 8,
  num_layers_global: 2,
  num_kv_heads_global: 2,
});

it('takes the engines that --inference-shards names, and no others', async () => {
  const shards = 'role=prefill + role=decode, tp=2';
  const { first } = await run('--address', 'tcp://127.0.0.1:0', '--inference-shards', shards);
  expect(first.engines).toEqual(['prefill_s0_dp0', 'decode_s1_dp0']);
  const registers = async (name: string, role: string): Promise<unknown> => {
    const engine = connect(first.address, name);
    const message = {
      header: 'REGISTER_ROLE',
      role,
      transport: 'nixl',
      instanceMeta: [meta],
      extension: null,
    } as const;
    await engine.send(encodeMessage('multi-frame', 'coordinator', message) as Uint8Array[]);
    return decodeMessage('multi-frame', 'engine', await engine.receive());
  };
  const refusal = (reason: string) => ({ header: 'REGISTRATION_ERROR', reason });
  expect(await registers('prefill_s0_dp0', 'prefill')).toEqual({ header: 'REGISTER_ROLE_ACK' });
  expect(await registers('prefill_s0_dp1', 'prefill')).toEqual(
    refusal('identity: expected one of prefill_s0_dp0, decode_s1_dp0, got "prefill_s0_dp1"'),
  );
  expect(await registers('decode_s1_dp0', 'decode')).toEqual(
    refusal('transfer metadata: expected 2 ranks, tp 2 × pp 1 of decode_s1_dp0, got 1'),
  );
  expect(call('status', first.address).stdout).toContain('\nnot registered: decode_s1_dp0\n');
});

it.each<WireProfile>(['multi-frame', 'single-frame'])(
  'takes a request from prefill to decode and shows both (%s)',
  async (profile) => {
    const { child, first, ended, log } = await run('--address', 'tcp://127.0.0.1:0', '--profile', profile);
    expect(first).toMatchObject({ event: 'listening', fell_back: false });
    const say = (socket: Dealer, message: ToCoordinator) =>
      socket.send(encodeMessage(profile, 'coordinator', message) as Uint8Array[]);
    const engineHears = async (socket: Dealer): Promise<ToEngine> => {
      for (;;) {
        const message = decodeMessage(profile, 'engine', await socket.receive());
        // Whenever somebody disconnects, engines are probed by the release of nobody's id.
        if (message.header !== 'RELEASE_KV' || message.requestId !== Number.MAX_SAFE_INTEGER) return message;
      }
    };
    const clientHears = async (socket: Dealer): Promise<ToClient> => {
      for (;;) {
        const message = decodeMessage(profile, 'client', await socket.receive());
        // And clients that wait for a request, by the acknowledgement once more.
        if (message.header !== 'CONNECT_ACK') return message;
      }
    };
    const engines = new Map<string, Dealer>();
    for (const role of ['prefill', 'decode']) {
      const engine = connect(first.address, `${role}_s0_dp0`);
      engines.set(role, engine);
      await say(engine, { header: 'REGISTER_ROLE', role, transport: 'nixl', instanceMeta: [meta], extension: null });
      expect(await engineHears(engine)).toEqual({ header: 'REGISTER_ROLE_ACK' });
    }
    const [prefill, decode] = [engines.get('prefill')!, engines.get('decode')!];
    const client = connect(first.address);
    await say(client, { header: 'CONNECT' });
    expect(decodeMessage(profile, 'client', await client.receive())).toMatchObject({ header: 'CONNECT_ACK' });
    await say(client, {
      header: 'SUBMIT_REQUEST',
      requestId: 7,
      prompt: encodeValue([1, 2, 3]),
      sampling: wireMap({ num_tokens_to_generate: 2 }),
      blockHashes: null,
      mediaMeta: null,
      media: null,
      offloadParams: null,
    });
    const submitted = await engineHears(prefill);
    if (submitted.header !== 'SUBMIT_REQUEST') throw new Error(submitted.header);
    expect(submitted.sampling.get('do_kv_handoff')).toBe(true);
    const { requestId } = submitted;
    const handoff = wireMap({ request_id: requestId, block_ids: [4], kv_meta: wireMap({ resume_tokens: [9] }) });
    const body = encodeValue(wireMap({ request_id: requestId, disaggregated_params: handoff }));
    await say(prefill, { header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body }] });
    expect(await engineHears(decode)).toMatchObject({ header: 'SUBMIT_REQUEST_WITH_KV', requestId });
    if (profile === 'multi-frame') {
      const { status, stdout } = call('status', first.address);
      expect(stdout).toContain('engine prefill_s0_dp0: prefill, 1 active');
      expect(stdout).toContain('engine decode_s0_dp0: decode, 1 active');
      expect(stdout).toContain(`pin ${requestId} on prefill_s0_dp0`);
      expect(status).toBe(0);
      const json = JSON.parse(call('status', first.address, '--json').stdout) as { engines: unknown[]; wire: object };
      expect(json.engines).toHaveLength(2);
      expect(json.wire).toMatchObject({ malformed: 0 });
    }
    child.kill('SIGTERM');
    await say(decode, { header: 'KV_READ_DONE', requestId });
    expect(await engineHears(prefill)).toMatchObject({ header: 'RELEASE_KV', requestId });
    const reply = encodeValue(wireMap({ request_id: requestId, generated_tokens: [9, 8] }));
    await say(decode, { header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body: reply }] });
    expect(await clientHears(client)).toMatchObject({ header: 'ENGINE_REPLY', requestId: 7 });
    expect(await ended).toBe(0);
    expect(log()).toContain('"msg":"drained"');
  },
);

it('reads a configuration file, takes a free port for a taken one, and stays quiet when told to', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'state-handoff-coordinator-'));
  try {
    const one = await run('--address', 'tcp://127.0.0.1:0');
    const file = join(folder, 'coordinator.json');
    writeFileSync(file, JSON.stringify({ address: one.first.address, 'log-level': 'error', aggregated: true }));
    const two = await run('--config', file);
    expect(two.first.fell_back).toBe(true);
    expect(two.first.address).not.toBe(one.first.address);
    two.child.kill('SIGINT');
    expect(await two.ended).toBe(0);
    expect(two.log()).toBe('');
    writeFileSync(file, JSON.stringify({ adress: 'x' }));
    expect(call('coordinator', '--config', file)).toMatchObject({ status: 2 });
  } finally {
    rmSync(folder, { recursive: true });
  }
});

it('listens beyond this machine with --insecure, and only with it', async () => {
  const { first } = await run('--address', 'tcp://0.0.0.0:0', '--insecure');
  expect(first.address).toMatch(/^tcp:\/\/0\.0\.0\.0:\d+$/);
  expect(call('coordinator', '--address', 'tcp://0.0.0.0:0')).toMatchObject({ status: 2, stdout: '' });
});

it('shows its metrics on a loopback port until it ends, and only when it is told to', async () => {
  const { child, first, ended } = await run('--address', 'tcp://127.0.0.1:0', '--metrics-port', '0');
  const page = await fetch(first.metrics!);
  expect(page.headers.get('content-type')).toContain('text/plain; version=0.0.4');
  expect(await page.text()).toContain('\nstate_handoff_requests_total{outcome="completed"} 0\n');
  const { port } = new URL(first.metrics!);
  const { status, stderr } = call('coordinator', '--address', 'tcp://127.0.0.1:0', '--metrics-port', port);
  expect(stderr).toContain(`metrics-port: 127.0.0.1:${port} cannot be listened at because EADDRINUSE`);
  expect(status).toBe(2);
  child.kill('SIGTERM');
  expect(await ended).toBe(0);
  await expect(fetch(first.metrics!)).rejects.toThrow();
  expect((await run('--address', 'tcp://127.0.0.1:0')).first.metrics).toBeNull();
});

it('makes keys, encrypts with them, and answers those on its list only', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'state-handoff-keys-'));
  try {
    const at = (name: string): string => join(folder, name);
    const make = (name: string, ...more: string[]) => call('keys', name, '--out', at(`${name}.json`), ...more);
    const own = make('router');
    expect(own.status).toBe(0);
    const { public_key: serverKey } = JSON.parse(own.stdout) as { public_key: string };
    for (const [name, role] of [
      ['watcher', 'observer'],
      ['prefill-0', 'engine'],
    ] as const)
      expect(make(name, '--peers', at('peers.json'), '--role', role)).toMatchObject({ status: 0, stderr: '' });
    make('stranger');
    const peers = JSON.parse(readFileSync(at('peers.json'), 'utf8')) as Record<string, { key: string }>;
    expect(Object.keys(peers)).toEqual(['watcher', 'prefill-0']);
    expect(statSync(at('router.json')).mode & 0o777).toBe(0o600);
    expect(readFileSync(at('router.json'), 'utf8')).toContain(serverKey);
    // What is there is never overwritten, and what fails leaves nothing behind.
    expect(make('router')).toMatchObject({ status: 2, stderr: expect.stringContaining('EEXIST') as string });
    expect(make('other', '--peers', at('peers.json'))).toMatchObject({ status: 2 });
    const twice = call('keys', 'watcher', '--out', at('w2.json'), '--peers', at('peers.json'), '--role', 'client');
    expect(twice.stderr).toContain('peers: expected a list without this name, got "watcher"');
    expect(readdirSync(folder).sort()).toEqual(
      ['peers.json', 'prefill-0.json', 'router.json', 'stranger.json', 'watcher.json'].sort(),
    );

    const files = ['--key-file', at('router.json'), '--peers', at('peers.json')];
    const { first } = await run('--address', 'tcp://127.0.0.1:0', ...files);
    const ask = (name: string, key = serverKey) =>
      call(
        'status',
        first.address,
        '--json',
        '--timeout-ms',
        '3000',
        '--key-file',
        at(`${name}.json`),
        '--server-key',
        key,
      );
    const answer = ask('watcher');
    expect(answer.status).toBe(0);
    expect(JSON.parse(answer.stdout)).toMatchObject({ engines: [], clients: 0 });
    expect(ask('stranger').stderr).toMatch(/no answer .*must be its public key, and stranger on its list/);
    expect(call('status', first.address, '--timeout-ms', '1000').status).toBe(1);
    expect(call('status', first.address, '--key-file', at('watcher.json')).stderr).toContain(
      'expected both or neither',
    );
    expect(call('coordinator', '--key-file', at('router.json')).stderr).toContain('expected both or neither');
    writeFileSync(at('no-keys.json'), '{}', { mode: 0o600 });
    expect(call('coordinator', '--key-file', at('no-keys.json'), '--peers', at('peers.json')).stderr).toContain(
      'key-file.name: expected',
    );
    for (const mode of [0o640, 0o604, 0o620]) {
      chmodSync(at('watcher.json'), mode);
      const { status, stderr } = ask('watcher');
      expect(stderr).toContain(
        `key-file: expected ${at('watcher.json')} to be for its owner alone (mode 600), got mode ${mode.toString(8)}`,
      );
      expect(status).toBe(2);
    }
    chmodSync(at('router.json'), 0o644);
    expect(call('coordinator', ...files).stderr).toContain(`${at('router.json')} to be for its owner alone`);
    chmodSync(at('router.json'), 0o600);
    chmodSync(at('peers.json'), 0o646);
    expect(call('coordinator', ...files).stderr).toContain(
      `peers: expected ${at('peers.json')} to be written by its owner only, got mode 646; chmod o-w it`,
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});

it('reads its allow-list again on SIGHUP, and keeps the one it has when the new one cannot be', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'state-handoff-keys-'));
  try {
    const at = (name: string): string => join(folder, name);
    const make = (name: string, ...more: string[]) =>
      JSON.parse(call('keys', name, '--out', at(`${name}.json`), ...more).stdout) as { readonly public_key: string };
    const { public_key: serverKey } = make('router');
    const listed = ['--peers', at('peers.json'), '--role', 'observer'];
    make('first', ...listed);
    const { child, first, log } = await run(
      ...['--address', 'tcp://127.0.0.1:0', '--key-file', at('router.json'), '--peers', at('peers.json')],
    );
    const ask = (name: string, timeoutMs = 30_000) => {
      const keys = ['--key-file', at(`${name}.json`), '--server-key', serverKey];
      return call('status', first.address, '--timeout-ms', String(timeoutMs), ...keys).status;
    };
    const hangUp = async (word: string): Promise<void> => {
      const before = log().split(word).length;
      child.kill('SIGHUP');
      await until(word, () => log().split(word).length > before);
    };
    expect(ask('first')).toBe(0);
    make('second', ...listed);
    await hangUp('allow-list read again');
    expect([ask('first'), ask('second')]).toEqual([0, 0]);
    const peers = JSON.parse(readFileSync(at('peers.json'), 'utf8')) as Record<string, unknown>;
    writeFileSync(at('peers.json'), JSON.stringify({ second: peers['second'] }));
    await hangUp('allow-list read again');
    expect([ask('first', 500), ask('second')]).toEqual([1, 0]);
    writeFileSync(at('peers.json'), JSON.stringify({ ...peers, third: { role: 'king', key: 'x' } }));
    await hangUp('allow-list kept');
    expect(log()).toContain('peers.third.role: expected engine, client, observer, got');
    expect([ask('first', 500), ask('second')]).toEqual([1, 0]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

it('takes keys and lists from regular files only, and waits for no writer of a pipe', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'state-handoff-keys-'));
  const at = (name: string): string => join(folder, name);
  const listener = createServer();
  try {
    call('keys', 'router', '--out', at('router.json'));
    call('keys', 'watcher', '--out', at('watcher.json'), '--peers', at('peers.json'), '--role', 'observer');
    execFileSync('mkfifo', ['-m', '600', at('pipe')]);
    symlinkSync(at('pipe'), at('link'));
    await new Promise<void>((resolve) => listener.listen(at('socket'), resolve));
    const expected = (flag: string, file: string, got: string): string =>
      `${flag}: expected ${file} to be a regular file, got ${got}`;
    const kinds: readonly (readonly [file: string, got: string])[] = [
      [at('pipe'), 'a pipe'],
      [at('link'), 'a pipe'],
      [folder, 'a directory'],
      ['/dev/zero', 'a device'],
      [at('socket'), 'a socket'],
    ];
    for (const [file, got] of kinds) {
      const [asKeys, asList] = [
        call('coordinator', '--key-file', file, '--peers', at('peers.json')),
        call('coordinator', '--key-file', at('router.json'), '--peers', file),
      ];
      expect([asKeys.stderr, asKeys.status]).toEqual([expect.stringContaining(expected('key-file', file, got)), 2]);
      expect([asList.stderr, asList.status]).toEqual([expect.stringContaining(expected('peers', file, got)), 2]);
    }
    const files = ['--key-file', at('router.json'), '--peers', at('peers.json')];
    const { child, first, log } = await run('--address', 'tcp://127.0.0.1:0', ...files);
    rmSync(at('peers.json'));
    execFileSync('mkfifo', ['-m', '600', at('peers.json')]);
    child.kill('SIGHUP');
    await until('the list of before is kept', () => log().includes('allow-list kept'));
    expect(log()).toContain(expected('peers', at('peers.json'), 'a pipe'));
    const { public_key: serverKey } = JSON.parse(readFileSync(at('router.json'), 'utf8')) as { public_key: string };
    const keys = ['--key-file', at('watcher.json'), '--server-key', serverKey];
    expect(call('status', first.address, ...keys).status).toBe(0);
  } finally {
    listener.close();
    rmSync(folder, { recursive: true });
  }
});

it.each([
  [['coordinator', '--fast'], "Unknown option '--fast'"],
  [['coordinator', '--profile', 'double'], 'profile: expected multi-frame, single-frame, got "double"'],
  [['coordinator', '--address', 'tcp://127.0.0.1:0', '--metrics-port', '70000'], 'metrics-port: expected a port'],
  [['coordinator', '--prompt-mib', '0'], 'limits.promptBytesMax: expected at least 1, got 0'],
  [['coordinator', '--drain-ms', 'soon'], 'drain-ms: expected an integer of at least 0, got "soon"'],
  [['coordinator', '--address', 'tcp://0.0.0.0:0'], 'expected a loopback address'],
  [['coordinator', '--config', 'none.json'], 'config: none.json cannot be read'],
  [['status'], 'usage: state-handoff status ADDRESS'],
  [['status', 'nowhere'], 'ADDRESS: expected tcp://HOST:PORT'],
  [['status', '--loud'], "Unknown option '--loud'"],
])('refuses %j', (args, text) => {
  const { status, stderr } = call(...args);
  expect(stderr).toContain(text);
  expect(status).toBe(2);
});

it('says how to call them, and that nobody answers', () => {
  expect(call('coordinator', '--help')).toMatchObject({
    status: 0,
    stdout: expect.stringContaining('--heartbeat-ms') as string,
  });
  expect(call('status', '--help').status).toBe(0);
  const { status, stderr } = call('status', 'tcp://127.0.0.1:9', '--timeout-ms', '50');
  expect(stderr).toContain('no answer from tcp://127.0.0.1:9 within 50 ms');
  expect(status).toBe(1);
});
