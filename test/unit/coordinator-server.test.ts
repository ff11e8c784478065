/** The shell around a coordinator's core: real sockets of this process, a core that only relays. */
import { Dealer } from 'zeromq';
import { CoordinatorServer, type CoordinatorServerOptions } from '../../lib/control/zeromq/coordinator-server.js';
import { decodeMessage, encodeMessage, type WireProfile } from '../../lib/control/protocol/codec.js';
import type { ToClient, ToCoordinator, ToEngine } from '../../lib/control/protocol/messages.js';
import { encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { RelayCore } from '../support/relay-core.js';
import { until } from '../support/waiting.js';

const open: { close(): void }[] = [];
const servers: CoordinatorServer[] = [];
afterEach(async () => {
  for (const socket of open.splice(0)) socket.close();
  for (const server of servers.splice(0)) await server.close();
});

async function started(
  options: Partial<CoordinatorServerOptions> = {},
): Promise<{ server: CoordinatorServer; core: RelayCore }> {
  const core = new RelayCore();
  const server = await CoordinatorServer.start({ core, ...options });
  servers.push(server);
  return { server, core };
}

class Peer {
  readonly socket: Dealer;

  constructor(
    address: string,
    readonly profile: WireProfile = 'multi-frame',
    routingId?: string,
    extra: object = {},
  ) {
    this.socket = new Dealer({ linger: 0, ...(routingId === undefined ? {} : { routingId }), ...extra });
    this.socket.connect(address);
    open.push(this.socket);
  }

  async say(message: ToCoordinator): Promise<void> {
    await this.socket.send(encodeMessage(this.profile, 'coordinator', message) as Uint8Array[]);
  }

  async hearClient(): Promise<ToClient> {
    return decodeMessage(this.profile, 'client', await this.socket.receive());
  }

  async hearEngine(): Promise<ToEngine> {
    return decodeMessage(this.profile, 'engine', await this.socket.receive());
  }
}

const register: ToCoordinator = {
  header: 'REGISTER_ROLE',
  role: 'decode',
  transport: 'host',
  instanceMeta: [],
  extension: null,
};
const submit = (requestId: number): ToCoordinator => ({
  header: 'SUBMIT_REQUEST',
  requestId,
  prompt: encodeValue([1, 2, 3]),
  sampling: wireMap({ top_k: 1 }),
  blockHashes: null,
  mediaMeta: null,
  media: null,
  offloadParams: null,
});
const body = (size = 10) => encodeValue(wireMap({ request_id: 0, text: 'x'.repeat(size) }));

async function engineAt(address: string, profile: WireProfile = 'multi-frame', name = 'decode_s0_dp0'): Promise<Peer> {
  const engine = new Peer(address, profile, name);
  await engine.say(register);
  expect(await engine.hearEngine()).toEqual({ header: 'REGISTER_ROLE_ACK' });
  return engine;
}

it.each<WireProfile>(['single-frame', 'multi-frame'])('carries a request there and back (%s)', async (profile) => {
  const { server, core } = await started({ profile });
  const engine = await engineAt(server.address, profile);
  const client = new Peer(server.address, profile);
  await client.say({ header: 'CONNECT' });
  expect(await client.hearClient()).toEqual({
    header: 'CONNECT_ACK',
    instance: profile === 'multi-frame' ? 'relay' : null,
  });
  await client.say(submit(70));
  expect(await engine.hearEngine()).toMatchObject({
    header: 'SUBMIT_REQUEST',
    requestId: 0,
    prompt: Buffer.from(encodeValue([1, 2, 3])),
  });
  await engine.say({ header: 'ENGINE_REPLY', replies: [{ requestId: 0, needsDetokenize: false, body: body() }] });
  expect(await client.hearClient()).toEqual({ header: 'ENGINE_REPLY', requestId: 70, body: Buffer.from(body()) });
  expect(core.heard.map(({ message }) => message.header)).toEqual([
    'REGISTER_ROLE',
    'CONNECT',
    'SUBMIT_REQUEST',
    'ENGINE_REPLY',
  ]);
  expect(server.wire).toMatchObject({ received: 4, malformed: 0, sent: 4, undelivered: 0, waitingBytes: 0 });
  await until('a tick', () => core.ticks > 0);
});

it('listens for threads and processes of this machine too', async () => {
  const { server } = await started({ address: `ipc://@state-handoff-test-${process.pid}` });
  await engineAt(server.address);
});

it('field report 95: drops what is no message, says why, and goes on', async () => {
  const lines: string[] = [];
  const { server, core } = await started({
    log: (level, event, fields) => lines.push(`${level} ${event}: ${fields['reason']}`),
  });
  const peer = new Peer(server.address, 'multi-frame', 'odd');
  await peer.socket.send([Buffer.from([0x91, 99])]);
  await peer.socket.send([Buffer.from('garbage')]);
  await peer.socket.send([Buffer.alloc(0), Buffer.alloc(0)]);
  await peer.say({ header: 'CONNECT' });
  expect(await peer.hearClient()).toMatchObject({ header: 'CONNECT_ACK' });
  expect(core.heard).toHaveLength(1);
  expect(server.wire.malformed).toBe(3);
  expect(lines[0]).toBe('warn message dropped: frames[0][0]: expected a header value of the protocol, got 99');
});

it('goes on after a message that it only logs', async () => {
  const { server, core } = await started();
  const relay = core.receive.bind(core);
  core.receive = (nowMs, peer, message) =>
    message.header === 'KV_READ_DONE'
      ? [{ kind: 'log', level: 'warn', event: 'message ignored', fields: {} }]
      : relay(nowMs, peer, message);
  const peer = new Peer(server.address);
  await peer.say({ header: 'KV_READ_DONE', requestId: 1 });
  await peer.say({ header: 'CONNECT' });
  expect((await peer.hearClient()).header).toBe('CONNECT_ACK');
});

it('keeps identities that are no text', async () => {
  const { server, core } = await started();
  const peer = new Peer(server.address);
  await peer.say({ header: 'CONNECT' });
  await peer.hearClient();
  expect(core.heard[0]!.peer).toHaveLength(5);
  expect(core.heard[0]!.peer.charCodeAt(0)).toBe(0);
});

it('field report 104: takes a free port when the wanted one is taken, unless told not to', async () => {
  const { server } = await started();
  const other = await started({ address: server.address });
  expect(other.server.fellBack).toBe(true);
  expect(other.server.address).toMatch(/^tcp:\/\/127\.0\.0\.1:\d+$/);
  expect(other.server.address).not.toBe(server.address);
  expect(server.fellBack).toBe(false);
  await expect(started({ address: server.address, fallsBack: false })).rejects.toThrow(
    'cannot be bound because EADDRINUSE',
  );
});

it.each([
  ['tcp://0.0.0.0:0', 'expected a loopback address without CURVE keys'],
  ['tcp://example.org:5', 'expected a loopback address without CURVE keys'],
  ['tcp://127.0.0.1', 'expected tcp://HOST:PORT'],
  ['tcp://127.0.0.1:65536', 'expected tcp://HOST:PORT'],
  ['http://127.0.0.1:5', 'expected tcp://HOST:PORT'],
])('refuses to listen at %s', async (address, text) => {
  await expect(started({ address })).rejects.toThrow(text);
});

it('listens beyond this machine when it is told to', async () => {
  const { server } = await started({ address: 'tcp://0.0.0.0:0', insecure: true });
  expect(server.address).toMatch(/^tcp:\/\/0\.0\.0\.0:\d+$/);
});

it('refuses a heartbeat that is none', async () => {
  await expect(started({ heartbeatMs: 5 })).rejects.toThrow(
    'options.heartbeatMs: expected an integer in [100, 3600000], got 5',
  );
});

it('finds an engine that is gone with nothing in flight, and leaves the others', async () => {
  const { server, core } = await started();
  const stays = await engineAt(server.address, 'multi-frame', 'stays');
  const goes = await engineAt(server.address, 'multi-frame', 'goes');
  goes.socket.close();
  await until('the loss is noticed', () => core.lost.length > 0);
  expect(core.lost).toEqual(['goes']);
  // The probe that the other one got is a release of nobody's id.
  expect(await stays.hearEngine()).toEqual({
    header: 'RELEASE_KV',
    requestId: Number.MAX_SAFE_INTEGER,
    instance: null,
  });
});

it('tells the core what could not be delivered', async () => {
  const { server, core } = await started();
  const engine = await engineAt(server.address);
  const client = new Peer(server.address, 'multi-frame', 'client');
  await client.say(submit(7));
  await engine.hearEngine();
  client.socket.close();
  await until('the client is gone', () => core.heard.length === 2);
  await until('the reply is undelivered', () => {
    void engine
      .say({ header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId: 0, body: body() }] })
      .catch(() => undefined);
    return core.undeliverable.length > 0;
  });
  expect(core.undeliverable[0]).toMatchObject({
    peer: 'client',
    message: { header: 'ENGINE_REPLY_PARTIAL', requestId: 7 },
  });
});

