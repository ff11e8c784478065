/**
 * A two-sided transport behind a coordinator, over real sockets: decode says that it is ready, the coordinator tells prefill,
 * and prefill sends. Whoever fails or dies on the way, the client is told, the other engine goes on, and no pin is left.
 */
import {
  Coordinator,
  CoordinatedEngine,
  CoordinatorClient,
  CoordinatorServer,
  wireMap,
} from 'state-handoff/coordinator';
import type { ClientRequest } from 'state-handoff/coordinator';
import { ScriptedNetwork, ScriptedTransport, faults } from 'state-handoff/testing';
import { ToyEngine } from '../../examples/custom-engine.js';
import { generateAlone, holdsNothing, prompt } from '../support/toy-handoffs.js';
import { until } from '../support/waiting.js';

const blockBytes = 16;
const connectMs = 30_000;

class End {
  readonly engine = new ToyEngine();
  coordinated!: CoordinatedEngine;
  isStill = false;
  isDead = false;

  constructor(
    readonly role: 'prefill' | 'decode',
    readonly transport: ScriptedTransport,
  ) {}

  static async open(role: 'prefill' | 'decode', address: string): Promise<End> {
    const end = new End(role, new ScriptedTransport(network, { direction: 'push' }));
    const { engine } = end;
    await engine.handoff.setupKvTransfer(role, end.transport);
    end.coordinated = await CoordinatedEngine.connect({
      ...{ handoff: engine.handoff, address, connectMs },
      prefill: ({ requestId, prompt: tokens }) => engine.prefill(requestId, [...tokens]),
    });
    ends.push(end);
    return end;
  }

  get isClean(): boolean {
    return this.coordinated.openRequests === 0 && holdsNothing(this.engine);
  }

  step(): void {
    if (this.isStill || this.isDead) return;
    this.coordinated.drain();
    if (this.role === 'prefill') this.engine.handoff.pollPendingKvPushes();
    else this.engine.step();
  }

  /** As a process does: its memory is gone, and its connection ends. */
  async die(): Promise<void> {
    this.isDead = true;
    network.kill(this.transport);
    await this.coordinated.close();
  }
}

let network: ScriptedNetwork;
let server: CoordinatorServer;
let client: CoordinatorClient;
let ends: End[] = [];
let prefill: End;
let decode: End;
let loop: NodeJS.Timeout;
/** Bytes that were read for a push. */
let sent: number;

beforeEach(async () => {
  network = new ScriptedNetwork();
  ends = [];
  sent = 0;
  network.onRead = (_source, _region, _offset, length) => void (sent += length);
  const core = new Coordinator({ instance: 'run', isDisaggregated: true, pushTransports: ['scripted'] });
  server = await CoordinatorServer.start({ core, address: 'tcp://127.0.0.1:0', fallsBack: false });
  prefill = await End.open('prefill', server.address);
  decode = await End.open('decode', server.address);
  client = await CoordinatorClient.connect({ address: server.address, connectMs });
  loop = setInterval(() => {
    network.advance(1);
    for (const end of ends) end.step();
  }, 1);
});

afterEach(async () => {
  clearInterval(loop);
  client.close();
  for (const { coordinated } of ends) await coordinated.close();
  await server.close();
  for (const { engine } of ends) await engine.handoff.close({ force: true });
});

const ask = (tokens = prompt): ClientRequest => client.addRequest(tokens, wireMap({ num_tokens_to_generate: 10 }));

async function generated(request: ClientRequest): Promise<unknown> {
  let last: unknown = null;
  for await (const { kind, body } of request) if (kind === 'final') last = body.get('generated_tokens');
  return last;
}

/** Everything that was asked for is over, on the engines that live. */
const allIsBack = () =>
  until('all pins and blocks are back', () => {
    const { pins, requests } = server.snapshot();
    const alive = Object.values(requests).reduce((sum, count) => sum + count, 0);
    return pins.length + alive === 0 && ends.every((end) => end.isDead || end.isClean);
  });

