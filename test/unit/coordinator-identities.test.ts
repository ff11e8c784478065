/** Under which identities engines come and come back to a coordinator without keys. Real sockets. */
import { Dealer } from 'zeromq';
import { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import { decodeMessage, encodeMessage } from '../../lib/control/protocol/codec.js';
import { CoordinatorServer } from '../../lib/control/zeromq/coordinator-server.js';
import { EngineConnection } from '../../lib/control/zeromq/engine-connection.js';
import { frameBytesMax } from '../../lib/control/zeromq/frame-limit.js';
import { CoordinatorDesk } from '../support/coordinator-desk.js';

const registration = new CoordinatorDesk().registration('prefill_s0_dp0', { role: 'prefill', incarnation: 'i1' });
const frames = encodeMessage('multi-frame', 'coordinator', registration) as Uint8Array[];

let server: CoordinatorServer;
const ends: (() => unknown)[] = [];
beforeEach(async () => {
  server = await CoordinatorServer.start({ core: new Coordinator({ instance: 'run', isDisaggregated: true }) });
});
afterEach(async () => {
  for (const end of ends.splice(0)) await end();
  await server.close();
});

function connect(routingId?: string): Dealer {
  const socket = new Dealer({ linger: 1_000, ...(routingId === undefined ? {} : { routingId }) });
  socket.connect(server.address);
  ends.push(() => socket.close());
  return socket;
}

const answerTo = async (socket: Dealer) => decodeMessage('multi-frame', 'engine', await socket.receive());
const peers = () => server.snapshot().engines.map(({ peer }) => peer);

/** Other threads go on, this one and with it the coordinator does not. */
function standStill(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

it('takes an engine that came back while the coordinator was busy, once and under its own name', async () => {
  // What the first connection said comes when the second has taken its name: the socket makes up another for it.
  const before = new Dealer({ routingId: 'prefill_s0_dp0', linger: 1_000 });
  // From before the connection on: nothing is to be missed.
  const { events } = before;
  before.connect(server.address);
  while ((await events.receive()).type !== 'handshake');
  void before.send(frames);
  standStill(200);
  before.close();
  standStill(50);
  const again = connect('prefill_s0_dp0');
  void again.send(frames);
  standStill(200);
  expect(await answerTo(again)).toEqual({ header: 'REGISTER_ROLE_ACK' });
  expect(peers()).toEqual(['prefill_s0_dp0']);
});

it('tells an engine without an identity that it needs one', async () => {
  const nameless = connect();
  await nameless.send(frames);
  expect(await answerTo(nameless)).toEqual({
    header: 'REGISTRATION_ERROR',
    reason: 'an engine registers under an identity of its own',
  });
  expect(peers()).toEqual([]);
  expect(server.wire.refusedMessages).toBe(1);
});

it('lets an engine say nothing that would end its connection, and errors of any length', async () => {
  const connection = new EngineConnection({
    address: server.address,
    profile: 'multi-frame',
    curve: undefined,
    instance: 'some engine',
    identity: 'prefill_s0_dp0',
    status: () => ({}),
    statusMs: null,
    register: () => registration,
    onMessage: () => undefined,
    onRejected: () => undefined,
    onLost: () => undefined,
  });
  ends.push(() => connection.close());
  await connection.open(30_000);
  const body = Buffer.alloc(frameBytesMax + 1);
  body.set([0xdf]); // A map of no keys in five bytes, and more behind it than goes through.
  expect(() =>
    connection.say({ header: 'ENGINE_REPLY', replies: [{ requestId: 0, needsDetokenize: false, body }] }),
  ).toThrow(`ENGINE_REPLY: expected at most ${frameBytesMax} bytes on the wire, got ${frameBytesMax + 1}`);
  const { received } = server.wire;
  connection.say({ header: 'REQUEST_ERROR', requestId: 0, reason: 'x'.repeat(1_000_000), sourceSafe: true });
  connection.say({ header: 'KV_READ_DONE', requestId: 0 });
  for (const end = Date.now() + 30_000; server.wire.received < received + 2 && Date.now() < end;)
    await new Promise((resolve) => setTimeout(resolve, 5));
  expect(server.wire).toMatchObject({ received: received + 2, malformed: 0 });
  expect(connection.isRegistered).toBe(true);
});
