/**
 * Host engines behind a coordinator, over real sockets: what a client gets is what one engine generates alone, and whatever
 * the end of a request, every pin and every block is back.
 */
import {
  Coordinator,
  CoordinatedEngine,
  CoordinatorClient,
  CoordinatorServer,
  wireMap,
} from 'state-handoff/coordinator';
import type { ClientEvent, ClientRequest, DecodeOrder, PrefillOrder, WireMap } from 'state-handoff/coordinator';
import { HandoffError, type Finished, type Ticket } from 'state-handoff';
import { ToyEngine } from '../../examples/custom-engine.js';
import { generateAlone, holdsNothing, prompt, usableBlocks } from '../support/toy-handoffs.js';
import { until } from '../support/waiting.js';

const connectMs = 30_000;

let server: CoordinatorServer;
let prefill: ToyEngine;
let decode: ToyEngine;
let prefillEnd: CoordinatedEngine;
let decodeEnd: CoordinatedEngine;
let client: CoordinatorClient;
let compute: (order: PrefillOrder) => Ticket | Promise<Ticket>;
let seenOrder: DecodeOrder | null;
/** What the decode engine was told of the ends of its requests. */
let ended: (readonly [requestId: number, Finished | HandoffError])[];
let refusesEnds: boolean;
/** With which error, where it matters. */
let refusal: Error | null;
let decodes: boolean;
/** Decode stands still once a request has this many tokens. */
let pauseAt: number;
let loop: NodeJS.Timeout;

const serve = (address: string, firstRequestId: number) =>
  CoordinatorServer.start({
    core: new Coordinator({ instance: `run-${firstRequestId}`, isDisaggregated: true, firstRequestId }),
    address,
    fallsBack: false,
  });

/** Another run at the same address, as soon as the first one's socket is gone. */
async function serveAgain(): Promise<CoordinatorServer> {
  for (const end = Date.now() + 30_000; ;) {
    try {
      return await serve(server.address, 100_000);
    } catch (error) {
      if (Date.now() > end) throw error;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

interface Streamed {
  readonly running: readonly { readonly request: { readonly requestId: string | number }; readonly out: number[] }[];
}

const told = new Map<string | number, number>();
function step(): void {
  prefillEnd.drain();
  prefill.handoff.pollPendingKvPushes();
  decodeEnd.drain();
  const { running } = decode as unknown as Streamed;
  if (!decodes || running.some(({ out }) => out.length >= pauseAt)) return;
  decode.step();
  for (const { request, out } of (decode as unknown as Streamed).running) {
    decodeEnd.partial(request.requestId, out.slice(told.get(request.requestId) ?? 0));
    told.set(request.requestId, out.length);
  }
}

async function all(request: ClientRequest): Promise<ClientEvent[]> {
  const events: ClientEvent[] = [];
  for await (const event of request) events.push(event);
  return events;
}

const allIsBack = () =>
  until('all pins and blocks are back', () => {
    const open = prefillEnd.openRequests + decodeEnd.openRequests + client.openRequests;
    return open === 0 && [prefill, decode].every(holdsNothing);
  });

beforeEach(async () => {
  told.clear();
  decodes = true;
  pauseAt = Infinity;
  ended = [];
  refusesEnds = false;
  refusal = null;
  server = await serve('tcp://127.0.0.1:0', 100);
  const { address } = server;
  [prefill, decode] = [new ToyEngine(), new ToyEngine()];
  await prefill.handoff.setupKvTransfer('prefill', 'host');
  await decode.handoff.setupKvTransfer('decode', 'host');
  compute = ({ requestId, prompt: tokens }) => prefill.prefill(requestId, [...tokens]);
  const tokenize = (text: string) => Array.from(text, (letter) => letter.charCodeAt(0));
  prefillEnd = await CoordinatedEngine.connect({
    handoff: prefill.handoff,
    address,
    tokenize,
    connectMs,
    prefill: (order) => compute(order),
  });
  const onHandoff = (order: DecodeOrder): void => {
    seenOrder = order;
    if (order.samplingParams['refuse'] === true) throw refusal ?? new Error('the engine refuses it');
  };
  decodeEnd = await CoordinatedEngine.connect({
    ...{ handoff: decode.handoff, address, tokenize, connectMs, onHandoff },
    onFinished: (requestId, finished) => {
      ended.push([requestId, finished]);
      if (refusesEnds) throw refusal ?? new Error('the engine wants no such end');
    },
    onFailed: (requestId, error) => {
      ended.push([requestId, error]);
      throw new Error('a listener that throws harms nobody');
    },
  });
  client = await CoordinatorClient.connect({ address, connectMs });
  loop = setInterval(step, 1);
});

afterEach(async () => {
  clearInterval(loop);
  client.close();
  for (const end of [prefillEnd, decodeEnd]) await end.close();
  await server.close();
  for (const { handoff } of [prefill, decode]) await handoff.close();
});

it('generates what one engine generates alone, streamed to who asked for it', async () => {
  const streaming = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 20, streaming: true }), {
    xRequestId: 'mine',
  });
  const plain = client.addRequest('hand me over', wireMap({ num_tokens_to_generate: 10 }));
  const [events, others] = await Promise.all([all(streaming), all(plain)]);
  const expected = generateAlone(20);
  const final = events.pop()!;
  expect(final.kind).toBe('final');
  expect(final.body.get('generated_tokens')).toEqual(expected);
  expect(final.body.get('request_id')).toBe(streaming.requestId);
  expect(final.body.get('prompt_length')).toBe(prompt.length);
  expect((final.body.get('sampling_params') as WireMap).get('x_request_id')).toBe('mine');
  expect(events.length).toBeGreaterThan(1);
  const streamed = events.flatMap(({ body }) => body.get('new_tokens') as number[]);
  expect(streamed).toEqual(expected.slice(0, streamed.length));
  expect(others.map(({ kind, body }) => [kind, body.get('generated_tokens')])).toEqual([['final', generateAlone(10)]]);
  await Promise.all([streaming.sourceSafe, plain.sourceSafe]);
  await allIsBack();
});

