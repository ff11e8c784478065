/** A coordinator that encrypts, the keys of four who may connect, and peers that say one message at a time. Real sockets. */
import { Dealer } from 'zeromq';
import { CoordinatorClient } from '../../lib/control/client/coordinator-client.js';
import type { CoordinatorCore } from '../../lib/control/coordinator/interface.js';
import { decodeMessage, encodeMessage } from '../../lib/control/protocol/codec.js';
import type { ToClient, ToCoordinator, ToEngine } from '../../lib/control/protocol/messages.js';
import { encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { CoordinatorServer } from '../../lib/control/zeromq/coordinator-server.js';
import { makeKeyPair } from '../../lib/control/zeromq/curve-key.js';
import type { CurvePeer } from '../../lib/control/zeromq/curve-peers.js';
import { curveIdentity, type SocketIdentity } from '../../lib/control/zeromq/socket-identity.js';
import { RelayCore } from './relay-core.js';

export const server = makeKeyPair();
export const held = { alice: makeKeyPair(), mallory: makeKeyPair(), client: makeKeyPair(), watcher: makeKeyPair() };
export const peers = {
  alice: { role: 'engine', key: held.alice.publicKey },
  mallory: { role: 'engine', key: held.mallory.publicKey },
  client: { role: 'client', key: held.client.publicKey },
  watcher: { role: 'observer', key: held.watcher.publicKey },
} as const;
/** How the holder of a name connects. */
export const peerOf = (name: keyof typeof held): CurvePeer => ({
  name,
  secretKey: held[name].secretKey,
  serverKey: server.publicKey,
});

/** Called after each test, the last first. */
export const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

export interface Scene<Core extends CoordinatorCore = RelayCore> {
  readonly server: CoordinatorServer;
  readonly core: Core;
  readonly log: string[];
}

export function open(): Promise<Scene> {
  return openWith(new RelayCore());
}

export async function openWith<Core extends CoordinatorCore>(core: Core): Promise<Scene<Core>> {
  const log: string[] = [];
  const started = await CoordinatorServer.start({
    core,
    curve: { secretKey: server.secretKey, peers },
    log: (level, event, fields) => log.push(JSON.stringify({ level, event, ...fields })),
  });
  ends.push(() => started.close());
  return { server: started, core, log };
}

/** Says and hears as somebody who has written the protocol himself. */
export class Peer {
  readonly socket: Dealer;

  constructor(scene: Pick<Scene, 'server'>, identity: Partial<SocketIdentity>) {
    this.socket = new Dealer({ linger: 0, ...identity });
    this.socket.connect(scene.server.address);
    ends.push(() => this.socket.close());
  }

  async say(message: ToCoordinator): Promise<void> {
    await this.socket.send(encodeMessage('multi-frame', 'coordinator', message) as Uint8Array[]);
  }

  /** The next message that is no probe. */
  async hears(): Promise<ToEngine> {
    for (;;) {
      const message = decodeMessage('multi-frame', 'engine', await this.socket.receive());
      if (message.header !== 'RELEASE_KV' || message.requestId !== Number.MAX_SAFE_INTEGER) return message;
    }
  }

  /** As a client. */
  async isTold(): Promise<ToClient> {
    return decodeMessage('multi-frame', 'client', await this.socket.receive());
  }
}

export const register: ToCoordinator = {
  header: 'REGISTER_ROLE',
  role: 'decode',
  transport: 'host',
  instanceMeta: [],
  extension: null,
};

export async function aliceAt(scene: Scene): Promise<Peer> {
  const alice = new Peer(scene, curveIdentity(peerOf('alice'), 'alice'));
  await alice.say(register);
  expect(await alice.hears()).toEqual({ header: 'REGISTER_ROLE_ACK' });
  return alice;
}

/** A request of the client goes to the engine, and its reply comes back. */
export async function works(scene: Scene, engine: Peer): Promise<void> {
  const curve = peerOf('client');
  const client = await CoordinatorClient.connect({ address: scene.server.address, curve, connectMs: 30_000 });
  ends.push(() => client.close());
  const request = client.addRequest([1, 2], wireMap({}));
  const submitted = await engine.hears();
  if (submitted.header !== 'SUBMIT_REQUEST') throw new Error(submitted.header);
  const body = encodeValue(wireMap({ request_id: 0, text: 'yes' }));
  await engine.say({
    header: 'ENGINE_REPLY',
    replies: [{ requestId: submitted.requestId, needsDetokenize: false, body }],
  });
  const events = [];
  for await (const event of request) events.push(event.body.get('text'));
  expect(events).toEqual(['yes']);
}
