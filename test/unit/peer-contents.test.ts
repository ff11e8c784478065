/**
 * Goal: buffers of different contents, of K and V apart, without heads or without tokens go where they belong, or are
 * refused. Method: one rank against one or two whose buffers differ.
 */
import type { RowMajorInput } from '../../lib/memory/axes-geometry.js';
import { planPull } from '../../lib/transfer/peer-pairing.js';
import { rank, refusal, tensorRanks, type Change } from '../support/pairing-ranks.js';

describe('kinds of buffers', () => {
  const plane = (planeStart: number, elementBytes = 2): Partial<RowMajorInput> => ({
    ...{ planeStart, elementBytes },
    axes: [
      ['layer', 4],
      ['block', 9],
      ['token', 4],
      ['head', 2],
      ['dim', 8],
    ],
  });
  const half = (planeStart: number): Partial<RowMajorInput> => ({
    ...plane(planeStart),
    axes: [
      ['layer', 2],
      ['block', 9],
      ['token', 4],
      ['head', 2],
      ['dim', 8],
    ],
  });
  const scales: Partial<RowMajorInput> = {
    ...{ content: 'scale', elementBytes: 4 },
    axes: [
      ['plane', 2],
      ['layer', 4],
      ['block', 9],
      ['token', 4],
      ['head', 2],
    ],
  };

  test('K and V in one buffer here and in two there', () => {
    const apart = rank(0, { buffers: [plane(0), plane(1)] });
    const together = rank(0);
    for (const [own, peer] of [
      [apart, together],
      [together, apart],
    ] as const) {
      const [plan] = planPull(own, [peer], 'first');
      expect(plan!.kv.map(({ rectangle }) => [rectangle.sourceRegion, rectangle.targetRegion]).sort()).toEqual(
        own === apart
          ? [
              [0, 0],
              [0, 1],
            ]
          : [
              [0, 0],
              [1, 0],
            ],
      );
    }
  });

  test('scales go to scales and data to data', () => {
    const [plan] = planPull(rank(0, { buffers: [{}, scales] }), [rank(0, { buffers: [{}, scales] })], 'first');
    expect(
      plan!.kv.map(({ rectangle: { sourceRegion, targetRegion, label } }) => [sourceRegion, targetRegion, label!.part]),
    ).toEqual([
      [0, 0, 'kv'],
      [1, 1, 'scale'],
    ]);
  });

  test('a latent without heads is the same on all tensor ranks', () => {
    const latent: Change = {
      numKvHeadsGlobal: 1,
      buffers: [
        {
          axes: [
            ['layer', 4],
            ['block', 9],
            ['token', 4],
            ['dim', 8],
          ],
        },
        {
          content: 'rope',
          axes: [
            ['layer', 4],
            ['block', 9],
            ['token', 4],
            ['dim', 2],
          ],
        },
      ],
    };
    const [own] = tensorRanks(2, latent);
    const plans = planPull(own!, tensorRanks(4, latent), 'first');
    expect(plans.map((plan) => plan?.kv.length ?? 0)).toEqual([2, 0, 0, 0]);
  });

  test('a value for all heads of a rank is neither split nor joined', () => {
    const shared: Partial<RowMajorInput> = {
      ...{ content: 'scale', elementBytes: 4 },
      axes: [
        ['layer', 4],
        ['block', 9],
        ['token', 4],
      ],
    };
    const buffers = [{}, shared];
    expect(planPull(rank(0, { buffers }), [rank(0, { buffers })], 'first')[0]!.kv).toHaveLength(2);
    expect(refusal(rank(0, { buffers }), tensorRanks(2, { buffers })).message).toContain('give it a head axis');
  });

  test.each(['source', 'target'])(
    'a value for a whole block at the %s does not go to blocks of another size',
    (side) => {
      const values = (token: number | null): Change => ({
        buffers: [
          {
            axes: [
              ['plane', 2],
              ['layer', 4],
              ['block', 9],
              ['token', token ?? 6],
              ['head', 2],
              ['dim', 8],
            ],
          },
          {
            content: 'scale',
            axes: [['layer', 4], ['block', 9], ...(token === null ? [] : [['token', token] as const])],
          },
        ],
      });
      const [own, peer] = side === 'source' ? [values(4), values(null)] : [values(null), values(4)];
      expect(refusal(rank(0, own), [rank(0, peer)]).message).toContain('are cut, and scale has one value a block');
    },
  );

  test.each<[string, Change, Change, string]>([
    [
      'scales that the source lacks',
      { buffers: [{}, scales] },
      {},
      'contents: the source has kv (planes 0 and 1) and the target kv (planes 0 and 1), scale (planes 0 and 1)',
    ],
    [
      'scales that the target lacks',
      {},
      { buffers: [{}, scales] },
      'scale (planes 0 and 1) and the target kv (planes 0 and 1).',
    ],
    ['keys alone', {}, { buffers: [plane(0)] }, 'the source has kv (plane 0) and the target kv (planes 0 and 1)'],
    ['values alone', {}, { buffers: [plane(1)] }, 'the source has kv (plane 1) and the target kv (planes 0 and 1)'],
    ['values that the target lacks', { buffers: [plane(0)] }, {}, 'and the target kv (plane 0).'],
    ['layers twice', {}, { buffers: [plane(0), plane(1), half(1)] }, 'write 1280 of the 1024 bytes of a block'],
    ['layers without a buffer', {}, { buffers: [plane(0), half(1)] }, 'write 768 of the 1024 bytes of a block'],
    ['keys twice', {}, { buffers: [plane(0), half(0), half(1)] }, 'do not make one plan'],
    ['another element size', {}, { elementBytes: 4 }, 'elementBytes: the source has 4 and the target 2'],
  ])('%s', (_name, own, peer, words) => {
    expect(refusal(rank(0, own), [rank(0, peer)]).message).toContain(words);
  });
});