/** A living pair serves a new request, bit for bit. */
async function serves(tokens = prompt): Promise<void> {
  const request = ask(tokens);
  expect(await generated(request)).toEqual(generateAlone(10, tokens));
  await request.sourceSafe;
  await allIsBack();
}

it('generates what one engine generates alone, and sends only what decode has not cached', async () => {
  await serves();
  expect(sent).toBe(3 * blockBytes);
  const longer = [...prompt, 1, 2, 3, 4, 5];
  await serves(longer);
  expect(sent).toBe((3 + 2) * blockBytes);
});

it('an abort while decode waits for the push ends both sides', async () => {
  network.planNext(faults.stall());
  const abort = new AbortController();
  const request = client.addRequest(prompt, wireMap({ num_tokens_to_generate: 10 }), { signal: abort.signal });
  await until('it is pushed', () => prefill.engine.handoff.pendingKvPushCount === 1);
  abort.abort();
  await request.sourceSafe;
  await allIsBack();
  expect(server.snapshot().counters).toMatchObject({ aborted: 1, failed: 0, confirmed: 0 });
  await serves();
});

describe('a push that fails', () => {
  it('before a byte is sent, at the source only, ends the receives of the target, and the client is told why', async () => {
    network.planNextConnect({});
    network.planNextConnect({ outcome: 'failed', afterMs: 0 });
    const request = ask();
    await expect(generated(request)).rejects.toMatchObject({
      code: 'ENGINE_FAILED',
      message: expect.stringContaining('the connection failed'),
    });
    await request.sourceSafe;
    await allIsBack();
    await serves();
  });

  it('in the middle, on both sides, costs its own request only', async () => {
    network.planNext(faults.partialWrite('now'));
    const request = ask();
    await expect(generated(request)).rejects.toMatchObject({ code: 'ENGINE_FAILED' });
    await request.sourceSafe;
    await allIsBack();
    await serves();
  });

  it('without proof of quiet keeps source and target until the proof', async () => {
    network.planNext(faults.errorWhileWriting('later', 300));
    const request = ask();
    let isSafe = false;
    void request.sourceSafe.then(() => (isSafe = true));
    await expect(generated(request)).rejects.toMatchObject({ code: 'ENGINE_FAILED' });
    expect(isSafe).toBe(false);
    expect(prefill.engine.handoff.inspect().pins).toHaveLength(1);
    await request.sourceSafe;
    await allIsBack();
    await serves();
  });
});

it.each(['before prefill hears that it is ready', 'while it is pushed to'])(
  'a decode engine that dies %s leaves no pin, and the next one is served',
  async (when) => {
    prefill.isStill = when.startsWith('before');
    network.planNext(faults.stall());
    const request = ask();
    let isReady = false;
    decode.engine.handoff.on('kvTransferReady', () => (isReady = true));
    await until('prefill computes', () => {
      if (!isReady && prefill.isStill) prefill.coordinated.drain();
      return isReady && (prefill.isStill || prefill.engine.handoff.pendingKvPushCount === 1);
    });
    await decode.die();
    await expect(generated(request)).rejects.toMatchObject({ code: 'ENGINE_FAILED' });
    if (prefill.isStill) expect(prefill.engine.handoff.inspect().pins).toHaveLength(1);
    prefill.isStill = false;
    await request.sourceSafe;
    await allIsBack();
    await End.open('decode', server.address);
    await serves();
  },
);

it('a prefill engine that dies in a push costs its own request only, and the next one is served', async () => {
  network.planNext(faults.stall());
  const request = ask();
  await until('it is pushed', () => prefill.engine.handoff.pendingKvPushCount === 1);
  await prefill.die();
  await expect(generated(request)).rejects.toMatchObject({ code: 'ENGINE_FAILED' });
  await allIsBack();
  await End.open('prefill', server.address);
  await serves();
});
