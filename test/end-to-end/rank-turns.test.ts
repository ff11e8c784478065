/** What the leader of an instance is told reaches all its ranks in the same turn, whichever carrier brings the log. */
import { decodeTicket, type Finished, type HandoffError } from '../../lib/index.js';
import { markUnready } from '../../lib/ticket-readiness.js';
import { greedy, promptOf } from '../support/engine-fixture.js';
import { layoutModel } from '../support/layout-cases.js';
import { LayoutWorld } from '../support/layout-instance.js';

const model = layoutModel('attention', 0);
const worlds: LayoutWorld[] = [];

afterEach(async () => {
  for (const world of worlds.splice(0)) await world.close();
});

async function openWorld(role: 'prefill' | 'decode', carrier: 'group' | 'host'): Promise<LayoutWorld> {
  const world = await LayoutWorld.create({ role, model, shape: { tp: 2, pp: 2 }, carrier });
  worlds.push(world);
  return world;
}

/** Free blocks, by rank. */
const free = (world: LayoutWorld): number[] =>
  world.ranks.map(({ handoff }) => handoff.load().blocksFree + handoff.load().blocksEvictable);

describe.each(['group', 'host'] as const)('with the %s carrier', (carrier) => {
  test('a prompt that is aborted while it is computed ends on every rank', async () => {
    const world = await openWorld('prefill', carrier);
    const { loop } = world.leader();
    const ended = loop
      .submit({ requestId: 'long', prompt: promptOf(60), samplingParams: { ...greedy, do_kv_handoff: true } })
      .catch((error: HandoffError) => error.code);
    world.turn();
    expect(free(world)).toEqual([24, 24, 24, 24]);
    expect(world.ranks.map(({ engine }) => engine.runningCount)).toEqual([1, 1, 1, 1]);
    loop.abort('long');
    world.turn();
    expect(await ended).toBe('ABORTED');
    expect(free(world)).toEqual([39, 39, 39, 39]);
    expect(world.ranks.map(({ engine }) => engine.runningCount)).toEqual([0, 0, 0, 0]);
  });

  test('a prompt that makes no sense is refused to the caller, and every rank goes on', async () => {
    const world = await openWorld('prefill', carrier);
    const refused = world.leader().loop.submit({ requestId: 'bad', prompt: [-1] });
    world.turn();
    await expect(refused).rejects.toMatchObject({ code: 'ARGUMENT_INVALID' });
    expect((await world.prefill('good', promptOf(9), greedy)).finished.requestId).toBe('good');
  });

  test('a pin that is released is released on every rank, and a repeated release is none', async () => {
    const world = await openWorld('prefill', carrier);
    const { handoff, loop } = world.leader();
    await world.prefill('pinned', promptOf(9), greedy);
    expect(world.ranks.map((rank) => rank.handoff.inspect().pins.length)).toEqual([1, 1, 1, 1]);
    const [pin] = handoff.inspect().pins;
    const ref = { ...handoff.identity, handoffId: pin!.handoffId, epoch: 0 };
    loop.release(ref);
    loop.release(ref);
    world.turn();
    expect(world.ranks.map((rank) => rank.handoff.inspect().pins.length)).toEqual([0, 0, 0, 0]);
    expect(free(world)).toEqual([39, 39, 39, 39]);
  });

  test('a ticket that is none is refused to the caller, and every rank goes on', async () => {
    const world = await openWorld('decode', carrier);
    const refused = world.leader().loop.takeOver({ requestId: 1, prompt: [97], samplingParams: {}, ticket: '{}' });
    const ended: Promise<Finished | string> = refused.catch((error: HandoffError) => error.code);
    world.turn();
    expect(await ended).toMatch(/^TICKET_/);
    expect(world.turn().map(({ tokens }) => tokens)).toEqual([0, 0, 0, 0]);
    expect(free(world)).toEqual([39, 39, 39, 39]);
  });
});

test('what the caller does to a request after the leader took it reaches no rank', async () => {
  const [source, target] = [await openWorld('prefill', 'group'), await openWorld('decode', 'group')];
  const prompt = promptOf(9);
  const samplingParams = { ...greedy, num_tokens_to_generate: 2 };
  const { kvMeta, blockIds } = decodeTicket((await source.prefill('mine', prompt, samplingParams)).ticket);
  const { handoff } = target.leader();
  const ids = [...blockIds];
  const settled = handoff.addRequestWithKvHandoff('mine', prompt, samplingParams, kvMeta, ids);
  for (const key of Object.keys(kvMeta)) (kvMeta as Record<string, unknown>)[key] = () => 'no plain value';
  ids.fill(-1);
  samplingParams.num_tokens_to_generate = 1_000_000;
  let ended: Finished | HandoffError | null = null;
  void settled.then(
    (finished) => (ended = finished),
    (error: HandoffError) => (ended = error),
  );
  await target.until(() => ended !== null);
  expect(ended).toMatchObject({ requestId: 'mine' });
  expect(target.ranks.flatMap(({ warnings }) => warnings)).toEqual([]);
});

test('a ticket whose state is not in place yet is refused: the other ranks could not wait for its fence', async () => {
  const [source, target] = [await openWorld('prefill', 'group'), await openWorld('decode', 'group')];
  const prompt = promptOf(9);
  const { kvMeta, blockIds } = decodeTicket((await source.prefill('late', prompt, greedy)).ticket);
  let isThere = false;
  markUnready(kvMeta, { isComplete: () => isThere });
  const { handoff } = target.leader();
  const released: unknown[] = [];
  handoff.on('kvReadDone', (notice) => released.push(notice));
  expect(() => handoff.addRequestWithKvHandoff('late', prompt, greedy, kvMeta, blockIds)).toThrow(
    expect.objectContaining({ code: 'HANDOFF_NOT_READY' }) as Error,
  );
  expect([free(target), released]).toEqual([[39, 39, 39, 39], []]);
  isThere = true;
  const settled = handoff.addRequestWithKvHandoff('late', prompt, greedy, kvMeta, blockIds);
  let finished: Finished | null = null;
  void settled.then((value) => (finished = value));
  await target.until(() => finished !== null);
  expect(finished).toMatchObject({ requestId: 'late' });
});
