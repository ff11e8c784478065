/**
 * Goal: whatever the two layouts, an attention plan moves each wanted element to its place and no other byte. Method:
 * engines' memories with a value of its own in each element; every TP, PP and axis order at random; bytes are compared.
 */
import fc from 'fast-check';
import type { HandoffError } from '../../lib/errors.js';
import { ownedHeads, type KvLayout } from '../../lib/memory/kv-layout.js';
import { expandMoves } from '../../lib/testing/copy-moves.js';
import { kvAxesDefault, rankPositions, TestMemory, type TestModelShape } from '../../lib/testing/test-memory.js';
import { planKv, representativeSources, kvCoverFault } from '../../lib/transfer/plan-kv.js';

const poolSize = 5;
const mark = 0x1234567;
const shape = (kvHeads: number): TestModelShape => ({
  layers: 4,
  kvHeads,
  headDim: 2,
  blockSize: 2,
  elementBytes: 4,
  ssm: null,
});
const memories = (kvHeads: number, tp: number, pp: number, axes = kvAxesDefault): TestMemory[] =>
  rankPositions(tp, pp).map((position) => new TestMemory(shape(kvHeads), position, poolSize, 1, axes));

/** Copies blocks `from` of all sources to blocks `to` of one target, as a plan says; returns bytes written. */
function run(
  sources: readonly TestMemory[],
  target: TestMemory,
  from: readonly number[],
  to: readonly number[],
): number {
  const chosen = representativeSources(sources.map(({ kv }) => kv.layout));
  let written = 0;
  for (const index of chosen) {
    const source = sources[index]!;
    const templates = planKv(source.kv, target.kv);
    const program = {
      rectangles: templates.map(({ rectangle }, table) => ({
        ...rectangle,
        table,
        tableFrom: 0,
        tableCount: from.length,
      })),
      tables: templates.map(({ tableStrides }) => ({
        source: Int32Array.from(from),
        target: Int32Array.from(to),
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
      written += bytes;
    }
  }
  return written;
}

const split = fc.constantFrom(1, 2, 4);
const axes = fc.shuffledSubarray([...kvAxesDefault], { minLength: kvAxesDefault.length });

test('field report 67: every element of every rank comes from its own layer and head, for all splits and axis orders', () => {
  fc.assert(
    fc.property(fc.constantFrom(1, 2, 4), split, split, split, split, (heads, tpA, ppA, tpB, ppB) => {
      const sources = memories(heads, tpA, ppA);
      for (const source of sources) for (const block of [1, 3]) source.fillBlock(block, mark + block);
      for (const target of memories(heads, tpB, ppB)) {
        const layout = target.kv.layout;
        expect(
          kvCoverFault(
            sources.map(({ kv }) => kv.layout),
            layout,
          ),
        ).toBeNull();
        const cells = (layout.layerEnd - layout.layerStart) * (ownedHeads(layout).to - ownedHeads(layout).from);
        // 2 planes, 2 tokens, 2 elements of 4 bytes, for each of two blocks: exactly the cells that this rank owns.
        expect(run(sources, target, [3, 1], [0, 4])).toBe(cells * 2 * 2 * 2 * 4 * 2);
        expect([target.blockFault(0, mark + 3), target.blockFault(4, mark + 1)]).toEqual([null, null]);
        const untouched = target.blockFault(2, 0);
        expect(untouched === null || untouched.endsWith('got 0')).toBe(true);
      }
    }),
  );
});

test('field report 74: another axis order with another split is permuted byte for byte, or refused', () => {
  let moved = 0;
  fc.assert(
    fc.property(axes, axes, split, split, (axesA, axesB, tpA, tpB) => {
      const sources = memories(4, tpA, 1, axesA);
      for (const source of sources) source.fillBlock(2, mark);
      for (const target of memories(4, tpB, 2, axesB)) {
        try {
          run(sources, target, [2], [3]);
        } catch (error) {
          expect((error as HandoffError).code).toBe('INCOMPATIBLE');
          continue;
        }
        moved += 1;
        expect(target.blockFault(3, mark)).toBeNull();
      }
    }),
  );
  expect(moved).toBeGreaterThan(100);
});

test.each(['numLayersGlobal', 'numKvHeadsGlobal', 'headDim'] as const)('another %s is refused by name', (field) => {
  const [a] = memories(4, 1, 1);
  const other = { ...a!.kv, layout: { ...a!.kv.layout, [field]: 8 } };
  expect(() => planKv(other, a!.kv)).toThrow(
    expect.objectContaining({ code: 'INCOMPATIBLE', message: expect.stringContaining(field) }),
  );
});

test('a rank that is missing leaves cells out; a replica does not cover twice', () => {
  const layouts = memories(4, 2, 2).map(({ kv }) => kv.layout);
  const [whole] = memories(4, 1, 1);
  expect(kvCoverFault(layouts.slice(1), whole!.kv.layout)).toBe('no rank holds layers 0-1, heads 0-1');
  expect(kvCoverFault([...layouts, { ...layouts[3]!, tpSize: 1, tpRank: 0 }], whole!.kv.layout)).toBe(
    'ranks 2 and 3 both hold layers 2-3, heads 0-1',
  );
  expect(
    kvCoverFault([...layouts, ...layouts.map((each): KvLayout => ({ ...each, globalRank: 9 }))], whole!.kv.layout),
  ).toBeNull();
  const replicas = memories(2, 4, 1).map(({ kv }) => kv.layout);
  expect(representativeSources(replicas)).toEqual([0, 2]);
});

test('heads that neither divide nor are divided by the ranks are refused', () => {
  const [a] = memories(4, 1, 1);
  expect(() => ownedHeads({ ...a!.kv.layout, tpSize: 3 })).toThrow(expect.objectContaining({ code: 'INCOMPATIBLE' }));
});
