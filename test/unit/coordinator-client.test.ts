/** The coordinator's client, against a coordinator over real sockets whose core only relays and an engine of this file. */
import { getEventListeners } from 'node:events';
import { Dealer } from 'zeromq';
import { CoordinatorClient } from '../../lib/control/client/coordinator-client.js';
import type { ClientEvent, ClientRequest } from '../../lib/control/client/client-request.js';
import { CoordinatorServer } from '../../lib/control/zeromq/coordinator-server.js';
import { decodeMessage, encodeMessage } from '../../lib/control/protocol/codec.js';
import type { SubmitRequest, ToClient, ToCoordinator } from '../../lib/control/protocol/messages.js';
import { decodeValue, encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { makeKeyPair } from '../../lib/control/zeromq/curve-key.js';
import { RelayCore } from '../support/relay-core.js';
import { until } from '../support/waiting.js';

let core: RelayCore;
let server: CoordinatorServer;
let engine: Dealer;
let client: CoordinatorClient;

const say = (message: ToCoordinator) =>
  engine.send(encodeMessage('multi-frame', 'coordinator', message) as Uint8Array[]);
const body = (requestId: number, text: string) => encodeValue(wireMap({ request_id: requestId, text }));
const hear = async (): Promise<SubmitRequest> => {
  const message = decodeMessage('multi-frame', 'engine', await engine.receive());
  return message.header === 'SUBMIT_REQUEST' ? message : hear();
};
const partial = (requestId: number, text: string) =>
  say({ header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId, body: body(requestId, text) }] });
const reply = (requestId: number, text: string) =>
  say({ header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body: body(requestId, text) }] });
const all = async (request: ClientRequest): Promise<ClientEvent[]> => {
  const events: ClientEvent[] = [];
  for await (const event of request) events.push(event);
  return events;
};
const isAbort = ({ message }: { readonly message: ToCoordinator }): boolean => message.header === 'ABORT_REQUEST';
/** The coordinator tells the client something that the relay never would. */
const tell = (message: ToClient) => {
  const { peer } = core.heard.find((each) => each.message.header === 'CONNECT')!;
  core.tick = () => {
    core.tick = () => [];
    return [{ kind: 'send', peer, message }];
  };
};

beforeEach(async () => {
  core = new RelayCore();
  server = await CoordinatorServer.start({ core });
  engine = new Dealer({ routingId: 'engine', linger: 0 });
  engine.connect(server.address);
  await say({ header: 'REGISTER_ROLE', role: 'decode', transport: 'host', instanceMeta: [], extension: null });
  await engine.receive();
  client = await CoordinatorClient.connect({ address: server.address });
});
afterEach(async () => {
  client.close();
  engine.close();
  await server.close();
});

it('streams partials and one final reply under its own ids', async () => {
  expect(client.instance).toBe('relay');
  const other = client.addRequest('first', wireMap({}));
  const request = client.addRequest([1, 2], wireMap({ top_k: 1 }), { xRequestId: 'mine' });
  expect((await hear()).requestId).toBe(0);
  const { requestId, prompt, sampling } = await hear();
  expect(decodeValue(prompt)).toEqual([1, 2]);
  expect(sampling).toEqual(wireMap({ top_k: 1, x_request_id: 'mine' }));
  await partial(requestId, 'a');
  await reply(0, 'other');
  await partial(requestId, 'b');
  await reply(requestId, 'ab');
  const event = (kind: string, text: string) => ({ kind, body: wireMap({ request_id: request.requestId, text }) });
  expect(await all(request)).toEqual([event('partial', 'a'), event('partial', 'b'), event('final', 'ab')]);
  await request.sourceSafe;
  expect(await all(other)).toEqual([{ kind: 'final', body: wireMap({ request_id: 0, text: 'other' }) }]);
  expect(client.openRequests).toBe(0);
});

it('shows no number of the coordinator in a body', async () => {
  await reply(99, 'for nobody');
  client.addRequest('p', wireMap({}));
  await hear();
  const request = client.addRequest('p', wireMap({}));
  const { requestId } = await hear();
  await say({ header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body: body(4711, 'x') }] });
  expect((await all(request))[0]!.body.get('request_id')).toBe(request.requestId);
});