it('ends a request that is aborted while it generates', async () => {
  pauseAt = 5;
  const abort = new AbortController();
  const sampling = wireMap({ num_tokens_to_generate: 50, streaming: true });
  const request = client.addRequest(prompt, sampling, { signal: abort.signal });
  const read = async (): Promise<void> => {
    for await (const { kind } of request) if (kind === 'partial') abort.abort();
  };
  await expect(read()).rejects.toMatchObject({ code: 'ABORTED' });
  await request.sourceSafe;
  await allIsBack();
});

it('ends a request that is aborted while it waits for decode', async () => {
  decodes = false;
  const abort = new AbortController();
  const request = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 8 }), { signal: abort.signal });
  await until('decode has it', () => decodeEnd.openRequests === 1);
  const { instance, incarnation } = decode.handoff.identity;
  await until('its pin is claimed', () => prefill.handoff.inspect().pins[0]?.owner === `${instance}/${incarnation}`);
  abort.abort();
  decodes = true;
  await request.sourceSafe;
  await allIsBack();
});

it.each(['rejects', 'gives its ticket all the same'])('an abort reaches a prefill, which %s', async (how) => {
  let started = false;
  compute = async (order) => {
    started = true;
    await new Promise((resolve) => order.signal.addEventListener('abort', resolve));
    if (how === 'rejects') throw new Error('nobody waits');
    return prefill.prefill(order.requestId, [...order.prompt]);
  };
  const abort = new AbortController();
  const request = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 8 }), { signal: abort.signal });
  await until('prefill computes', () => started);
  abort.abort();
  await request.sourceSafe;
  await allIsBack();
});

it('tells the client why prefill failed', async () => {
  compute = ({ requestId, prompt: tokens }) => {
    prefill.prefill(requestId, [...tokens]);
    throw new Error('the model is on fire');
  };
  const request = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 8 }));
  await expect(all(request)).rejects.toMatchObject({ code: 'ENGINE_FAILED', message: expect.stringContaining('fire') });
  await request.sourceSafe;
  await allIsBack();
});

it('comes back to another run of the coordinator with what it holds, and all of it ends', async () => {
  decodes = false;
  const first = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 8 }));
  await until('decode has it', () => decodeEnd.openRequests === 1);
  await server.close();
  await expect(all(first)).rejects.toMatchObject({ code: 'PEER_LOST' });
  await until('both have noticed', () => !prefillEnd.isRegistered && !decodeEnd.isRegistered);
  expect(prefill.handoff.inspect().pins).toHaveLength(1);
  server = await serveAgain();
  await until('both are back', () => prefillEnd.isRegistered && decodeEnd.isRegistered);
  decodes = true;
  await allIsBack();
  const second = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 8 }));
  expect((await all(second)).at(-1)!.body.get('generated_tokens')).toEqual(generateAlone(8));
  await allIsBack();
});

it('ends what it generates when the coordinator is gone', async () => {
  pauseAt = 5;
  const request = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 50, streaming: true }));
  const read = async (): Promise<void> => {
    for await (const { kind } of request) {
      if (kind !== 'partial' || !decodes) continue;
      decodes = false;
      await until('the pin is released', () => prefill.handoff.inspect().pins.length === 0);
      await server.close();
    }
  };
  await expect(read()).rejects.toMatchObject({ code: 'PEER_LOST' });
  await until('both have noticed', () => !prefillEnd.isRegistered && !decodeEnd.isRegistered);
  expect(decode.handoff.inspect().imports).toEqual([]);
  server = await serveAgain();
  decodes = true;
  await allIsBack();
});

it('a request whose arrival the engine refuses fails with its reason, and one that it is told of has its names', async () => {
  seenOrder = null;
  const plain = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 2 }), { xRequestId: 'mine' });
  await all(plain);
  expect(seenOrder).toMatchObject({ prompt: Int32Array.from(prompt), samplingParams: { x_request_id: 'mine' } });
  const refused = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 2, refuse: true }));
  await expect(all(refused)).rejects.toThrow('the engine refuses it');
  await refused.sourceSafe;
  await allIsBack();
});

