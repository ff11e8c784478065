/**
 * Goal: what a pair of instances exchanges follows from both sides' buffers, whatever they are, and every pair that
 * cannot work is refused by one error with both sides in it. Method: hand-made endpoints, plans looked at in numbers;
 * that bytes come to their places is test/property/layouts.test.ts's part.
 */
import { programBytes } from '../../lib/transfer/copy-program.js';
import { planPull, pushDuties, type PeerRank } from '../../lib/transfer/peer-pairing.js';
import { PeerPlans } from '../../lib/transfer/peer-plans.js';
import type { Peer, Transport } from '../../lib/transfer/transport.js';
import { smallShape, TestMemory, wholeModel } from '../../lib/testing/test-memory.js';
import { rank, refusal, tensorRanks } from '../support/pairing-ranks.js';
import { choiceOf } from '../support/transport-choice.js';

function fakeTransport(direction: 'pull' | 'push' = 'pull'): Transport {
  const peer = { status: () => 'ready', error: null, close: () => undefined } as unknown as Peer;
  return { name: 'fake', capabilities: { direction }, connect: () => peer } as unknown as Transport;
}

/** By source rank: rows of the table that are read. */
function rowsRead(plans: PeerPlans, ranks: readonly PeerRank[], source: number[], target: number[], skipBlocks = 0) {
  const legs = plans.legs({
    ranks,
    shares: ranks.map(() => ({ blockIds: Int32Array.from(source), slot: null })),
    skipBlocks,
    localBlocks: Int32Array.from(target),
    localSlot: null,
    blockGenerations: BigUint64Array.from(source, (id) => BigInt(100 + id)),
    slotGeneration: null,
    tag: 'h',
  });
  return legs.map(({ request }) => ({
    tag: request.tag,
    bytes: request.programs.reduce((sum, program) => sum + programBytes(program), 0),
    rows: request.programs.map(({ rectangles }) =>
      rectangles.map(({ tableFrom, tableCount }) => [tableFrom, tableCount]),
    ),
    blocks: [...request.generations!.blocks],
  }));
}

describe('replicas', () => {
  // Eight ranks, two heads: four ranks hold each.
  const ranks = tensorRanks(8);

  test('the first stands for all', () => {
    const [first, second] = rowsRead(new PeerPlans(rank(0), choiceOf(fakeTransport())), ranks, [1, 2, 3], [4, 5, 6]);
    expect([first!.tag, second!.tag]).toEqual(['h:0>0', 'h:4>0']);
    expect([first!.rows, second!.rows]).toEqual([[[[0, 3]]], [[[0, 3]]]]);
  });

  test.each([0, 1, 2, 3])('spread: target rank %i reads a share of the blocks from each', (globalRank) => {
    const plans = new PeerPlans(rank(globalRank), choiceOf(fakeTransport()), 'pull', 9, undefined, undefined, 'spread');
    const read = rowsRead(plans, ranks, [1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]);
    expect(read).toHaveLength(8);
    for (const shard of [read.slice(0, 4), read.slice(4)]) {
      expect(shard.map(({ rows }) => rows[0]![0]).sort()).toEqual([
        [0, 2],
        [2, 2],
        [4, 2],
        [6, 2],
      ]);
      expect(shard[(4 - globalRank) % 4]!.rows).toEqual([[[0, 2]]]);
    }
    // A prompt of one block: one replica of each shard, and not the same one for every target.
    const [a, b, ...more] = rowsRead(plans, ranks, [1], [8]);
    expect([a!.tag, b!.tag, more]).toEqual([
      `h:${3 - globalRank}>${globalRank}`,
      `h:${7 - globalRank}>${globalRank}`,
      [],
    ]);
  });

  test.each([
    [0, [true, false, false]],
    [1, [false, false, true]],
    [2, [false, true, false]],
  ])('spread: target rank %i reads SSM state, which is one slot, from one of them', (globalRank, reads) => {
    const dims = { nheads: 2, headdim: 1, dState: 1, ngroups: 2, dConv: 2 };
    const hybrid = (rankHere: number): PeerRank => {
      const shape = { ...smallShape, ssm: { layers: 2, dims } };
      const { kv, ssm } = new TestMemory(shape, { ...wholeModel, globalRank: rankHere }, 9, 3);
      return { key: `peer/${rankHere}`, kv, ssm, transports: {} };
    };
    const plans = planPull(hybrid(globalRank), [0, 1, 2].map(hybrid), 'spread');
    expect(plans.map((plan) => plan!.ssm.length > 0)).toEqual(reads);
    expect(plans.map((plan) => plan!.kv.length)).toEqual([1, 1, 1]);
  });

  test('a push follows the first replica whatever the target asks for', () => {
    const plans = new PeerPlans(rank(0), choiceOf(fakeTransport('push')), 'pull', 9, undefined, undefined, 'spread');
    expect(rowsRead(plans, ranks, [1, 2], [1, 2]).map(({ tag }) => tag)).toEqual(['h:0>0', 'h:4>0']);
    expect(ranks.map((_, index) => pushDuties(ranks, index).kv)).toEqual([
      true,
      false,
      false,
      false,
      true,
      false,
      false,
      false,
    ]);
  });
});

