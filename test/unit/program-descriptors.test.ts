/**
 * Goal: a program becomes the lists that NIXL and NCCL are given, in the reference's order. Method: the reference's own
 * vectors hold whole cases (test/native/conformance.test.ts); here what they leave out: SSM messages, blocks of unlike
 * sizes, one slot over several layers, and what is refused. All runs together must be what the program copies.
 */
import { rowMajorBuffer } from '../../lib/memory/axes-geometry.js';
import { makeKvLayout } from '../../lib/memory/kv-layout.js';
import { makeSsmLayout } from '../../lib/memory/ssm-layout.js';
import type { CopyProgram } from '../../lib/transfer/copy-program.js';
import { planKv, type KvEndpoint } from '../../lib/transfer/plan-kv.js';
import { planSsm, type SsmEndpoint } from '../../lib/transfer/plan-ssm.js';
import { lowerToDescriptors, splitMessages, type DescriptorOrder } from '../../lib/transfer/program-descriptors.js';
import type { RectangleTemplate } from '../../lib/transfer/rectangle.js';
import { eachFragment } from '../support/program-oracle.js';

const orders: readonly DescriptorOrder[] = ['nixl', 'nccl'];

function program(templates: readonly RectangleTemplate[], source: number[], target: number[]): CopyProgram {
  return {
    rectangles: templates.map(({ rectangle }, table) => ({
      ...rectangle,
      ...{ table, tableFrom: 0, tableCount: source.length },
    })),
    tables: templates.map(({ tableStrides }) => ({
      source: Int32Array.from(source),
      target: Int32Array.from(target),
      strides: { sourceBlock: tableStrides.source, targetBlock: tableStrides.target, sourceSub: 0, targetSub: 0 },
    })),
  };
}

const dims = { nheads: 4, headdim: 2, dState: 3, ngroups: 2, dConv: 2 };

function ssm(tpSize: number, tpRank: number, layerStart: number, numLayers: number, slots = 3): SsmEndpoint {
  const layout = makeSsmLayout({ globalRank: tpRank, tpSize, tpRank, layerStart, numLayers, dims });
  const buffer = (region: number, unit: 'channel' | 'head', size: number, dim: number) =>
    rowMajorBuffer({
      region,
      elementBytes: 2,
      axes: [
        ['layer', numLayers],
        ['slot', slots],
        [unit, size / tpSize],
        ['dim', dim],
      ],
    });
  return { layout, conv: buffer(0, 'channel', 20, 2), recurrent: buffer(1, 'head', 4, 6) };
}

function kv(tpSize: number, tpRank: number, tokens = 2): KvEndpoint {
  const layout = makeKvLayout({ numLayersGlobal: 2, numKvHeadsGlobal: 4, headDim: 3, tpSize, tpRank });
  const buffer = rowMajorBuffer({
    elementBytes: 2,
    axes: [
      ['plane', 2],
      ['layer', 2],
      ['block', 6],
      ['token', tokens],
      ['head', 4 / tpSize],
      ['dim', 3],
    ],
  });
  return { layout, buffers: [buffer], layerStarts: [0] };
}

/** `region.byte>region.byte` of everything that moves. */
function bytesOf(
  emit: (visit: (a: number, from: number, b: number, to: number, bytes: number) => void) => void,
): string[] {
  const moved: string[] = [];
  emit((a, from, b, to, bytes) => {
    for (let byte = 0; byte < bytes; byte++) moved.push(`${a}.${from + byte}>${b}.${to + byte}`);
  });
  return moved.sort();
}

const cases: readonly (readonly [string, CopyProgram])[] = [
  ['attention, equal parts', program(planKv(kv(1, 0), kv(1, 0)), [3, 1], [0, 4])],
  ['attention, heads split', program(planKv(kv(1, 0), kv(2, 1)), [3, 1], [0, 4])],
  ['SSM state, bands split', program(planSsm(ssm(1, 0, 0, 3), ssm(2, 1, 1, 2)), [2], [0])],
  ['SSM state, one slot', program(planSsm(ssm(1, 0, 0, 2, 1), ssm(1, 0, 0, 2, 1)), [0], [0])],
];

test.each(cases)('the lists of %s are what the program copies, in either order', (_name, copied) => {
  for (const order of orders) {
    const lists = lowerToDescriptors(copied, order);
    expect(lists.every(({ shape }) => (shape === null) === (order === 'nixl'))).toBe(true);
    expect(
      bytesOf((visit) => {
        for (const list of lists) {
          list.source.forEach((from, index) =>
            visit(list.sourceRegion, from, list.targetRegion, list.target[index]!, list.bytes),
          );
        }
      }),
    ).toEqual(bytesOf((visit) => eachFragment(copied, visit)));
  }
});

