/** Copy programs for property tests: nests of any strides, boxes of one buffer's layout, and plain garbage. */
import fc from 'fast-check';
import type { CopyProgram, Loop, Rectangle, Table } from '../../lib/transfer/copy-program.js';
import { rectangleBetween } from '../../lib/transfer/rectangle.js';
import type { Axis, AxisName, BufferGeometry } from '../../lib/memory/axes-geometry.js';

export interface SizedProgram {
  readonly program: CopyProgram;
  readonly sourceBytes: readonly number[];
  readonly targetBytes: readonly number[];
}

interface NestPlan {
  readonly fragment: number;
  /** Inside out. */
  readonly axes: readonly { readonly kind: 'loop' | 'block' | 'sub'; readonly count: number; readonly gap: number }[];
  readonly rows: readonly { readonly block: number; readonly sub: number }[];
  readonly offset: number;
  readonly sourceStride: number;
}

const nestPlan: fc.Arbitrary<NestPlan> = fc.record({
  fragment: fc.integer({ min: 1, max: 5 }),
  axes: fc.uniqueArray(
    fc.record({
      kind: fc.constantFrom('loop' as const, 'loop' as const, 'block' as const, 'sub' as const),
      count: fc.integer({ min: 1, max: 4 }),
      gap: fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 7 })),
    }),
    { maxLength: 5, selector: (axis) => (axis.kind === 'loop' ? axis : axis.kind) },
  ),
  rows: fc.uniqueArray(fc.record({ block: fc.nat({ max: 3 }), sub: fc.nat({ max: 2 }) }), {
    minLength: 1,
    maxLength: 6,
    selector: ({ block, sub }) => block * 16 + sub,
  }),
  offset: fc.nat({ max: 60 }),
  sourceStride: fc.nat({ max: 3 }),
});

/** One rectangle in normal form, and its table when it has one. */
function buildNest(plan: NestPlan, tableIndex: number): { rectangle: Rectangle; table: Table | null } {
  const has = (kind: string): boolean => plan.axes.some((axis) => axis.kind === kind);
  const useTable = has('block') || has('sub');
  // Columns that no axis stands for hold one value; rows that then name a target twice are dropped.
  const seen = new Set<string>();
  const rows = plan.rows
    .map(({ block, sub }) => ({ block: has('block') ? block : 2, sub: has('sub') ? sub : 0 }))
    .filter(({ block, sub }) => !seen.has(`${block}/${sub}`) && seen.add(`${block}/${sub}`));
  const range = (values: readonly number[]): number => Math.max(...values) - Math.min(...values) + 1;
  let extent = plan.fragment;
  const strides = { block: 0, sub: 0 };
  const loops: Loop[] = [];
  for (const axis of plan.axes) {
    const count = axis.kind === 'loop' ? axis.count : range(rows.map((row) => row[axis.kind as 'block' | 'sub']));
    const stride = extent + axis.gap;
    if (axis.kind === 'loop') loops.unshift({ count, sourceStride: plan.sourceStride * stride, targetStride: stride });
    else strides[axis.kind] = stride;
    extent += (count - 1) * stride;
  }
  return {
    rectangle: {
      sourceRegion: 0,
      targetRegion: 0,
      table: useTable ? tableIndex : -1,
      tableFrom: 0,
      tableCount: useTable ? rows.length : 0,
      sourceOffset: 0,
      targetOffset: plan.offset,
      fragmentBytes: plan.fragment,
      loops,
    },
    table: useTable
      ? {
          source: Int32Array.from(rows, (_, row) => row),
          target: Int32Array.from(rows, ({ block }) => block),
          ...(has('sub') ? { targetSub: Int32Array.from(rows, ({ sub }) => sub) } : {}),
          strides: { sourceBlock: 3, targetBlock: strides.block, sourceSub: 0, targetSub: strides.sub },
        }
      : null,
  };
}

/** One past the last byte that any rectangle touches on either side. */
function reachOf(program: CopyProgram): { source: number; target: number } {
  let source = 1;
  let target = 1;
  for (const rectangle of program.rectangles) {
    let [from, to] = [
      rectangle.sourceOffset + rectangle.fragmentBytes,
      rectangle.targetOffset + rectangle.fragmentBytes,
    ];
    for (const loop of rectangle.loops) {
      from += (loop.count - 1) * loop.sourceStride;
      to += (loop.count - 1) * loop.targetStride;
    }
    const table = program.tables[rectangle.table];
    const rows =
      table === undefined ? [] : [...table.source.keys()].slice(rectangle.tableFrom).slice(0, rectangle.tableCount);
    const reach = (row: number, side: 'source' | 'target'): number => {
      const { strides } = table as Table;
      return side === 'source'
        ? ((table as Table).source[row] as number) * strides.sourceBlock +
            ((table as Table).sourceSub?.[row] ?? 0) * strides.sourceSub
        : ((table as Table).target[row] as number) * strides.targetBlock +
            ((table as Table).targetSub?.[row] ?? 0) * strides.targetSub;
    };
    source = Math.max(source, from + Math.max(0, ...rows.map((row) => reach(row, 'source'))));
    target = Math.max(target, to + Math.max(0, ...rows.map((row) => reach(row, 'target'))));
  }
  return { source, target };
}

