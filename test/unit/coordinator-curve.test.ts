/** A coordinator that encrypts: who may connect, under which name, and what nobody can take from whom. Real sockets. */
import { CoordinatorClient } from '../../lib/control/client/coordinator-client.js';
import { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import { wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { CoordinatorServer } from '../../lib/control/zeromq/coordinator-server.js';
import { makeKeyPair } from '../../lib/control/zeromq/curve-key.js';
import type { CurvePeer } from '../../lib/control/zeromq/curve-peers.js';
import { EngineConnection } from '../../lib/control/zeromq/engine-connection.js';
import { curveIdentity } from '../../lib/control/zeromq/socket-identity.js';
import { submitMessage } from '../support/coordinator-desk.js';
import {
  aliceAt,
  ends,
  held,
  open,
  openWith,
  Peer,
  peerOf,
  peers,
  register,
  server,
  works,
} from '../support/curve-scene.js';
import { RelayCore } from '../support/relay-core.js';
import { until } from '../support/waiting.js';

test('the right keys carry a request there and back, and the core sees names', async () => {
  const scene = await open();
  await works(scene, await aliceAt(scene));
  const names = scene.core.heard.map(({ peer }) => peer.split('.')[0]);
  expect(new Set(names)).toEqual(new Set(['alice', 'client']));
  expect(scene.core.engine).toBe('alice');
  expect(scene.server.wire).toMatchObject({ refusedMessages: 0, refusedKeys: 0, malformed: 0 });
});

test('a key that is not on the list is refused, and so is no key at all', async () => {
  const scene = await open();
  const alice = await aliceAt(scene);
  const stranger: CurvePeer = { name: 'alice', secretKey: makeKeyPair().secretKey, serverKey: server.publicKey };
  await new Peer(scene, curveIdentity(stranger, 'stranger')).say(register);
  await new Peer(scene, { routingId: 'alice' }).say(register);
  await until('the key is refused', () => scene.server.wire.refusedKeys > 0);
  const curve = { ...stranger, name: 'client' };
  await expect(
    CoordinatorClient.connect({ address: scene.server.address, curve, connectMs: 2_000 }),
  ).rejects.toMatchObject({
    code: 'PEER_UNREACHABLE',
    message: expect.stringContaining('this key was refused') as string,
  });
  await works(scene, alice);
  expect(scene.core.heard.filter(({ message }) => message.header === 'REGISTER_ROLE')).toHaveLength(1);
});

test('who does not know the coordinator by its key does not reach it', async () => {
  const scene = await open();
  const curve = { ...peerOf('client'), serverKey: makeKeyPair().publicKey };
  await expect(
    CoordinatorClient.connect({ address: scene.server.address, curve, connectMs: 500 }),
  ).rejects.toMatchObject({ code: 'PEER_UNREACHABLE' });
  expect(scene.core.heard).toEqual([]);
});

test('a key on the list proves its own name only: the name of another is refused and displaces nobody', async () => {
  const scene = await open();
  const alice = await aliceAt(scene);
  const own = curveIdentity(peerOf('mallory'), 'mallory');
  const [, nonce, proof] = own.routingId.split('.') as [string, string, string];
  const forged = curveIdentity({ ...peerOf('mallory'), name: 'alice' }, 'mallory').routingId;
  for (const routingId of ['alice', forged, `alice.${nonce}.${proof}`, `alice.${nonce}`]) {
    const peer = new Peer(scene, { ...own, routingId });
    await peer.say(register);
    expect(await peer.hears()).toEqual({
      header: 'REGISTRATION_ERROR',
      reason: 'the name is not proven by the key that it belongs to',
    });
    await peer.say({ header: 'DISCONNECT' });
  }
  await until('all are refused', () => scene.server.wire.refusedMessages === 8);
  expect(scene.core.engine).toBe('alice');
  await works(scene, alice);
});

test('a role is no other: a client does not register, an engine does not submit, an observer only looks', async () => {
  const scene = await open();
  const alice = await aliceAt(scene);
  const client = new Peer(scene, curveIdentity(peerOf('client'), 'client'));
  await client.say(register);
  expect(await client.hears()).toMatchObject({ reason: 'REGISTER_ROLE is not for a peer of the role client' });
  await alice.say(submitMessage(1));
  const watcher = new Peer(scene, curveIdentity(peerOf('watcher'), 'watcher'));
  await watcher.say({ header: 'SHUTDOWN' });
  await watcher.say(submitMessage(2));
  await watcher.say({ header: 'STATUS' });
  expect(await watcher.isTold()).toEqual({
    header: 'REQUEST_ERROR',
    requestId: 2,
    reason: 'SUBMIT_REQUEST is not for a peer of the role observer',
    sourceSafe: true,
  });
  expect((await watcher.isTold()).header).toBe('STATUS_REPLY');
  await until('all are refused', () => scene.server.wire.refusedMessages === 4);
  expect(scene.core.heard.map(({ message }) => message.header)).toEqual(['REGISTER_ROLE', 'STATUS']);
});

test('an engine that comes back speaks for its name; the connection before it is told and has no say', async () => {
  const scene = await open();
  const before = await aliceAt(scene);
  const again = await aliceAt(scene);
  expect(await before.hears()).toEqual({
    header: 'REGISTRATION_ERROR',
    reason: 'another connection has registered under this name',
  });
  await before.say({ header: 'DISCONNECT' });
  await until('it is refused', () => scene.server.wire.refusedMessages === 1);
  await works(scene, again);
});

test('an engine has no say before it registers', async () => {
  const scene = await open();
  const alice = new Peer(scene, curveIdentity(peerOf('alice'), 'alice'));
  await alice.say({ header: 'KV_READ_DONE', requestId: 1 });
  await alice.say({ header: 'ENGINE_STATUS', status: wireMap({ active: 1 }) });
  await until('both are refused', () => scene.server.wire.refusedMessages === 2);
  expect(scene.core.heard).toEqual([]);
  await alice.say(register);
  expect(await alice.hears()).toEqual({ header: 'REGISTER_ROLE_ACK' });
  await works(scene, alice);
});

test('two connections under one client’s name are two peers, and each gets its own answers', async () => {
  const scene = await open();
  const alice = await aliceAt(scene);
  await works(scene, alice);
  await works(scene, alice);
  const submitted = scene.core.heard.filter(({ message }) => message.header === 'SUBMIT_REQUEST');
  expect(submitted.map(({ peer }) => peer.split('.')[0])).toEqual(['client', 'client']);
  expect(new Set(submitted.map(({ peer }) => peer)).size).toBe(2);
});

test('an engine that is gone is found by its name', async () => {
  const scene = await open();
  const alice = await aliceAt(scene);
  alice.socket.close();
  await until('the loss is noticed', () => scene.core.lost.length > 0);
  expect(scene.core.lost).toEqual(['alice']);
  await works(scene, await aliceAt(scene));
});

test('an engine’s connection takes keys, and is told when they are not its own', async () => {
  const scene = await open();
  const connection = (curve: CurvePeer, identity?: string) => {
    const made = new EngineConnection({
      address: scene.server.address,
      profile: 'multi-frame',
      curve,
      instance: 'some engine',
      identity,
      status: () => ({}),
      statusMs: null,
      register: () => register as never,
      onMessage: () => undefined,
      onRejected: () => undefined,
      onLost: () => undefined,
    });
    ends.push(() => made.close());
    return made;
  };
  await connection(peerOf('alice')).open(30_000);
  expect(scene.core.engine).toBe('alice');
  await expect(connection({ ...peerOf('mallory'), name: 'alice' }).open(30_000)).rejects.toMatchObject({
    code: 'INCOMPATIBLE',
    message: 'the coordinator refused this engine: the name is not proven by the key that it belongs to',
  });
  const unknown = { ...peerOf('alice'), secretKey: makeKeyPair().secretKey };
  await expect(connection(unknown).open(2_000)).rejects.toMatchObject({
    code: 'PEER_UNREACHABLE',
    message: expect.stringContaining('this key was refused') as string,
  });
  expect(() => connection({ ...peerOf('alice'), secretKey: 'no' })).toThrow(
    'options.curve.secretKey: expected a CURVE key',
  );
  expect(() => connection(peerOf('alice'), 'prefill_s0_dp0')).toThrow(
    'options.identity: expected that of options.curve, alice, got "prefill_s0_dp0"',
  );
  expect(() => connection(peerOf('alice'), 'no name')).toThrow('options.identity: expected up to 64 letters');
  expect(scene.core.engine).toBe('alice');
});

test('nothing that proves a name comes into the log', async () => {
  const scene = await open();
  const identity = curveIdentity(peerOf('alice'), 'alice');
  const alice = new Peer(scene, identity);
  await alice.socket.send([Buffer.from('garbage')]);
  await alice.say(submitMessage(1));
  await alice.say(register);
  await alice.hears();
  alice.socket.close();
  await until('the loss is noticed', () => scene.core.lost.length > 0);
  expect(scene.log.length).toBeGreaterThanOrEqual(3);
  expect(scene.log[0]).toContain('"peer":"alice"');
  const [, nonce, proof] = identity.routingId.split('.') as [string, string, string];
  expect(scene.log.filter((line) => line.includes(nonce) || line.includes(proof))).toEqual([]);
});

test('needs no loopback address, and is refused where nothing is encrypted', async () => {
  const curve = { secretKey: server.secretKey, peers };
  const wide = await CoordinatorServer.start({ core: new RelayCore(), address: 'tcp://0.0.0.0:0', curve });
  await wide.close();
  await expect(CoordinatorServer.start({ core: new RelayCore(), address: 'inproc://here', curve })).rejects.toThrow(
    'options.curve: expected no CURVE keys with an inproc address',
  );
  await expect(CoordinatorServer.start({ core: new RelayCore(), curve: { ...curve, secretKey: 'x' } })).rejects.toThrow(
    'options.curve.secretKey: expected a CURVE key',
  );
});

test.each([
  [
    { role: 'Observer', key: held.watcher.publicKey },
    'watcher.role: expected engine, client, observer, got "Observer"',
  ],
  [{ role: 'observer', key: held.client.publicKey }, 'watcher.key: expected a key of its own, got "that of client"'],
  [{ key: held.watcher.publicKey }, 'watcher: expected a map of role and key'],
])('refuses a list that no file would be read as: %#', async (watcher, text) => {
  const curve = { secretKey: server.secretKey, peers: { ...peers, watcher: watcher as never } };
  // Closed when it should not have started.
  const starting = CoordinatorServer.start({ core: new RelayCore(), curve }).then((started) => started.close());
  await expect(starting).rejects.toMatchObject({
    code: 'OPTION_INVALID',
    message: expect.stringContaining(`options.curve.peers.${text}`) as string,
  });
});

test('another connection under an engine’s name takes its place only if it is accepted', async () => {
  const scene = await openWith(new Coordinator({ instance: 'run', isDisaggregated: true }));
  const entry = {
    request_capacity: 4,
    tokens_per_block: 16,
    element_size: 2,
    head_dim: 8,
    num_layers_global: 2,
    num_kv_heads_global: 2,
  };
  const joins = async (name: 'alice' | 'mallory', role: string, more = {}): Promise<Peer> => {
    const peer = new Peer(scene, curveIdentity(peerOf(name), name));
    await peer.say({ ...register, role, instanceMeta: [wireMap({ ...entry, ...more })] } as typeof register);
    return peer;
  };
  const alice = await joins('alice', 'prefill');
  const mallory = await joins('mallory', 'decode');
  for (const peer of [alice, mallory]) expect(await peer.hears()).toEqual({ header: 'REGISTER_ROLE_ACK' });
  const client = new Peer(scene, curveIdentity(peerOf('client'), 'client'));
  await client.say({ header: 'CONNECT' });
  await client.say(submitMessage(1));
  expect(await alice.hears()).toMatchObject({ header: 'SUBMIT_REQUEST', requestId: 0 });

  const other = await joins('alice', 'prefill', { head_dim: 16 });
  expect(await other.hears()).toMatchObject({
    header: 'REGISTRATION_ERROR',
    reason: expect.stringContaining('incompatible transfer geometry') as string,
  });
  const wrongRole = await joins('alice', 'decode');
  expect(await wrongRole.hears()).toMatchObject({
    reason: expect.stringContaining('may not change its role') as string,
  });
  await alice.say({ header: 'ENGINE_STATUS', status: wireMap({ active: 1 }) });
  await until('alice has the say', () =>
    scene.server.snapshot().engines.some(({ peer, load }) => peer === 'alice' && load['active'] === 1),
  );
  expect(scene.server.snapshot().requests.prefill).toBe(1);

  const same = await joins('alice', 'prefill');
  expect(await same.hears()).toEqual({ header: 'REGISTER_ROLE_ACK' });
  expect(await alice.hears()).toMatchObject({ reason: 'another connection has registered under this name' });
  expect(await client.isTold()).toMatchObject({ header: 'CONNECT_ACK' });
  expect(await client.isTold()).toMatchObject({
    header: 'REQUEST_ERROR',
    requestId: 1,
    reason: 'its prefill engine is gone: it registered again',
  });
});