test('a message carries one tensor: attention one a block, SSM state one a band and layer', () => {
  const attention = lowerToDescriptors(cases[1]![1], 'nccl');
  expect(attention.map(({ shape, target }) => [shape, target[0]])).toEqual([
    [[2, 2, 2, 2, 3], 0],
    [[2, 2, 2, 2, 3], 4 * 24],
  ]);
  for (const [, copied] of cases.slice(2)) {
    const lists = lowerToDescriptors(copied, 'nccl');
    const { shape } = copied.rectangles[0]!.label!;
    expect(lists.map((list) => list.shape)).toEqual(
      copied.rectangles.flatMap(({ label }) => [label!.shape, label!.shape]),
    );
    expect(shape.reduce((elements, size) => elements * size, 2)).toBe(lists[0]!.bytes * lists[0]!.source.length);
    for (const order of orders) expect(lowerToDescriptors(copied, order)).toHaveLength(8);
  }
});

test('equal parts are one request, others one a plane, rows of the table first', () => {
  expect(lowerToDescriptors(cases[0]![1], 'nixl').map(({ target }) => [...target])).toEqual([
    [0, 288, 576, 864, 192, 480, 768, 1056],
  ]);
  const [keys, values] = lowerToDescriptors(cases[1]![1], 'nixl');
  expect([...keys!.target]).toEqual([0, 12, 144, 156, 96, 108, 240, 252]);
  expect([...values!.target]).toEqual([...keys!.target].map((at) => at + 288));
});

test('blocks of unlike sizes: a row is a part of a block', () => {
  const [template] = planKv(kv(1, 0, 4), kv(1, 0, 2));
  const { source, target, sourceSub, targetSub } = template!.tableStrides;
  const copied: CopyProgram = {
    rectangles: [{ ...template!.rectangle, table: 0, tableFrom: 1, tableCount: 2 }],
    tables: [
      {
        source: Int32Array.of(5, 5, 2),
        target: Int32Array.of(0, 1, 3),
        sourceSub: Int32Array.of(0, 1, 0),
        strides: { sourceBlock: source, targetBlock: target, sourceSub: sourceSub!, targetSub: targetSub! },
      },
    ],
  };
  const [list] = lowerToDescriptors(copied, 'nixl');
  expect([list!.bytes, list!.source[0], list!.target[0]]).toEqual([48, 5 * 96 + 48, 48]);
  expect([list!.source.length, list!.source[4], list!.target[4]]).toEqual([8, 2 * 96, 3 * 48]);
});

test('a rectangle without a table or a label is one list; rows and tables that do not exist are refused', () => {
  const { rectangles, tables } = cases[0]![1];
  const { label: _label, ...bare } = rectangles[0]!;
  const once = lowerToDescriptors({ rectangles: [{ ...bare, table: -1 }], tables: [] }, 'nccl');
  expect(once.map(({ source, shape }) => [source.length, shape])).toEqual([[4, null]]);
  expect(() => lowerToDescriptors({ rectangles, tables: [] }, 'nixl')).toThrow(
    'rectangles[0].table: expected below 0, got 0',
  );
  expect(() => lowerToDescriptors({ rectangles: [{ ...bare, tableFrom: 1 }], tables }, 'nixl')).toThrow(
    "rectangles[0].tableFrom + tableCount: expected at most the table's 2 rows, got 3",
  );
});

test.each(cases)('rows of the split program of %s are the messages, in their order', (_name, copied) => {
  const split = splitMessages(copied);
  const rows = split.rectangles.flatMap((rectangle) =>
    Array.from({ length: rectangle.tableCount }, (_, row) => ({
      rectangles: [{ ...rectangle, tableFrom: rectangle.tableFrom + row, tableCount: 1 }],
      tables: split.tables,
    })),
  );
  const messages = lowerToDescriptors(copied, 'nccl');
  const places = rows.map((row) => {
    const found: number[][] = [];
    eachFragment(row, (_, from, __, to, bytes) => void found.push([from, to, bytes]));
    return found;
  });
  expect(places).toEqual(
    messages.map(({ source, target, bytes }) => [...source].map((from, index) => [from, target[index], bytes])),
  );
});