function sized(program: CopyProgram): SizedProgram {
  const reach = reachOf(program);
  return { program, sourceBytes: [reach.source], targetBytes: [reach.target] };
}

/** One to three rectangles, each a nest of strides of its own, with nothing in common but their region. */
export const unrelatedNests: fc.Arbitrary<SizedProgram> = fc
  .array(nestPlan, { minLength: 1, maxLength: 3 })
  .map((plans) => {
    const rectangles: Rectangle[] = [];
    const tables: Table[] = [];
    for (const plan of plans) {
      const { rectangle, table } = buildNest(plan, tables.length);
      rectangles.push(rectangle);
      if (table !== null) tables.push(table);
    }
    return sized({ rectangles, tables });
  });

/** The same nest several times, moved by a few bytes, with other rows or another table: the shape of head slices. */
export const interleavedNests: fc.Arbitrary<SizedProgram> = fc
  .record({
    plan: nestPlan,
    otherRows: nestPlan.map(({ rows }) => rows),
    moved: fc.array(
      fc.record({
        by: fc.integer({ min: 0, max: 40 }),
        from: fc.nat({ max: 3 }),
        count: fc.integer({ min: 1, max: 6 }),
        other: fc.boolean(),
      }),
      { minLength: 1, maxLength: 4 },
    ),
  })
  .map(({ plan, otherRows, moved }) => {
    const { rectangle, table } = buildNest(plan, 0);
    // Ids that the nest has room for, so that the second table keeps to it as well.
    const spans = { block: plan.rows.map(({ block }) => block), sub: plan.rows.map(({ sub }) => sub) };
    const inside = ({ block, sub }: { block: number; sub: number }): boolean =>
      block >= Math.min(...spans.block) &&
      block <= Math.max(...spans.block) &&
      sub >= Math.min(...spans.sub) &&
      sub <= Math.max(...spans.sub);
    const second = table === null ? null : buildNest({ ...plan, rows: otherRows.filter(inside) }, 1).table;
    const tables = [table, second].filter((each) => each !== null).filter((each) => each.source.length > 0);
    const rectangles = moved.map(({ by, from, count, other }) => {
      const index = other && tables.length === 2 ? 1 : 0;
      const rows = tables[index]?.source.length ?? 0;
      const tableFrom = Math.min(from, Math.max(0, rows - 1));
      return {
        ...rectangle,
        table: table === null ? -1 : index,
        targetOffset: rectangle.targetOffset + by,
        tableFrom,
        tableCount: table === null ? 0 : Math.min(count, rows - tableFrom),
      };
    });
    const strides = table?.strides;
    return sized({ rectangles, tables: strides === undefined ? [] : tables.map((each) => ({ ...each, strides })) });
  });

const axisNames: readonly AxisName[] = ['plane', 'layer', 'block', 'token', 'head', 'dim'];