it('tells the decode engine how each request ended, with all that the engine gave', async () => {
  const finish = decode.handoff.finishRequest.bind(decode.handoff);
  decode.handoff.finishRequest = (attemptId, result) => finish(attemptId, { ...result, extra: { logits: 'of mine' } });
  await all(client.addRequest(prompt, wireMap({ num_tokens_to_generate: 2 })));
  const { requestId } = seenOrder!;
  expect(ended).toEqual([
    [requestId, expect.objectContaining({ extra: { logits: 'of mine' }, finishReason: 'length' })],
  ]);

  pauseAt = 5;
  const abort = new AbortController();
  const sampling = wireMap({ num_tokens_to_generate: 50, streaming: true });
  const aborted = client.addRequest(prompt, sampling, { signal: abort.signal });
  const read = async (): Promise<void> => {
    for await (const { kind } of aborted) if (kind === 'partial') abort.abort();
  };
  await expect(read()).rejects.toMatchObject({ code: 'ABORTED' });
  await aborted.sourceSafe;
  expect(ended.slice(1)).toEqual([[seenOrder!.requestId, expect.objectContaining({ code: 'ABORTED' })]]);

  pauseAt = Infinity;
  refusesEnds = true;
  const refused = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 2 }));
  await expect(all(refused)).rejects.toThrow('the engine wants no such end');
  await refused.sourceSafe;
  await allIsBack();
});

it('tells errors of its engines however long they are, and goes on', async () => {
  const long = new Error('long '.repeat(100_000));
  const computeWell = compute;
  compute = () => Promise.reject(long);
  const fails = async (more = {}): Promise<void> => {
    const request = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 2, ...more }));
    await expect(all(request)).rejects.toMatchObject({
      code: 'ENGINE_FAILED',
      message: expect.stringMatching(/^the request failed because long long .*…$/) as string,
    });
    await request.sourceSafe;
  };
  await fails();
  compute = computeWell;
  refusal = long;
  await fails({ refuse: true });
  refusesEnds = true;
  await fails();
  refusesEnds = false;
  expect(await all(client.addRequest(prompt, wireMap({ num_tokens_to_generate: 2 })))).toHaveLength(1);
  await allIsBack();
});

it('tells the decode engine of a request that the SDK refuses, after it told it of its arrival', async () => {
  decode.handoff.addRequestWithKvHandoff = () => {
    throw new HandoffError('CLOSED', 'nothing is taken any more');
  };
  const request = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 2 }));
  await expect(all(request)).rejects.toThrow('nothing is taken any more');
  expect(ended).toEqual([[seenOrder!.requestId, expect.objectContaining({ code: 'CLOSED' })]]);
  await allIsBack();
});

it('leaves the coordinator when its engine has failed, and tells why what it computes fails', async () => {
  compute = () => new Promise(() => undefined);
  const request = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 8 }));
  await until('prefill computes', () => prefillEnd.openRequests === 1);
  prefill.handoff.emit('engineFailed', new HandoffError('RANK_LOST', 'rank 1 is lost'));
  await expect(all(request)).rejects.toThrow('rank 1 is lost');
  await until('it has left', () => !prefillEnd.isRegistered);
  const next = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 8 }));
  await expect(all(next)).rejects.toThrow('no prefill engine is registered');
});

it('refuses what cannot be connected, with the reason', async () => {
  const { address } = server;
  const { handoff } = prefill;
  await expect(CoordinatedEngine.connect({ handoff, address })).rejects.toMatchObject({ code: 'OPTION_INVALID' });
  await expect(CoordinatedEngine.connect({ handoff: decode.handoff, address: 'nowhere' })).rejects.toMatchObject({
    code: 'OPTION_INVALID',
  });
  const fresh = new ToyEngine();
  await expect(CoordinatedEngine.connect({ handoff: fresh.handoff, address })).rejects.toMatchObject({
    code: 'NOT_SET_UP',
  });
  await fresh.handoff.setupKvTransfer('decode', 'host');
  Object.defineProperty(fresh.handoff, 'instanceMeta', { value: [{ request_capacity: 0 }] });
  await expect(CoordinatedEngine.connect({ handoff: fresh.handoff, address, connectMs })).rejects.toMatchObject({
    code: 'INCOMPATIBLE',
  });
  await expect(
    CoordinatedEngine.connect({ handoff: decode.handoff, address: 'tcp://127.0.0.1:9', connectMs: 50 }),
  ).rejects.toMatchObject({ code: 'PEER_UNREACHABLE' });
  await fresh.handoff.close();
});

test('tells the coordinator how loaded each end is', async () => {
  await until('both are heard', () =>
    server.snapshot().engines.every(({ load }) => load['blocks_usable'] === usableBlocks),
  );
  const [engine] = server.snapshot().engines;
  expect(engine!.load).toMatchObject({
    blocks_free: usableBlocks,
    blocks_quarantined: 0,
    imports_quarantined: 0,
    free_fraction: 1,
    interval_ms: 1_000,
  });
  await expect(
    CoordinatedEngine.connect({ handoff: decode.handoff, address: server.address, statusMs: 0 }),
  ).rejects.toThrow('options.statusMs: expected null or an integer in [10, 3600000], got 0');
});
