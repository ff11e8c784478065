/**
 * One rank of four cannot read, reads for ever, or does not know whether its memory is quiet: all four decide the same,
 * nothing is used again too early, and other requests go on, to the bit.
 */
import type { Finished, HandoffError } from '../../lib/index.js';
import type { FinishedExtra } from '../../examples/engine/request.js';
import { bitsOf, greedy, promptOf } from '../support/engine-fixture.js';
import { FaultyHostTransport, type ReadFault } from '../support/faulty-host-transport.js';
import { layoutModel } from '../support/layout-cases.js';
import { computeAlone, LayoutWorld } from '../support/layout-instance.js';

const model = layoutModel('hybrid', 0);
const sampling = { ...greedy, num_tokens_to_generate: 5 };
const badRank = 2;

let source: LayoutWorld;
let target: LayoutWorld;
let transports: FaultyHostTransport[];

beforeEach(async () => {
  transports = [];
  source = await LayoutWorld.create({ role: 'prefill', model, shape: { tp: 2 } });
  target = await LayoutWorld.create({
    role: 'decode',
    model,
    shape: { tp: 2, pp: 2 },
    transportOf: (memory) => {
      transports.push(new FaultyHostTransport(memory));
      return transports.at(-1)!;
    },
  });
  target.leader().handoff.on('kvReadDone', ({ source: ref }) => source.leader().loop.release(ref!));
});

afterEach(async () => {
  for (const { reads } of transports) for (const read of reads) read.settle();
  await target.close();
  await source.close();
});

interface Attempt {
  outcome: Finished | HandoffError | null;
  readonly expected: Promise<Finished>;
}

/** Hands a prompt over; `fault` befalls the reads of one rank. */
async function begin(id: string, length: number, fault: ReadFault | null): Promise<Attempt> {
  const prompt = promptOf(length, length);
  const { ticket, finished } = await source.prefill(id, prompt, sampling);
  transports[badRank]!.fault = fault;
  const attempt: Attempt = { outcome: null, expected: computeAlone(model, prompt, sampling) };
  target
    .leader()
    .loop.takeOver({ requestId: id, prompt, samplingParams: sampling, ticket })
    .then(
      (result) => {
        const extra = result.extra as FinishedExtra;
        attempt.outcome = { ...result, extra: { ...extra, logits: [finished.logits, ...extra.logits!.slice(1)] } };
      },
      (error: HandoffError) => (attempt.outcome = error),
    );
  // The turn in which it is reserved and its reads begin.
  const reads = (): number => transports.reduce((sum, transport) => sum + transport.reads.length, 0);
  const before = reads();
  target.turn();
  if (fault !== null) await target.until(() => reads() > before);
  transports[badRank]!.fault = null;
  return attempt;
}

async function expectSame(attempt: Attempt): Promise<void> {
  await target.until(() => attempt.outcome !== null);
  expect(attempt.outcome).not.toBeInstanceOf(Error);
  expect(bitsOf(attempt.outcome as Finished)).toBe(bitsOf(await attempt.expected));
}

const views = <View>(view: (rank: LayoutWorld['ranks'][number]) => View): View[] => target.ranks.map(view);
const allSame = (values: readonly unknown[]): boolean =>
  new Set(values.map((value) => JSON.stringify(value))).size === 1;

/** What is out of the pools, by rank. */
const missing = (): number[] =>
  views(({ handoff }) => {
    const { blocksUsable, blocksFree, blocksEvictable, slotsTotal, slotsFree } = handoff.load();
    return blocksUsable - blocksFree - blocksEvictable + slotsTotal! - slotsFree!;
  });

test('a rank that cannot read fails the request on all four, and nothing else', async () => {
  const failed = await begin('failed', 11, 'refused');
  const beside = await begin('beside', 13, null);
  await expectSame(beside);
  await target.until(() => failed.outcome !== null);
  expect(failed.outcome).toMatchObject({ code: expect.stringMatching(/^(?:PEER_RANK_FAILED|TRANSFER_FAILED)$/) });
  expect(missing()).toEqual([0, 0, 0, 0]);
  // The source was let go of, and the same prompt can be handed over again.
  await expectSame(await begin('again', 11, null));
  await source.until(() => source.leader().handoff.inspect().pins.length === 0);
});

test('a rank that reads for ever holds its own request alone, on all four, until it is aborted', async () => {
  const stalled = await begin('stalled', 11, 'stalled');
  await expectSame(await begin('beside', 13, null));
  const held = views(({ handoff }) => handoff.inspect().imports.map(({ requestId, blocks }) => [requestId, blocks]));
  expect(allSame(held)).toBe(true);
  expect(held[0]).toMatchObject([['stalled', expect.any(Array)]]);
  const [[, blocks]] = held[0] as unknown as [[string, number[]]];
  for (const { engine } of target.ranks) {
    const [admitted] = engine.admitted;
    expect(Array.from(admitted!.blocks).filter((block) => blocks.includes(block))).toEqual([]);
  }
  expect(stalled.outcome).toBeNull();
  target.leader().handoff.abortKvHandoff('stalled');
  target.leader().loop.wake();
  await target.until(() => stalled.outcome !== null);
  expect(stalled.outcome).toMatchObject({ code: 'ABORTED' });
  expect(missing()).toEqual([0, 0, 0, 0]);
});

test('memory that one rank may still write stays out of use on all four, until it is proven quiet', async () => {
  const doubtful = await begin('doubtful', 11, 'in doubt');
  await target.until(() => doubtful.outcome !== null);
  expect(doubtful.outcome).toMatchObject({ code: expect.stringMatching(/^(?:PEER_RANK_FAILED|TRANSFER_FAILED)$/) });
  const quarantined = views(({ handoff }) => handoff.inspect().quarantine.map(({ blocks, slot }) => [blocks, slot]));
  expect(quarantined[0]).toHaveLength(1);
  expect(allSame(quarantined)).toBe(true);
  const [[blocks, slot]] = quarantined[0] as unknown as [[number[], number]];
  await expectSame(await begin('beside', 13, null));
  for (const { engine } of target.ranks) {
    const [admitted] = engine.admitted;
    expect(Array.from(admitted!.blocks).filter((block) => blocks.includes(block))).toEqual([]);
    expect(admitted!.slot).not.toBe(slot);
  }
  expect(missing().every((count) => count >= blocks.length + 1)).toBe(true);
  const pinned = (): unknown[] =>
    source
      .leader()
      .handoff.inspect()
      .pins.map(({ requestId }) => requestId);
  await source.until(() => !pinned().includes('beside'));
  expect(pinned()).toEqual(['doubtful']);
  for (const read of transports[badRank]!.reads) read.settle();
  await target.until(() => missing().every((count) => count === 0));
  await source.until(() => source.leader().handoff.inspect().pins.length === 0);
});