describe('blocks of unlike sizes', () => {
  const bytesPerToken = 2 * 4 * 2 * 8 * 2;

  test.each([
    [8, 4, [1, 2], [3, 4, 5], 0, 12, [1, 2]],
    [8, 4, [1, 2], [3, 4, 5], 1, 8, [1, 2]],
    [8, 4, [1, 2], [3, 4, 5], 2, 4, [2]],
    [8, 4, [1, 2], [3, 4, 5], 3, 0, null],
    [4, 6, [1, 2, 3], [7, 8], 0, 12, [1, 2, 3]],
    [4, 6, [1, 2, 3], [7, 8], 1, 6, [2, 3]],
    [1, 4, [1, 2, 3, 4, 5], [7, 8], 1, 1, [5]],
  ])(
    'from %i tokens a block to %i: blocks %j to %j but for %i',
    (sourceTokens, targetTokens, source, target, skip, tokens, blocks) => {
      const plans = new PeerPlans(rank(0, { tokens: targetTokens }), choiceOf(fakeTransport()));
      const read = rowsRead(plans, [rank(0, { tokens: sourceTokens })], source, target, skip);
      expect(read.map((leg) => [leg.bytes, leg.blocks])).toEqual(
        blocks === null ? [] : [[tokens * bytesPerToken, blocks]],
      );
    },
  );

  test('a push refuses them on both ends', () => {
    const [own, peer] = [rank(0, { tokens: 4 }), rank(0, { tokens: 8 })];
    for (const plans of [
      new PeerPlans(own, choiceOf(fakeTransport('push'))),
      new PeerPlans(own, choiceOf(fakeTransport('push')), 'push-source'),
    ]) {
      expect(() => rowsRead(plans, [peer], [1], [1])).toThrow(
        expect.objectContaining({ code: 'INCOMPATIBLE', message: expect.stringContaining('blocks of one size') }),
      );
    }
  });

  test('a value for a whole block cannot be cut', () => {
    const scales = {
      content: 'scale',
      elementBytes: 4,
      axes: [
        ['layer', 4],
        ['block', 9],
        ['head', 2],
      ],
    } as const;
    const own = rank(0, { tokens: 4, buffers: [{}, scales] });
    expect(refusal(own, [rank(0, { tokens: 8, buffers: [{}, scales] })]).message).toContain(
      'scale has one value a block; use one block size on both sides',
    );
    expect(planPull(own, [rank(0, { tokens: 4, buffers: [{}, scales] })], 'first')[0]!.kv).toHaveLength(2);
  });
});

describe('refused with both sides', () => {
  test.each<[string, readonly PeerRank[], string]>([
    [
      'another number of layers',
      [rank(0, { numLayersGlobal: 6 })],
      'numLayersGlobal: the source has 6 and the target 4',
    ],
    ['another head size', [rank(0, { headDim: 16 })], 'headDim: the source has 16 and the target 8'],
    ['other heads', [rank(0, { numKvHeadsGlobal: 4 })], 'numKvHeadsGlobal: the source has 4 and the target 2'],
    ['a rank that is missing', tensorRanks(2).slice(1), 'no rank holds layers 0-3, head 0'],
    ['a stage that is missing', [rank(0, { ppSize: 2 })], 'no rank holds layers 2-3, heads 0-1'],
    [
      'stages that overlap',
      [rank(0, { layerStart: 0, numLocalLayers: 3 }), rank(1, { layerStart: 2, numLocalLayers: 2 })],
      'ranks 0 and 1 both hold layer 2, heads 0-1',
    ],
    ['no rank at all', [], 'no rank holds layers 0-3, heads 0-1'],
  ])('%s', (_name, ranks, words) => {
    const own = rank(7);
    const error = refusal(own, ranks);
    expect(error.code).toBe('INCOMPATIBLE');
    expect(error.message).toContain(`the source cannot fill the target: `);
    expect(error.message).toContain(words);
    expect(error.message).toMatch(
      / Source: (?:TP|no rank).* Target: TP 1 × PP 1 of 4 layers, 2 KV heads of 8; rank 7: /,
    );
    expect(error.details).toMatchObject({ source: expect.any(String), target: expect.any(String) });
  });

  test('a long list of ranks is cut', () => {
    expect(refusal(rank(0, { numLayersGlobal: 5 }), tensorRanks(16)).message).toContain('; and 8 ranks more. Target: ');
  });

  test('stages without a layer are nobody’s source, and want nothing', () => {
    const empty = rank(0, { layerStart: 0, numLocalLayers: 0 });
    const full = rank(1, { layerStart: 0, numLocalLayers: 4 });
    expect(planPull(rank(9), [empty, full], 'first').map((plan) => plan?.rank.key)).toEqual([undefined, 'peer/1']);
    expect(planPull(empty, [full], 'first')).toEqual([null]);
    expect([0, 1].map((index) => pushDuties([empty, full], index).kv)).toEqual([false, true]);
  });
});
