/**
 * Goal: a control plane learns from two registrations who gives what to whom, or why it cannot be. Method: registrations
 * of test memories, as plain JSON.
 */
import type { Fields } from '../../lib/json-fields.js';
import { exportKvDescriptor, exportSsmDescriptors } from '../../lib/prefill/handoff-metadata.js';
import { rankPositions, smallShape, TestMemory, type TestModelShape } from '../../lib/testing/test-memory.js';
import { planInstances } from '../../lib/transfer/peer-instances.js';

const dims = { nheads: 4, headdim: 2, dState: 2, ngroups: 2, dConv: 2 };
const shape: TestModelShape = { ...smallShape, layers: 4, kvHeads: 4 };

function registered(tp: number, pp: number, model = shape): unknown[] {
  const entries = rankPositions(tp, pp).map((position) => {
    const memory = new TestMemory(model, position, 9, 3);
    const descriptor = exportKvDescriptor({
      ...{ kv: memory.kv, blockSize: model.blockSize, poolSize: 9, transports: {}, place: null },
      regions: memory.regions,
    });
    if (memory.ssm === null) return descriptor;
    return { ...descriptor, ssm: exportSsmDescriptors({ ssm: memory.ssm, convPlace: null, recurrentPlace: null }) };
  });
  return JSON.parse(JSON.stringify(entries)) as unknown[];
}

const hybridShape: TestModelShape = { ...shape, ssm: { layers: 2, dims } };

/** A registration whose stage has none, though the model has. */
function withoutSsmLayers(rank: Fields): Fields {
  const { conv, recurrent } = rank['ssm'] as { conv: Fields; recurrent: Fields };
  const empty = (state: Fields): Fields => ({
    ...state,
    geometry: [],
    ssm_layout: { ...(state['ssm_layout'] as Fields), num_layers: 0 },
  });
  return { ...rank, ssm: { conv: empty(conv), recurrent: empty(recurrent) } };
}

test('who gives what to whom', () => {
  const plan = planInstances(registered(2, 2), registered(1, 1));
  expect(plan.map(({ sourceRank, targetRank }) => [sourceRank, targetRank])).toEqual([
    [0, 0],
    [1, 0],
    [2, 0],
    [3, 0],
  ]);
  expect(plan.flatMap(({ words }) => words)).toEqual([
    'layers 0-1, heads 0-1 of rank 0 go to heads 0-1 of rank 0',
    'layers 0-1, heads 0-1 of rank 1 go to heads 2-3 of rank 0',
    'layers 2-3, heads 0-1 of rank 2 go to heads 0-1 of rank 0',
    'layers 2-3, heads 0-1 of rank 3 go to heads 2-3 of rank 0',
  ]);
});

test('hybrid models: bands and recurrent heads too', () => {
  const hybrid = { ...shape, ssm: { layers: 2, dims } };
  const plan = planInstances(registered(1, 1, hybrid), registered(2, 1, hybrid));
  expect(plan.map(({ targetRank, parts }) => [targetRank, parts.map(({ part }) => part)])).toEqual([
    [0, ['kv', 'x', 'B', 'C', 'recurrent']],
    [1, ['kv', 'x', 'B', 'C', 'recurrent']],
  ]);
});

test('replicas that share the load are all in the plan', () => {
  const few = { ...shape, kvHeads: 2 };
  const count = (balance: 'first' | 'spread') =>
    planInstances(registered(4, 1, few), registered(1, 1, few), balance).length;
  expect([count('first'), count('spread')]).toEqual([2, 4]);
});

test.each<[string, unknown, unknown, string, RegExp]>([
  [
    'another model',
    registered(1, 1, { ...shape, layers: 5 }),
    registered(1, 1),
    'INCOMPATIBLE',
    /5 and the target 4\. Source: TP 1 .* Target: TP 1 /,
  ],
  [
    'a rank that is missing',
    registered(2, 1).slice(1),
    registered(1, 1),
    'INCOMPATIBLE',
    /no rank holds layers 0-3, heads 0-1\. Source/,
  ],
  [
    'a rank twice',
    [...registered(1, 1), ...registered(1, 1)],
    registered(1, 1),
    'TICKET_INVALID',
    /^source: .*global_rank/,
  ],
  [
    'a target rank that is missing',
    registered(1, 1),
    registered(2, 2).slice(0, 3),
    'INCOMPATIBLE',
    /the target's attention state: no rank holds layers 2-3, heads 2-3\. Source: TP 1 .* Target: TP 2 /,
  ],
  [
    'a target rank in the place of another',
    registered(1, 1),
    registered(2, 1).map((rank) => ({ ...(rank as object), tp_rank: 1 })),
    'INCOMPATIBLE',
    /the target's attention state: no rank holds layers 0-3, heads 0-1\. Source/,
  ],
  [
    'a target rank without its SSM layers',
    registered(1, 1, hybridShape),
    registered(1, 2, hybridShape).map((rank, index) => (index === 0 ? rank : withoutSsmLayers(rank as Fields))),
    'INCOMPATIBLE',
    /the target's SSM state: no rank holds layer 1, heads 0-3\. Source/,
  ],
  ['no target', registered(1, 1), [], 'TICKET_INVALID', /^target: /],
])('%s', (_name, source, target, code, message) => {
  expect(() => planInstances(source, target)).toThrow(
    expect.objectContaining({ code, message: expect.stringMatching(message) }),
  );
});