it('gives the identity to who comes back with it', async () => {
  const { server, core } = await started();
  const first = await engineAt(server.address);
  const again = await engineAt(server.address);
  const client = new Peer(server.address);
  await client.say(submit(1));
  expect(await again.hearEngine()).toMatchObject({ header: 'SUBMIT_REQUEST' });
  expect(core.engine).toBe('decode_s0_dp0');
  first.socket.close();
});

it('ends the requests of a client that does not read, tells it, and keeps its memory bounded', async () => {
  const limits = { clientBytesMax: 200_000, engineBytesMax: 1 << 20, messagesMax: 1000 };
  const { server, core } = await started({ outboxLimits: limits });
  const engine = await engineAt(server.address);
  const slow = new Peer(server.address, 'multi-frame', 'slow', { receiveHighWaterMark: 1 });
  for (const id of [1, 2]) await slow.say(submit(id));
  for (let count = 0; count < 2; count++) await engine.hearEngine();
  let largest = 0;
  const partial: ToCoordinator = {
    header: 'ENGINE_REPLY_PARTIAL',
    partials: [0, 1].map((requestId) => ({ requestId, body: body(20_000) })),
  };
  await until('too much waits', () => {
    for (let count = 0; count < 20; count++)
      void engine.socket
        .send(encodeMessage('multi-frame', 'coordinator', partial) as Uint8Array[])
        .catch(() => undefined);
    largest = Math.max(largest, server.wire.waitingBytes);
    return server.wire.overflowed > 0;
  });
  expect(largest).toBeLessThanOrEqual(limits.clientBytesMax);
  const aborts = core.heard.filter(({ message }) => message.header === 'ABORT_REQUEST');
  expect(aborts.map(({ peer }) => peer)).toEqual(['slow', 'slow']);
  // Once it reads, it learns what became of its requests.
  const told = new Map<number, string>();
  while (told.size < 2) {
    const message = await slow.hearClient();
    if (message.header === 'REQUEST_ERROR') told.set(message.requestId, message.reason);
  }
  expect([...told.keys()].sort()).toEqual([1, 2]);
  expect(told.get(1)).toBe('the client reads its replies too slowly, they were dropped');
  await until('nothing waits', () => server.wire.waitingBytes === 0);
});

