/**
 * Goal: one rectangle copies exactly what the named axes and ranges say. Method: fast-check draws sizes, orders, paddings
 * and ranges; a loop over all indices says which byte goes where; the rectangle's moves must be that map and no more.
 */
import fc from 'fast-check';
import type { HandoffError } from '../../lib/errors.js';
import type { Axis, AxisName, BufferGeometry } from '../../lib/memory/axes-geometry.js';
import { expandMoves } from '../../lib/testing/copy-moves.js';
import { rectangleBetween, type AxisRange } from '../../lib/transfer/rectangle.js';

const names: readonly AxisName[] = ['plane', 'layer', 'block', 'token', 'head', 'dim'];
type Sizes = Readonly<Record<string, number>>;

/** A buffer with its axes in that order, outermost first, with `padding` bytes after each run of an axis. */
function buffer(
  order: readonly AxisName[],
  sizes: Sizes,
  elementBytes: number,
  offsetBytes: number,
  padding: number,
): BufferGeometry {
  let strideBytes = elementBytes;
  const axes: Axis[] = [];
  for (const name of [...order].reverse()) {
    axes.unshift({ name, size: sizes[name]!, strideBytes });
    strideBytes = strideBytes * sizes[name]! + padding;
  }
  return { region: 0, offsetBytes, elementBytes, axes };
}

const stride = (geometry: BufferGeometry, name: AxisName): number =>
  geometry.axes.find((axis) => axis.name === name)!.strideBytes;
const endOf = ({ axes, offsetBytes, elementBytes }: BufferGeometry): number =>
  axes.reduce((end, { size, strideBytes }) => end + (size - 1) * strideBytes, offsetBytes + elementBytes);

/** `source byte > target byte`, one for each byte that must move. */
function wanted(
  source: BufferGeometry,
  target: BufferGeometry,
  ranges: Readonly<Record<string, AxisRange>>,
  blocks: readonly (readonly [number, number])[],
): string[] {
  let places: (readonly [number, number])[] = [[source.offsetBytes, target.offsetBytes]];
  for (const name of names) {
    const { source: from, target: to, count } = ranges[name] ?? { source: 0, target: 0, count: 0 };
    const steps =
      name === 'block' ? blocks : Array.from({ length: count }, (_, index) => [from + index, to + index] as const);
    places = places.flatMap(([a, b]) =>
      steps.map(([i, j]) => [a + i * stride(source, name), b + j * stride(target, name)] as const),
    );
  }
  return places
    .flatMap(([a, b]) => Array.from({ length: source.elementBytes }, (_, byte) => `${a + byte}>${b + byte}`))
    .sort();
}

function codeOf(call: () => unknown): string | null {
  try {
    call();
    return null;
  } catch (error) {
    return (error as HandoffError).code;
  }
}

const order = fc.shuffledSubarray([...names], { minLength: names.length });
const count = fc.integer({ min: 1, max: 3 });
const extra = fc.record({ before: fc.nat(2), after: fc.nat(2) });

test('moves what the ranges say, for all orders, sizes and paddings', () => {
  let moved = 0;
  fc.assert(
    fc.property(
      fc.tuple(order, order, fc.constantFrom(0, 8), fc.constantFrom(0, 8), fc.constantFrom(1, 2, 4)),
      fc.tuple(count, count, count, count, count),
      fc.tuple(extra, extra, extra, extra),
      ([orderA, orderB, padA, padB, bytes], [plane, layer, token, head, dim], [layerA, layerB, headA, headB]) => {
        const shared = { plane, token, dim, block: 4 };
        const sizesA = {
          ...shared,
          layer: layer + layerA.before + layerA.after,
          head: head + headA.before + headA.after,
        };
        const sizesB = {
          ...shared,
          layer: layer + layerB.before + layerB.after,
          head: head + headB.before + headB.after,
        };
        const source = buffer(orderA, sizesA, bytes, 16, padA);
        const target = buffer(orderB, sizesB, bytes, 32, padB);
        const whole = (size: number): AxisRange => ({ source: 0, target: 0, count: size });
        const ranges = {
          layer: { source: layerA.before, target: layerB.before, count: layer },
          head: { source: headA.before, target: headB.before, count: head },
        };
        const { rectangle, tableStrides } = rectangleBetween(source, target, ranges, 'block');
        const blocks = [
          [2, 0],
          [0, 3],
        ] as const;
        const program = {
          rectangles: [{ ...rectangle, table: 0, tableFrom: 0, tableCount: 2 }],
          tables: [
            {
              source: Int32Array.from(blocks, ([from]) => from),
              target: Int32Array.from(blocks, ([, to]) => to),
              strides: {
                sourceBlock: tableStrides.source,
                targetBlock: tableStrides.target,
                sourceSub: 0,
                targetSub: 0,
              },
            },
          ],
        };
        const moves = expandMoves([program], [endOf(source)], [endOf(target)]);
        const pairs: string[] = [];
        for (let at = 0; at < moves.length; at += 5) {
          for (let byte = 0; byte < moves[at + 4]!; byte += 1)
            pairs.push(`${moves[at + 1]! + byte}>${moves[at + 3]! + byte}`);
        }
        const all = { ...ranges, plane: whole(plane), token: whole(token), dim: whole(dim) };
        expect(pairs.sort()).toEqual(wanted(source, target, all, blocks));
        moved += 1;
      },
    ),
  );
  expect(moved).toBeGreaterThanOrEqual(100);
});