it('aborts at once, and says later when the source is safe', async () => {
  const controller = new AbortController();
  const request = client.addRequest('p', wireMap({}), { signal: controller.signal });
  await hear();
  controller.abort();
  await expect(all(request)).rejects.toMatchObject({ code: 'ABORTED' });
  await until('the coordinator is asked to stop it', () => core.heard.at(-1)!.message.header === 'ABORT_REQUEST');
  expect(client.openRequests).toBe(1);
  tell({ header: 'REQUEST_ABORTED', requestId: request.requestId, sourceSafe: true });
  await request.sourceSafe;
  expect(client.openRequests).toBe(0);
  const late = client.addRequest('p', wireMap({}), { signal: controller.signal });
  await expect(all(late)).rejects.toMatchObject({ code: 'ABORTED' });
  await late.sourceSafe;
});

it('fails with the reason; an unsafe source stays open until it is safe', async () => {
  const request = client.addRequest('p', wireMap({}));
  await hear();
  tell({ header: 'REQUEST_ERROR', requestId: request.requestId, reason: 'boom', sourceSafe: false });
  await expect(all(request)).rejects.toMatchObject({
    code: 'ENGINE_FAILED',
    sourceSafe: false,
    details: { reason: 'boom' },
  });
  expect(client.openRequests).toBe(1);
  tell({ header: 'REQUEST_ABORTED', requestId: request.requestId, sourceSafe: true });
  await request.sourceSafe;
  const safe = client.addRequest('p', wireMap({}));
  await hear();
  tell({ header: 'REQUEST_ERROR', requestId: safe.requestId, reason: 'full', sourceSafe: true });
  await expect(all(safe)).rejects.toMatchObject({ code: 'ENGINE_FAILED', sourceSafe: true });
  await safe.sourceSafe;
  expect(client.openRequests).toBe(0);
});

it('ends open requests when the coordinator is gone, and serves new ones when it is back', async () => {
  const { address } = server;
  const request = client.addRequest('p', wireMap({}));
  await hear();
  await server.close();
  await expect(all(request)).rejects.toMatchObject({ code: 'PEER_LOST', sourceSafe: false });
  await expect(request.sourceSafe).rejects.toMatchObject({ code: 'PEER_LOST' });
  core = new RelayCore();
  // The socket that was closed may hold the port a moment longer.
  let restarted: CoordinatorServer | null = null;
  await until('the port is free', () => {
    void CoordinatorServer.start({ core, address, fallsBack: false }).then(
      (started) => (restarted ??= started),
      () => undefined,
    );
    return restarted !== null;
  });
  server = restarted!;
  await until('it has connected again', () => core.heard.some(({ message }) => message.header === 'CONNECT'));
  await say({ header: 'REGISTER_ROLE', role: 'decode', transport: 'host', instanceMeta: [], extension: null });
  await until('the engine too', () => core.engine !== null);
  const again = client.addRequest('p', wireMap({}));
  await reply((await hear()).requestId, 'x');
  expect(await all(again)).toHaveLength(1);
});

it('stops reading while nobody takes what came, and loses nothing', async () => {
  const request = client.addRequest('p', wireMap({}));
  const { requestId } = await hear();
  const count = 6_000;
  for (let index = 0; index < count; index++) await partial(requestId, String(index));
  await reply(requestId, 'end');
  const texts = (await all(request)).map((event) => event.body.get('text'));
  expect(texts).toEqual([...Array.from({ length: count }, (_, index) => String(index)), 'end']);
});

it('is asked whether it is still there, and goes on', async () => {
  const request = client.addRequest('p', wireMap({}));
  const { requestId } = await hear();
  const { sent } = server.wire;
  const other = new Dealer({ linger: 0 });
  other.connect(server.address);
  await other.send(encodeMessage('multi-frame', 'coordinator', { header: 'STATUS' }) as Uint8Array[]);
  await other.receive();
  other.close();
  // The answer to the other one, and a look at the engine and at this client.
  await until('it is asked', () => server.wire.sent >= sent + 3);
  await reply(requestId, 'x');
  expect(await all(request)).toHaveLength(1);
  expect(core.lost).toEqual([]);
});