it('tells a client that lost the last word on a request that its source is safe', async () => {
  const limits = { clientBytesMax: 200_000, engineBytesMax: 1 << 20, messagesMax: 1000 };
  const { server, core } = await started({ outboxLimits: limits });
  const engine = await engineAt(server.address);
  const slow = new Peer(server.address, 'multi-frame', 'slow', { receiveHighWaterMark: 1 });
  for (const id of [1, 2]) await slow.say(submit(id));
  for (let count = 0; count < 2; count++) await engine.hearEngine();
  const partials = [{ requestId: 1, body: body(20_000) }];
  const isFull = (): boolean => server.wire.waitingBytes > 0 || server.wire.overflowed > 0;
  for (const end = Date.now() + 30_000; !isFull() && Date.now() < end;) {
    const { received } = server.wire;
    await engine.say({ header: 'ENGINE_REPLY_PARTIAL', partials });
    await until('it is heard', () => server.wire.received > received);
  }
  await engine.say({
    header: 'ENGINE_REPLY',
    replies: [{ requestId: 0, needsDetokenize: false, body: body(300_000) }],
  });
  await until('too much waits', () => server.wire.overflowed === 2);
  const aborts = core.heard.map(({ message }) => message).filter(({ header }) => header === 'ABORT_REQUEST');
  expect(aborts).toEqual([{ header: 'ABORT_REQUEST', requestId: 2 }]);
  const told = new Map<number, boolean>();
  while (told.size < 2) {
    const message = await slow.hearClient();
    if (message.header === 'REQUEST_ERROR') told.set(message.requestId, message.sourceSafe);
  }
  expect([...told].sort()).toEqual([
    [1, true],
    [2, false],
  ]);
});

