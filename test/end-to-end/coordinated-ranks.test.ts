/**
 * Engines of several ranks behind a coordinator: rank 0 has the socket, and what every rank must do reaches it in the step's
 * frame. What a client gets is what one engine generates alone, and every rank has its memory back.
 */
import { Dealer } from 'zeromq';
import {
  Coordinator,
  CoordinatedEngine,
  CoordinatorClient,
  CoordinatorServer,
  Float64,
  wireMap,
} from 'state-handoff/coordinator';
import type { ClientRequest, PrefillOrder, WireMap } from 'state-handoff/coordinator';
import { decodeTicket, type Ticket } from 'state-handoff';
import { encodeMessage } from '../../lib/control/protocol/codec.js';
import { greedy, promptOf } from '../support/engine-fixture.js';
import { layoutModel } from '../support/layout-cases.js';
import { computeAlone, LayoutWorld, type LayoutRank } from '../support/layout-instance.js';
import { until } from '../support/waiting.js';

const model = layoutModel('hybrid', 0);
const connectMs = 30_000;
const blocksUsable = 39;

let server: CoordinatorServer;
let source: LayoutWorld;
let target: LayoutWorld;
let ends: CoordinatedEngine[];
let client: CoordinatorClient;
let loop: NodeJS.Timeout;
/** What each rank was told, in order. */
let told: Map<LayoutRank, string[]>;
let prefills: boolean;
/** The prefill engine stands still once it has begun to compute. */
let stopsAtPrompt: boolean;
/** Messages that the prefill engine's rank 0 has taken. */
let drained: number;

const ranks = (): readonly LayoutRank[] => [...source.ranks, ...target.ranks];

/** Of each rank of the prefill engine; the ticket comes from the one that leads. */
async function compute(
  rank: LayoutRank,
  { requestId, prompt, samplingParams, signal }: PrefillOrder,
): Promise<Ticket | null> {
  told.get(rank)!.push(`prefill of ${prompt.length}`);
  if (stopsAtPrompt) prefills = false;
  signal.addEventListener('abort', () => {
    told.get(rank)!.push('abort');
    rank.engine.abort(requestId);
  });
  await rank.engine.addRequest({ requestId, prompt, samplingParams });
  if (!rank.place.isLeader) return null;
  const done = source.prefilled[0]!.find(({ finished }) => finished.requestId === requestId)!;
  return decodeTicket(done.ticket);
}

async function join(world: LayoutWorld): Promise<void> {
  for (const rank of world.ranks) {
    told.set(rank, []);
    const { handoff } = rank;
    const onSignal = ({ header }: { readonly header: string }): void => void told.get(rank)!.push(header);
    const options = { handoff, address: server.address, connectMs, onSignal };
    const prefill = (order: PrefillOrder): Promise<Ticket | null> => compute(rank, order);
    ends.push(await CoordinatedEngine.connect(world === source ? { ...options, prefill } : options));
  }
}

function turn(): void {
  for (const [index, end] of ends.entries()) {
    const count = end.drain();
    if (index === 0) drained += count;
  }
  if (prefills) source.turn();
  target.turn();
}

const sampling = (count: number): WireMap =>
  wireMap({ ...greedy, temperature: new Float64(0), num_tokens_to_generate: count, return_log_probs: false });

async function final(request: ClientRequest): Promise<unknown> {
  let tokens: unknown;
  for await (const { kind, body } of request) if (kind === 'final') tokens = body.get('generated_tokens');
  return tokens;
}

const allIsBack = () =>
  until('every rank has its memory back', () =>
    ranks().every(({ handoff }) => {
      const { pins, imports, quarantine } = handoff.inspect();
      const { blocksFree, blocksEvictable } = handoff.load();
      return pins.length + imports.length + quarantine.length === 0 && blocksFree + blocksEvictable === blocksUsable;
    }),
  );

beforeEach(async () => {
  [told, ends, prefills, stopsAtPrompt, drained] = [new Map(), [], true, false, 0];
  const core = new Coordinator({ instance: 'run', isDisaggregated: true });
  server = await CoordinatorServer.start({ core, address: 'tcp://127.0.0.1:0' });
  source = await LayoutWorld.create({ role: 'prefill', model, shape: { tp: 2 } });
  target = await LayoutWorld.create({ role: 'decode', model, shape: { tp: 2, pp: 2 } });
  await join(source);
  await join(target);
  client = await CoordinatorClient.connect({ address: server.address, connectMs });
  loop = setInterval(turn, 1);
});

afterEach(async () => {
  clearInterval(loop);
  client.close();
  for (const end of ends) await end.close();
  await server.close();
  await source.close();
  await target.close();
});

it('generates what one engine generates alone, from two ranks to four', async () => {
  const prompts = [9, 21, 30].map((length) => promptOf(length, length));
  const requests = prompts.map((prompt) => client.addRequest(prompt, sampling(5)));
  const generated = await Promise.all(requests.map(final));
  const expected = [];
  for (const prompt of prompts)
    expected.push((await computeAlone(model, prompt, { ...greedy, num_tokens_to_generate: 5 })).generatedTokens);
  expect(generated).toEqual(expected);
  await Promise.all(requests.map(({ sourceSafe }) => sourceSafe));
  await allIsBack();
  const [first, second] = source.ranks;
  expect(told.get(first!)).toEqual([9, 21, 30].map((length) => `prefill of ${length}`));
  expect(told.get(second!)).toEqual(told.get(first!));
  // Only rank 0 speaks.
  expect(ends.map(({ isRegistered }) => isRegistered)).toEqual([true, false, true, false, false, false]);
  expect(ranks().flatMap(({ warnings }) => warnings)).toEqual([]);
});

it('an abort reaches a prefill on every rank', async () => {
  stopsAtPrompt = true;
  const abort = new AbortController();
  const request = client.addRequest(promptOf(60), sampling(5), { signal: abort.signal });
  await until('it is computed', () => !prefills);
  const before = drained;
  abort.abort();
  await until('rank 0 has heard of it', () => drained > before);
  prefills = true;
  await request.sourceSafe;
  await allIsBack();
  for (const rank of source.ranks) expect(told.get(rank)).toEqual(['prefill of 60', 'abort']);
});

it('signals reach every rank of every engine in one order, and a new epoch with them', async () => {
  const socket = new Dealer({ linger: 0 });
  socket.connect(server.address);
  const signals = [{ header: 'PAUSE' }, { header: 'SET_GENERATION_EPOCH', epoch: 4 }, { header: 'UNPAUSE' }] as const;
  try {
    for (const message of [{ header: 'CONNECT' } as const, ...signals])
      await socket.send(encodeMessage('multi-frame', 'coordinator', message) as Uint8Array[]);
    await until('all ranks have heard all', () => [...told.values()].every(({ length }) => length === 3));
  } finally {
    socket.close();
  }
  for (const heard of told.values()) expect(heard).toEqual(signals.map(({ header }) => header));
  const prompt = promptOf(9);
  const { ticket } = await source.prefill('later', prompt, greedy);
  expect(decodeTicket(ticket).handoff).toMatchObject({ epoch: 4 });
  source.leader().handoff.releaseHandoffBlocks('later');
  await allIsBack();
});

it('with the host carrier the engine broadcasts itself, and is refused', async () => {
  const world = await LayoutWorld.create({ role: 'decode', model, shape: { tp: 2 }, carrier: 'host' });
  const { handoff } = world.leader();
  await expect(CoordinatedEngine.connect({ handoff, address: server.address })).rejects.toMatchObject({
    code: 'LOG_CARRIER_MIXED',
  });
  await world.close();
});
