/**
 * Goal: whatever the split, an SSM plan puts each conv channel and each recurrent head in its place. Method: as for
 * attention: every element has a value of its own, all pairs of TP and PP are moved and compared, both ways.
 */
import { expandMoves } from '../../lib/testing/copy-moves.js';
import { rankPositions, smallShape, TestMemory, type TestModelShape } from '../../lib/testing/test-memory.js';
import { ssmBands } from '../../lib/memory/ssm-layout.js';
import { planSsm, representativeSsmSources, ssmCoverFault } from '../../lib/transfer/plan-ssm.js';

const shape: TestModelShape = {
  ...smallShape,
  layers: 4,
  ssm: { layers: 4, dims: { nheads: 8, headdim: 3, dState: 5, ngroups: 4, dConv: 2 } },
};
const mark = 0xabcdef;
const memories = (tp: number, pp: number): TestMemory[] =>
  rankPositions(tp, pp).map((position) => new TestMemory(shape, position, 3, 4));

function run(sources: readonly TestMemory[], target: TestMemory, from: number, to: number): void {
  for (const index of representativeSsmSources(sources.map(({ ssm }) => ssm!.layout))) {
    const source = sources[index]!;
    const templates = planSsm(source.ssm!, target.ssm!);
    const program = {
      rectangles: templates.map(({ rectangle }, table) => ({ ...rectangle, table, tableFrom: 0, tableCount: 1 })),
      tables: templates.map(({ tableStrides }) => ({
        source: Int32Array.of(from),
        target: Int32Array.of(to),
        strides: { sourceBlock: tableStrides.source, targetBlock: tableStrides.target, sourceSub: 0, targetSub: 0 },
      })),
    };
    const sizes = (memory: TestMemory): number[] => memory.regions.map(({ byteLength }) => byteLength);
    const moves = expandMoves([program], sizes(source), sizes(target));
    for (let at = 0; at < moves.length; at += 5) {
      const [sourceRegion, sourceAt, targetRegion, targetAt, bytes] = moves.slice(at, at + 5) as [
        number,
        number,
        number,
        number,
        number,
      ];
      const read = new Uint8Array(source.regions[sourceRegion]!.buffer, sourceAt, bytes);
      new Uint8Array(target.regions[targetRegion]!.buffer).set(read, targetAt);
    }
  }
}

const splits = [1, 2, 4].flatMap((tp) => [1, 2, 4].map((pp) => [tp, pp] as const));
const pairs = splits.flatMap(([tpA, ppA]) => splits.map(([tpB, ppB]) => [tpA, ppA, tpB, ppB] as const));

test.each(pairs)(
  'field report 68: x, B, C and recurrent heads from TP %p PP %p to TP %p PP %p',
  (tpA, ppA, tpB, ppB) => {
    const sources = memories(tpA, ppA);
    for (const source of sources) source.fillSlot(1, mark);
    for (const target of memories(tpB, ppB)) {
      target.fillSlot(0, 77);
      expect(
        ssmCoverFault(
          sources.map(({ ssm }) => ssm!.layout),
          target.ssm!.layout,
        ),
      ).toBeNull();
      run(sources, target, 1, 3);
      expect([target.slotFault(3, mark), target.slotFault(0, 77)]).toEqual([null, null]);
    }
  },
);

test('the bands of a rank lie one after the other and fill its channels', () => {
  for (const [tp] of splits) {
    const { layout, conv } = memories(tp, 1)[0]!.ssm!;
    let offset = 0;
    for (const { globalWidth, localOffset } of ssmBands(layout).slice(0, 3)) {
      expect(localOffset).toBe(offset);
      offset += globalWidth / tp;
    }
    expect(offset).toBe(conv.axes.find(({ name }) => name === 'channel')!.size);
  }
});

test.each(['nheads', 'headdim', 'dState', 'ngroups', 'dConv'] as const)('another %s is refused by name', (field) => {
  const { ssm } = memories(1, 1)[0]!;
  const other = { ...ssm!, layout: { ...ssm!.layout, dims: { ...ssm!.layout.dims, [field]: 16 } } };
  expect(() => planSsm(other, ssm!)).toThrow(
    expect.objectContaining({ code: 'INCOMPATIBLE', message: expect.stringContaining(`ssm.${field}`) }),
  );
});

test.each(['nheads', 'ngroups'] as const)('%s that the ranks do not divide are refused', (field) => {
  const { ssm } = memories(1, 1)[0]!;
  const odd = { ...ssm!, layout: { ...ssm!.layout, tpSize: 2, dims: { ...ssm!.layout.dims, [field]: 7 } } };
  expect(() => planSsm(odd, odd)).toThrow(expect.objectContaining({ code: 'INCOMPATIBLE' }));
});

test("a missing rank leaves cells out; a stage without layers is nobody's source", () => {
  const layouts = memories(2, 2).map(({ ssm }) => ssm!.layout);
  const whole = memories(1, 1)[0]!.ssm!.layout;
  expect(ssmCoverFault(layouts.slice(1), whole)).toBe('no rank holds layers 0-1, heads 0-3');
  expect(representativeSsmSources([{ ...layouts[0]!, numLayers: 0 }, layouts[1]!])).toEqual([1]);
});
