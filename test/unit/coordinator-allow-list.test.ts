/** Another allow-list while a coordinator runs: who stays, who is told, and who has a say again. Real sockets. */
import { CoordinatorClient } from '../../lib/control/client/coordinator-client.js';
import type { ClientRequest } from '../../lib/control/client/client-request.js';
import { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import { encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { CoordinatorServer } from '../../lib/control/zeromq/coordinator-server.js';
import { makeKeyPair } from '../../lib/control/zeromq/curve-key.js';
import { curveIdentity } from '../../lib/control/zeromq/socket-identity.js';
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
  type Scene,
} from '../support/curve-scene.js';
import { RelayCore } from '../support/relay-core.js';
import { until } from '../support/waiting.js';

const { mallory, ...withoutMallory } = peers;
const { client: _client, ...withoutClient } = peers;

test('lets new names in, and disturbs nobody who stands on it as before', async () => {
  const scene = await open();
  scene.server.allowPeers(withoutMallory);
  const late = new Peer(scene, curveIdentity(peerOf('mallory'), 'mallory'));
  await late.say(register);
  await until('its key is refused', () => scene.server.wire.refusedKeys > 0);
  late.socket.close();
  const alice = await aliceAt(scene);
  scene.server.allowPeers({ ...withoutMallory, mallory });
  expect(scene.core.lost).toEqual([]);
  await works(scene, alice);
  const again = new Peer(scene, curveIdentity(peerOf('mallory'), 'mallory'));
  await again.say(register);
  expect(await again.hears()).toEqual({ header: 'REGISTER_ROLE_ACK' });
});

test.each<[string, (typeof peers)['alice'] | undefined]>([
  ['whose name is gone', undefined],
  ['whose key is another', { role: 'engine', key: makeKeyPair().publicKey }],
  ['whose role is another', { role: 'client', key: held.alice.publicKey } as never],
])('an engine %s is removed, told, and heard no more', async (_name, entry) => {
  const scene = await open();
  // An earlier connection of hers stays open; it has no say, so nothing ends with it.
  await aliceAt(scene);
  const alice = await aliceAt(scene);
  const { alice: _alice, ...others } = peers;
  scene.server.allowPeers({ ...others, ...(entry === undefined ? {} : { alice: entry }) });
  expect(await alice.hears()).toMatchObject({
    header: 'REGISTRATION_ERROR',
    reason: 'its name, key or role is no longer on the list',
  });
  expect(scene.core.lost).toEqual(['alice']);
  const before = scene.core.heard.length;
  await alice.say({ header: 'KV_READ_DONE', requestId: 0 });
  await until('it is refused', () => scene.server.wire.refusedMessages === 1);
  expect(scene.core.heard).toHaveLength(before);
});

describe('a client that is gone from it', () => {
  const notListed = 'its name, key or role is no longer on the list';
  const end = (request: ClientRequest): Promise<unknown> =>
    (async () => {
      for await (const { kind } of request) expect(kind).toBe('final');
    })().catch((error: unknown) => error);

  /** An engine without a role, and a client with one request at it. */
  async function asked(): Promise<{
    readonly scene: Scene<Coordinator>;
    readonly alice: Peer;
    readonly client: CoordinatorClient;
    readonly request: ClientRequest;
  }> {
    const scene = await openWith(new Coordinator({ instance: 'run', isDisaggregated: false }));
    const alice = new Peer(scene, curveIdentity(peerOf('alice'), 'alice'));
    await alice.say({ header: 'REGISTER' });
    const curve = peerOf('client');
    const client = await CoordinatorClient.connect({ address: scene.server.address, curve, connectMs: 30_000 });
    ends.push(() => client.close());
    await until('alice is there', () => scene.server.snapshot().engines.length === 1);
    const request = client.addRequest([1, 2], wireMap({}));
    expect(await alice.hears()).toMatchObject({ header: 'SUBMIT_REQUEST', requestId: 0 });
    return { scene, alice, client, request };
  }

  test('is told of each request that ends, and later that nothing reads its source', async () => {
    const { scene, alice, client, request } = await asked();
    scene.server.allowPeers(withoutClient);
    expect(await end(request)).toMatchObject({
      code: 'ENGINE_FAILED',
      sourceSafe: false,
      details: { reason: notListed },
    });
    expect(await alice.hears()).toEqual({ header: 'ABORT_REQUEST', requestId: 0 });
    expect(client.openRequests).toBe(1);
    await alice.say({ header: 'REQUEST_ABORTED', requestId: 0, sourceSafe: true });
    await request.sourceSafe;
    expect(scene.server.snapshot()).toMatchObject({ clients: 0, counters: { failed: 1, aborted: 0, confirmed: 1 } });
  });

  test('is told that it may ask for nothing more, until it stands on the list again', async () => {
    const { scene, alice, client } = await asked();
    scene.server.allowPeers(withoutClient);
    expect(await alice.hears()).toEqual({ header: 'ABORT_REQUEST', requestId: 0 });
    expect(await end(client.addRequest([3], wireMap({})))).toMatchObject({
      code: 'ENGINE_FAILED',
      sourceSafe: true,
      details: { reason: 'the name is not proven by the key that it belongs to' },
    });
    scene.server.allowPeers(peers);
    const again = client.addRequest([4], wireMap({}));
    const submitted = await alice.hears();
    expect(submitted).toMatchObject({ header: 'SUBMIT_REQUEST', requestId: 1 });
    const reply = { requestId: 1, needsDetokenize: false, body: encodeValue(wireMap({ request_id: 1 })) };
    await alice.say({ header: 'ENGINE_REPLY', replies: [reply] });
    expect(await end(again)).toBeUndefined();
  });

  test('does not wait for a coordinator that its key no longer opens', async () => {
    const { scene, client, request } = await asked();
    const { address } = scene.server;
    await scene.server.close();
    expect(await end(request)).toMatchObject({ code: 'PEER_LOST' });
    const curve = { secretKey: server.secretKey, peers: withoutClient };
    let next: CoordinatorServer | null = null;
    // The socket that was closed may hold the port a moment longer.
    await until('the port is free', () => {
      void CoordinatorServer.start({ core: new RelayCore(), address, fallsBack: false, curve }).then(
        (started) => void (next === null ? (next = started) : started.close()),
        () => undefined,
      );
      return next !== null;
    });
    ends.push(() => next!.close());
    const waiting = client.addRequest([5], wireMap({}));
    expect(await end(waiting)).toMatchObject({
      code: 'PEER_LOST',
      message: 'the coordinator refuses this key; the request may still run',
    });
    await expect(waiting.sourceSafe).rejects.toMatchObject({ code: 'PEER_LOST' });
  });
});

test('that is none changes nothing; without keys there is none', async () => {
  const scene = await open();
  const alice = await aliceAt(scene);
  const wrong = { ...withoutMallory, bob: { role: 'king', key: held.mallory.publicKey } } as never;
  expect(() => scene.server.allowPeers(wrong)).toThrow('options.curve.peers.bob.role: expected engine, client');
  await works(scene, alice);
  const plain = await CoordinatorServer.start({ core: new RelayCore() });
  ends.push(() => plain.close());
  expect(() => plain.allowPeers(peers)).toThrow('curve: expected a coordinator with keys, got null');
});