it('aborts what its reader leaves early, and then serves the others', async () => {
  const left = client.addRequest('p', wireMap({}));
  const { requestId } = await hear();
  // More than a client keeps for its readers.
  for (let index = 0; index < 5_000; index++) await partial(requestId, 'x');
  let read = 0;
  for await (const { kind } of left) {
    expect(kind).toBe('partial');
    read++;
    break;
  }
  expect(read).toBe(1);
  await until('the coordinator is asked to stop it', () => core.heard.some(isAbort));
  await expect(all(left)).rejects.toMatchObject({ code: 'ABORTED' });
  tell({ header: 'REQUEST_ABORTED', requestId: left.requestId, sourceSafe: true });
  await left.sourceSafe;
  const next = client.addRequest('p', wireMap({}));
  await reply((await hear()).requestId, 'x');
  expect(await all(next)).toHaveLength(1);
});

it('ends a request whose reply cannot be read, and serves the others', async () => {
  // A key that is no text: a map to whoever only passes it on.
  const unreadable = Uint8Array.from([0x81, 0x01, 0x02]);
  const final = client.addRequest('p', wireMap({}));
  const { requestId } = await hear();
  await say({ header: 'ENGINE_REPLY', replies: [{ requestId, needsDetokenize: false, body: unreadable }] });
  await expect(all(final)).rejects.toMatchObject({ code: 'ENGINE_FAILED', sourceSafe: true });
  await final.sourceSafe;
  expect(client.openRequests).toBe(0);

  const streamed = client.addRequest('p', wireMap({}));
  const { requestId: second } = await hear();
  await say({ header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId: second, body: unreadable }] });
  await expect(all(streamed)).rejects.toThrow('its partial reply cannot be read');
  await until('the coordinator is asked to stop it', () => core.heard.some(isAbort));
  expect(client.openRequests).toBe(1);
  tell({ header: 'REQUEST_ABORTED', requestId: streamed.requestId, sourceSafe: true });
  await streamed.sourceSafe;
});

it('leaves nothing behind at a signal that outlives its requests', async () => {
  const { signal } = new AbortController();
  const listeners = () => getEventListeners(signal, 'abort').length;
  const [done, failed] = [0, 1].map(() => client.addRequest('p', wireMap({}), { signal })) as [
    ClientRequest,
    ClientRequest,
  ];
  expect(listeners()).toBe(2);
  await reply((await hear()).requestId, 'x');
  expect(await all(done)).toHaveLength(1);
  expect(listeners()).toBe(1);
  await hear();
  tell({ header: 'REQUEST_ERROR', requestId: failed.requestId, reason: 'full', sourceSafe: true });
  await expect(all(failed)).rejects.toMatchObject({ code: 'ENGINE_FAILED' });
  expect(listeners()).toBe(0);
});

it('ends for each of two readers', async () => {
  const request = client.addRequest('p', wireMap({}));
  const { requestId } = await hear();
  const both = [all(request), all(request)];
  await partial(requestId, 'a');
  await reply(requestId, 'ab');
  expect((await Promise.all(both)).flat().map(({ kind }) => kind)).toEqual(['partial', 'final']);
});

it('takes a prompt as an engine has it', async () => {
  client.addRequest(Int32Array.of(7, 2 ** 31 - 1), wireMap({}));
  expect(decodeValue((await hear()).prompt)).toEqual([7, 2 ** 31 - 1]);
});

it.each([
  [[5, -1], 'prompt[1]: expected a token id, an integer in [0, 2147483647], got -1'],
  [[2 ** 31], 'prompt[0]: expected a token id, an integer in [0, 2147483647], got 2147483648'],
  [[0.5], 'prompt[0]: expected a token id, an integer in [0, 2147483647], got 0.5'],
  [[1n], 'prompt[0]: expected a token id, an integer in [0, 2147483647], got 1'],
  [undefined, 'prompt: expected text or token ids, got undefined'],
  [new Float32Array(1), 'prompt: expected text or token ids, got a Float32Array'],
])('refuses the prompt %p', (wrong, message) => {
  expect(() => client.addRequest(wrong as never, wireMap({}))).toThrow(message);
  expect(client.openRequests).toBe(0);
});

