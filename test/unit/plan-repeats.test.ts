/**
 * Goal: with many buffers of few shapes each pair gets the rectangle that it would get alone. Method: random cuts of layers and
 * planes into buffers on both sides, of several shapes and anywhere in their regions; all at once against pair by pair.
 */
import fc from 'fast-check';
import { rowMajorBuffer, type AxisName, type BufferGeometry } from '../../lib/memory/axes-geometry.js';
import { makeKvLayout } from '../../lib/memory/kv-layout.js';
import { planKv, type KvEndpoint } from '../../lib/transfer/plan-kv.js';

const layers = 6;
const orders: readonly (readonly AxisName[])[] = [
  ['plane', 'layer', 'block', 'token', 'head', 'dim'],
  ['plane', 'layer', 'block', 'head', 'token', 'dim'],
  ['block', 'plane', 'layer', 'head', 'token', 'dim'],
];

interface Cut {
  readonly start: number;
  readonly size: number;
  readonly order: readonly AxisName[];
  readonly apart: boolean;
  readonly padded: boolean;
}

const cuts = fc
  .tuple(
    fc.integer({ min: 0, max: 2 }),
    fc.array(
      fc.record({
        size: fc.constantFrom(1, 1, 1, 2, 3),
        order: fc.constantFrom(...orders),
        apart: fc.boolean(),
        padded: fc.boolean(),
      }),
      {
        minLength: 1,
        maxLength: 6,
      },
    ),
  )
  .map(([start, sizes]): Cut[] => {
    let next = start;
    return sizes.flatMap(({ size, ...rest }) => {
      const cut = { start: next, size: Math.min(size, layers - next), ...rest };
      next += cut.size;
      return cut.size > 0 ? [cut] : [];
    });
  });

function endpoint(own: readonly Cut[], tpSize: number, globalRank: number): KvEndpoint {
  const [first, last] = [own[0]!, own.at(-1)!];
  const window = { layerStart: first.start, numLocalLayers: last.start + last.size - first.start };
  const layout = makeKvLayout({
    numLayersGlobal: layers,
    numKvHeadsGlobal: 2,
    headDim: 3,
    tpSize,
    globalRank,
    ...window,
  });
  const buffers: BufferGeometry[] = [];
  const layerStarts: number[] = [];
  for (const { start, size, order, apart, padded } of own) {
    for (const planeStart of apart ? [0, 1] : [0]) {
      const sizes = { plane: apart ? 1 : 2, layer: size, block: 4, token: 2, head: 2 / tpSize, dim: 3 } as const;
      const axes = order.map((name) => [name, sizes[name as keyof typeof sizes]] as const);
      const place = { region: buffers.length % 3, offsetBytes: 1000 * buffers.length + 7 * start };
      const paddingBytes = { token: padded ? 2 : 0 };
      buffers.push(rowMajorBuffer({ ...place, elementBytes: 2, axes, planeStart, paddingBytes }));
      layerStarts.push(start);
    }
  }
  return { layout, buffers, layerStarts };
}

const alone = (of: KvEndpoint, index: number): KvEndpoint => ({
  ...of,
  buffers: [of.buffers[index]!],
  layerStarts: [of.layerStarts[index]!],
});

/** A buffer for each layer, the orders of their axes by turns. */
const eachLayer = (turns: readonly (readonly AxisName[])[]): Cut[] =>
  Array.from({ length: layers }, (_, start) => ({
    ...{ start, size: 1, order: turns[start % turns.length]!, apart: false, padded: false },
  }));

test('many buffers at once give what each pair gives alone', () => {
  let most = 0;
  fc.assert(
    fc.property(cuts, cuts, fc.constantFrom(1, 2), (sourceCuts, targetCuts, tpSize) => {
      const [source, target] = [endpoint(sourceCuts, 1, 5), endpoint(targetCuts, tpSize, 9)];
      const pairs = target.buffers.flatMap((_, to) =>
        source.buffers.flatMap((__, from) => planKv(alone(source, from), alone(target, to))),
      );
      const all = planKv(source, target);
      expect(all).toEqual(pairs);
      most = Math.max(most, all.length);
    }),
    { numRuns: 300, examples: [[eachLayer(orders), eachLayer([orders[0]!]), 1]] },
  );
  expect(most).toBeGreaterThan(8);
});