it('what was under way with the reply that was too much is not sent behind the end of its request', async () => {
  const limits = { clientBytesMax: 200_000, engineBytesMax: 1 << 20, messagesMax: 1000 };
  const { server, core } = await started({ outboxLimits: limits });
  const engine = await engineAt(server.address);
  const slow = new Peer(server.address, 'multi-frame', 'slow', { receiveHighWaterMark: 1 });
  await slow.say(submit(1));
  await engine.hearEngine();
  // Several times as much as may wait, in one message.
  const partials = Array.from({ length: 60 }, () => ({ requestId: 0, body: body(20_000) }));
  for (const end = Date.now() + 30_000; server.wire.overflowed === 0 && Date.now() < end;) {
    const { received } = server.wire;
    await engine.say({ header: 'ENGINE_REPLY_PARTIAL', partials });
    await until('it is heard', () => server.wire.received > received || server.wire.overflowed > 0);
  }
  const told: string[] = [];
  while (told.at(-1) !== 'REQUEST_ERROR') told.push((await slow.hearClient()).header);
  await until('nothing waits', () => server.wire.waitingBytes === 0);
  expect(server.wire.overflowed).toBe(1);
  expect(core.heard.filter(({ message }) => message.header === 'ABORT_REQUEST')).toHaveLength(1);
});

it('shows an engine that reports and falls silent, and keeps it', async () => {
  let now = 0;
  const { server, core } = await started({ clock: { now: () => now } });
  const engine = await engineAt(server.address);
  const client = new Peer(server.address);
  const isSilent = async () => {
    await client.say({ header: 'STATUS' });
    const message = await client.hearClient();
    if (message.header !== 'STATUS_REPLY') throw new Error(message.header);
    expect(message.status.get('address')).toBe(server.address);
    expect(message.status.get('wire')).toBeInstanceOf(Map);
    return (message.status.get('engines') as Map<string, unknown>[])[0]!.get('silent');
  };
  now = 60_000;
  expect(await isSilent()).toBe(false); // It never said how often it reports.
  await engine.say({ header: 'ENGINE_STATUS', status: wireMap({ interval_ms: 1000 }) });
  await until('it is heard', () => core.heard.some(({ message }) => message.header === 'ENGINE_STATUS'));
  now += 2_999;
  expect(await isSilent()).toBe(false);
  now += 2;
  expect(await isSilent()).toBe(true);
  expect(core.lost).toEqual([]);
  await engine.say({ header: 'KV_READ_DONE', requestId: 1 });
  await until('it is heard again', () => core.heard.at(-1)!.message.header === 'KV_READ_DONE');
  expect(await isSilent()).toBe(false);
});

it('refuses new requests while it drains, and ends once the living are done', async () => {
  const { server } = await started();
  const engine = await engineAt(server.address);
  const client = new Peer(server.address);
  await client.say(submit(1));
  await engine.hearEngine();
  const drained = server.drain(30_000);
  await client.say(submit(2));
  expect(await client.hearClient()).toEqual({
    header: 'REQUEST_ERROR',
    requestId: 2,
    reason: 'the coordinator is draining',
    sourceSafe: true,
  });
  await engine.say({ header: 'ENGINE_REPLY', replies: [{ requestId: 0, needsDetokenize: false, body: body() }] });
  expect(await client.hearClient()).toMatchObject({ header: 'ENGINE_REPLY', requestId: 1 });
  expect(await drained).toBe(true);
  await server.ended;
});

it('ends at its deadline when a request does not', async () => {
  const { server } = await started();
  const engine = await engineAt(server.address);
  await new Peer(server.address).say(submit(1));
  await engine.hearEngine();
  expect(await server.drain(10)).toBe(false);
});

it('ends when the core says so', async () => {
  const { server } = await started();
  await new Peer(server.address).say({ header: 'SHUTDOWN' });
  await server.ended;
});

it('tells of a fault of its own, and ends', async () => {
  const { server, core } = await started();
  const failure = new Error('not this');
  core.receive = () => {
    throw failure;
  };
  const ended = expect(server.ended).rejects.toBe(failure);
  await new Peer(server.address).say({ header: 'CONNECT' });
  await ended;
});