it.each([[{ num_tokens_to_generate: 1 }], [undefined], [[]]])('refuses %j as a sampling map', (wrong) => {
  for (const options of [{}, { xRequestId: 'mine' }])
    expect(() => client.addRequest('p', wrong as never, options)).toThrow(
      'sampling: expected a map, as wireMap({…}) makes one, got',
    );
});

it('says what else may keep a coordinator from answering', async () => {
  const address = 'tcp://127.0.0.1:9';
  const { secretKey, publicKey } = makeKeyPair();
  const connect = (more: object): Promise<unknown> =>
    CoordinatorClient.connect({ address, connectMs: 50, ...more }).catch((error: Error) => error.message);
  const unanswered = `no coordinator answered at ${address} within 50 ms; `;
  expect(await connect({})).toBe(`${unanswered}one that encrypts answers only with options.curve`);
  expect(await connect({ curve: { name: 'me', secretKey, serverKey: publicKey } })).toBe(
    `${unanswered}options.curve.serverKey must be its public key, and me on its list as client; its log says whom it refuses`,
  );
});

it('refuses what it cannot say, and everything once it is closed', async () => {
  expect(() => client.addRequest([2 ** 60], wireMap({}))).toThrow('prompt[0]: expected a token id');
  expect(() => client.addRequest('p', wireMap({}), { xRequestId: 'x'.repeat(257) })).toThrow('options.xRequestId');
  expect(client.openRequests).toBe(0);
  const request = client.addRequest('p', wireMap({}));
  client.close();
  await expect(all(request)).rejects.toMatchObject({ code: 'CLOSED' });
  expect(() => client.addRequest('p', wireMap({}))).toThrow('the client was closed');
  await until('the coordinator knows', () => core.heard.at(-1)!.message.header === 'DISCONNECT');
  await expect(CoordinatorClient.connect({ address: 'tcp://127.0.0.1:9', connectMs: 50 })).rejects.toMatchObject({
    code: 'PEER_UNREACHABLE',
  });
  await expect(CoordinatorClient.connect({ address: 'nowhere' })).rejects.toThrow('options.address: expected tcp://');
});

it('refuses what is too large for the wire, and keeps its connection and the requests on it', async () => {
  const living = client.addRequest('p', wireMap({}));
  const { requestId } = await hear();
  expect(() => client.addRequest('x'.repeat(2 ** 26 + 1), wireMap({}))).toThrow(
    'prompt and sampling: expected at most 67108864 bytes on the wire, got 67108870',
  );
  expect(client.openRequests).toBe(1);
  await reply(requestId, 'x');
  expect(await all(living)).toHaveLength(1);
});

it('vouches for the death of an engine until that is taken, and says when it is not', async () => {
  const isSaid = (): boolean => core.heard.some(({ message }) => message.header === 'RELEASE_KV_OWNER');
  const attested = client.attestDead('engine', 'first');
  await until('the attestation came', isSaid);
  const said = core.heard.find(({ message }) => message.header === 'RELEASE_KV_OWNER')!.message;
  expect(said).toMatchObject({ instance: 'relay', owner: 'engine/first' });
  const heard = core.heard.length;
  await until('it came again', () => core.heard.length > heard);
  tell({ header: 'RELEASE_KV_OWNER_ACK', instance: 'relay', owner: 'engine/first' });
  await attested;
  await expect(client.attestDead('engine', 'second', 0)).rejects.toMatchObject({ code: 'PEER_UNREACHABLE' });
  client.close();
  await expect(client.attestDead('engine', 'second')).rejects.toMatchObject({ code: 'CLOSED' });
});

it('vouches for one death to several who ask at once, each with its own deadline', async () => {
  const heardWord = (): boolean => core.heard.some(({ message }) => message.header === 'RELEASE_KV_OWNER');
  const both = [client.attestDead('engine', 'first'), client.attestDead('engine', 'first')];
  const impatient = client.attestDead('engine', 'first', 0);
  await expect(impatient).rejects.toMatchObject({ code: 'PEER_UNREACHABLE' });
  await until('the attestation came', heardWord);
  tell({ header: 'RELEASE_KV_OWNER_ACK', instance: 'relay', owner: 'engine/first' });
  await Promise.all(both);
});