describe('what does not fit is refused by name', () => {
  const sizes = { plane: 2, layer: 3, block: 4, token: 2, head: 2, dim: 4 };
  const good = buffer(names, sizes, 2, 0, 0);
  const withSize = (name: AxisName, size: number): BufferGeometry => buffer(names, { ...sizes, [name]: size }, 2, 0, 0);
  const refused = (source: BufferGeometry, ranges: Readonly<Record<string, AxisRange>> = {}): unknown => {
    try {
      return rectangleBetween(source, good, ranges, 'block');
    } catch (error) {
      const { code, message } = error as HandoffError;
      return [code, message];
    }
  };

  test.each(['plane', 'layer', 'token', 'head', 'dim'] as const)('another %s', (name) => {
    const message = `axes.${name}.size: the source has ${sizes[name] + 1} and the target ${sizes[name]}`;
    expect(refused(withSize(name, sizes[name] + 1))).toEqual(['INCOMPATIBLE', message]);
  });

  test('another number of blocks is no difference', () => {
    expect(codeOf(() => rectangleBetween(withSize('block', 9), good, {}, 'block'))).toBeNull();
  });

  test('another element size, other axes, a range beyond either side', () => {
    expect(refused({ ...good, elementBytes: 4 })).toEqual([
      'INCOMPATIBLE',
      'elementBytes: the source has 4 and the target 2',
    ]);
    expect(refused({ ...good, axes: good.axes.slice(1) })).toEqual([
      'INCOMPATIBLE',
      'axes.plane.size: the source has no such axis and the target 2',
    ]);
    const renamed = good.axes.map((axis) => (axis.name === 'plane' ? { ...axis, name: 'slot' as const } : axis));
    expect(refused({ ...good, axes: renamed })).toEqual([
      'INCOMPATIBLE',
      'axes.plane.size: the source has no such axis and the target 2',
    ]);
    expect(refused(good, { layer: { source: 2, target: 0, count: 2 } })).toEqual(['INCOMPATIBLE', expect.any(String)]);
    expect(refused(good, { layer: { source: 0, target: 2, count: 2 } })).toEqual(['INCOMPATIBLE', expect.any(String)]);
  });

  test('a table over an axis that is not there', () => {
    expect(codeOf(() => rectangleBetween(good, good, {}, 'slot'))).toBe('INCOMPATIBLE');
  });
});

test('what is contiguous on both sides becomes one fragment', () => {
  const sizes = { plane: 2, layer: 3, block: 4, token: 2, head: 2, dim: 4 };
  const { rectangle } = rectangleBetween(buffer(names, sizes, 2, 0, 0), buffer(names, sizes, 2, 0, 0), {}, 'block');
  expect([rectangle.fragmentBytes, rectangle.loops.map((loop) => loop.count)]).toEqual([32, [6]]);
});

test('an axis that is to stay apart takes no other into its loop, and goes into none', () => {
  const sizes = { plane: 2, layer: 3, block: 4, token: 2, head: 2, dim: 4 };
  const ranges = { head: { source: 0, target: 0, count: 1 } };
  for (const outer of [
    ['layer', 'plane'],
    ['plane', 'layer'],
  ] as const) {
    const order: readonly AxisName[] = ['block', ...outer, 'token', 'head', 'dim'];
    const [source, target] = [buffer(order, sizes, 2, 0, 0), buffer(order, sizes, 2, 0, 0)];
    const loopsOf = (apart: AxisName | null): number[] =>
      rectangleBetween(source, target, ranges, 'block', { apart }).rectangle.loops.map(({ count: turns }) => turns);
    expect(loopsOf(null)).toEqual([12]);
    // Layers and tokens continue each other only where no plane lies between them.
    expect(loopsOf('plane')).toEqual(outer[0] === 'layer' ? [3, 2, 2] : [2, 6]);
  }
});