/** Boxes of one buffer in any order of its axes, as the planners cut them: what must never be refused as not normal. */
export const layoutBoxes: fc.Arbitrary<SizedProgram> = fc
  .record({
    order: fc.shuffledSubarray([...axisNames], { minLength: 6, maxLength: 6 }),
    sourceOrder: fc.shuffledSubarray([...axisNames], { minLength: 6, maxLength: 6 }),
    sizes: fc.record({
      plane: fc.integer({ min: 1, max: 2 }),
      layer: fc.integer({ min: 1, max: 4 }),
      block: fc.integer({ min: 2, max: 5 }),
      token: fc.integer({ min: 1, max: 3 }),
      head: fc.integer({ min: 1, max: 4 }),
      dim: fc.integer({ min: 1, max: 2 }),
    }),
    pad: fc.nat({ max: 3 }),
    boxes: fc.array(
      fc.record({
        layer: fc.tuple(fc.nat({ max: 3 }), fc.integer({ min: 1, max: 4 })),
        head: fc.tuple(fc.nat({ max: 3 }), fc.integer({ min: 1, max: 4 })),
        token: fc.tuple(fc.nat({ max: 2 }), fc.integer({ min: 1, max: 3 })),
        rows: fc.tuple(fc.nat({ max: 4 }), fc.integer({ min: 1, max: 5 })),
      }),
      { minLength: 1, maxLength: 5 },
    ),
    blocks: fc.shuffledSubarray([0, 1, 2, 3, 4], { minLength: 5, maxLength: 5 }),
  })
  .map(({ order, sourceOrder, sizes, pad, boxes, blocks }) => {
    const target = bufferOf(order, sizes, pad);
    const source = bufferOf(sourceOrder, sizes, 0);
    const ids = Int32Array.from(blocks.filter((block) => block < sizes.block));
    const rectangles: Rectangle[] = [];
    let table: Table | undefined;
    for (const box of boxes) {
      const cut = ([from, count]: readonly [number, number], size: number) => {
        const start = from % size;
        return { source: start, target: start, count: Math.min(count, size - start) };
      };
      const { rectangle, tableStrides } = rectangleBetween(
        source,
        target,
        {
          layer: cut(box.layer, sizes.layer),
          head: cut(box.head, sizes.head),
          token: cut(box.token, sizes.token),
        },
        'block',
      );
      const rows = cut(box.rows, ids.length);
      table ??= {
        source: ids,
        target: ids,
        strides: { sourceBlock: tableStrides.source, targetBlock: tableStrides.target, sourceSub: 0, targetSub: 0 },
      };
      rectangles.push({ ...rectangle, table: 0, tableFrom: rows.source, tableCount: rows.count });
    }
    return sized({ rectangles, tables: table === undefined ? [] : [table] });
  });

function bufferOf(order: readonly AxisName[], sizes: Readonly<Record<string, number>>, pad: number): BufferGeometry {
  const axes: Axis[] = [];
  let stride = 1;
  for (const name of [...order].reverse()) {
    const size = sizes[name] as number;
    axes.unshift({ name, size, strideBytes: stride });
    stride = stride * size + (axes.length === 3 ? pad : 0);
  }
  return { region: 0, offsetBytes: 0, elementBytes: 1, axes };
}

const anyCount = fc.oneof(
  { weight: 20, arbitrary: fc.integer({ min: 1, max: 3 }) },
  fc.constantFrom(0, -1, 1.5, NaN, 2 ** 53),
);
const anyNumber = fc.oneof(
  { weight: 20, arbitrary: fc.nat({ max: 40 }) },
  fc.constantFrom(-1, 0.5, NaN, Infinity, 2 ** 52, 2 ** 53),
);
const anyId = fc.oneof({ weight: 20, arbitrary: fc.nat({ max: 4 }) }, fc.constantFrom(-1, -(2 ** 31), 2 ** 31 - 1));
const column = (length: number): fc.Arbitrary<Int32Array> =>
  fc.array(anyId, { minLength: length, maxLength: length }).map((ids) => Int32Array.from(ids));

const anyTable: fc.Arbitrary<Table> = fc.integer({ min: 0, max: 4 }).chain((length) =>
  fc
    .record({
      source: column(length),
      target: column(length),
      sub: fc.option(column(length), { nil: null }),
      strides: fc.record({
        sourceBlock: anyNumber,
        targetBlock: anyNumber,
        sourceSub: anyNumber,
        targetSub: anyNumber,
      }),
    })
    .map(({ source, target, sub, strides }) => ({
      source,
      target,
      ...(sub === null ? {} : { targetSub: sub }),
      strides,
    })),
);

/** Programs of any numbers; few are normal, some are no programs at all. */
export const garbage: fc.Arbitrary<SizedProgram> = fc.record({
  program: fc.record({
    rectangles: fc.array(
      fc.record({
        sourceRegion: fc.constantFrom(0, 0, 0, 0, 1, 2),
        targetRegion: fc.constantFrom(0, 0, 0, 0, 1, 2),
        table: fc.constantFrom(-1, -1, 0, 0, 1, -2),
        tableFrom: fc.nat({ max: 2 }),
        tableCount: anyCount,
        sourceOffset: anyNumber,
        targetOffset: anyNumber,
        fragmentBytes: anyCount,
        loops: fc.array(fc.record({ count: anyCount, sourceStride: anyNumber, targetStride: anyNumber }), {
          maxLength: 3,
        }),
      }),
      { maxLength: 3 },
    ),
    tables: fc.array(anyTable, { maxLength: 2 }),
  }),
  sourceBytes: fc.constantFrom([200], [400, 100]),
  targetBytes: fc.constantFrom([200], [400, 100]),
});
