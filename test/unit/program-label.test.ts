/**
 * Goal: a plan reads like what a person would say about it. Method: sentences of real plans, compared as a whole.
 */
import { rankPositions, smallShape, TestMemory } from '../../lib/testing/test-memory.js';
import { describe as describeProgram } from '../../lib/transfer/copy-program.js';
import { planKv } from '../../lib/transfer/plan-kv.js';
import { planSsm } from '../../lib/transfer/plan-ssm.js';
import type { RectangleTemplate } from '../../lib/transfer/rectangle.js';

const dims = { nheads: 8, headdim: 2, dState: 2, ngroups: 4, dConv: 2 };
const shape = { ...smallShape, layers: 16, kvHeads: 8, ssm: { layers: 4, dims } };
const rank = (tp: number, pp: number, index: number): TestMemory =>
  new TestMemory(shape, rankPositions(tp, pp)[index]!, 9, 4);

function sentences(templates: readonly RectangleTemplate[], blocks: number): string[] {
  const ids = Int32Array.from({ length: blocks }, (_, id) => id);
  const text = describeProgram({
    rectangles: templates.map(({ rectangle }) => ({ ...rectangle, table: 0, tableFrom: 0, tableCount: blocks })),
    tables: [{ source: ids, target: ids, strides: { sourceBlock: 64, targetBlock: 64, sourceSub: 0, targetSub: 0 } }],
  });
  return text.split(/(?<=\.) (?=[A-Z])/);
}

test('layers and heads, by whose counting', () => {
  const [source, target] = [rank(4, 1, 2), rank(2, 1, 1)];
  expect(sentences(planKv(source.kv, target.kv), 5)).toEqual([
    'Copies 5 KiB in 640 fragments, described by 1 rectangle.',
    'Layers 0-15, heads 0-1 of rank 2 go to heads 0-1 of rank 1: 5 blocks, 5 KiB in pieces of 8 bytes.',
  ]);
  expect(
    sentences(planKv(new TestMemory({ ...shape, ssm: null }, rankPositions(8, 2)[13]!, 9, 4).kv, target.kv), 1)[1],
  ).toMatch(/^Layers 8-15, head 0 of rank 13 go to head 1 of rank 1: 1 block, /);
});

test('SSM state, band by band', () => {
  expect(sentences(planSsm(rank(1, 2, 1).ssm!, rank(2, 1, 1).ssm!), 1)).toEqual([
    'Copies 384 bytes in 8 fragments, described by 4 rectangles.',
    'SSM layers 2-3, x channels 8-15 of rank 1 go to x channels 0-7 of rank 1: 1 block, 128 bytes in pieces of 64 bytes.',
    'SSM layers 2-3, B channels 20-23 of rank 1 go to B channels 8-11 of rank 1: 1 block, 64 bytes in pieces of 32 bytes.',
    'SSM layers 2-3, C channels 28-31 of rank 1 go to C channels 12-15 of rank 1: 1 block, 64 bytes in pieces of 32 bytes.',
    'And 1 rectangle more.',
  ]);
});

test('buffers of another content say which', () => {
  const [source, target] = [rank(1, 1, 0), rank(1, 1, 0)].map(({ kv }) => ({
    ...kv,
    buffers: kv.buffers.map((buffer) => ({ ...buffer, content: 'scale' })),
  }));
  expect(sentences(planKv(source!, target!), 2)[1]).toMatch(/^Scale of layers 0-15, heads 0-7 of rank 0 go to heads /);
});
