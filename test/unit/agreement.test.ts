/** What rank 0 makes of reports and of the digests beside them, and what a broken report costs. */
import { Agreement } from '../../lib/control/agreement.js';
import { encodeCompletionReport } from '../../lib/control/completion-report.js';
import { InProcessRankGroup } from '../../lib/control/in-process-rank-group.js';
import { encodePlacementReport } from '../../lib/control/placement.js';

const landed = { failed: false, safe: true };

function three(): { groups: InProcessRankGroup[]; ranks: [Agreement, Agreement, Agreement] } {
  const groups = InProcessRankGroup.create(3);
  return { groups, ranks: groups.map((group) => new Agreement(group)) as [Agreement, Agreement, Agreement] };
}

/** Reports of ranks, in this order; then what rank 0 makes of them. */
function told(reports: readonly (readonly [rank: number, digest: bigint | null])[]) {
  const { ranks } = three();
  for (const [rank, digest] of reports) {
    ranks[rank]!.report(5, landed, digest);
    ranks[0].collect();
  }
  return { conflicts: ranks[0].conflicts(), decisions: ranks[0].decisions(), again: ranks[0].conflicts() };
}

test('ranks that placed a request alike agree on it', () => {
  expect(
    told([
      [0, 9n],
      [1, 9n],
      [2, 9n],
    ]),
  ).toEqual({
    conflicts: [],
    decisions: [{ requestId: 5, failed: false, sourceSafe: true, reason: null }],
    again: [],
  });
});

test.each([
  [
    'the last to report',
    [
      [0, 9n],
      [1, 9n],
      [2, 8n],
    ],
    2,
    0,
  ],
  [
    'a worker before rank 0 has reported',
    [
      [1, 9n],
      [2, 8n],
      [0, 9n],
    ],
    2,
    1,
  ],
  [
    'rank 0 itself, reporting late',
    [
      [1, 9n],
      [2, 9n],
      [0, 8n],
    ],
    0,
    1,
  ],
  [
    'beside a peer without a digest',
    [
      [0, 9n],
      [1, null],
      [2, 8n],
    ],
    2,
    0,
  ],
] as const)('a digest that differs is a conflict, told once, and no success: %s', (_what, reports, rank, otherRank) => {
  const { conflicts, decisions, again } = told(reports);
  expect(conflicts).toEqual([{ requestId: 5, rank, otherRank }]);
  expect(decisions).toEqual([{ requestId: 5, failed: true, sourceSafe: true, reason: null }]);
  expect(again).toEqual([]);
});

test('ranks that all differ are one conflict', () => {
  expect(
    told([
      [0, 7n],
      [1, 8n],
      [2, 9n],
    ]).conflicts,
  ).toEqual([{ requestId: 5, rank: 1, otherRank: 0 }]);
});

test('no digest is no conflict', () => {
  expect(
    told([
      [0, 9n],
      [1, null],
      [2, null],
    ]),
  ).toMatchObject({ conflicts: [], decisions: [{ failed: false }] });
});

test('a broken report is refused, and costs no other', () => {
  const { groups, ranks } = three();
  ranks[0].report(5, landed, 1n);
  const completion = encodeCompletionReport({ requestId: 5, rank: 1, failed: false, sourceSafe: true });
  const wrong = { code: 'ARGUMENT_INVALID' };
  for (const [placement, message] of [
    [{ requestId: 6, rank: 1, digest: 1n }, 'placement.requestId: expected 5, as in the report beside it, got 6'],
    [{ requestId: 5, rank: 2, digest: 1n }, 'placement.rank: expected 1, as in the report beside it, got 2'],
  ] as const) {
    groups[1]!.report({ completion, placement: encodePlacementReport(placement) });
    ranks[2].report(5, landed, 1n);
    expect(() => ranks[0].collect()).toThrow(expect.objectContaining({ ...wrong, message }));
  }
  ranks[1].report(5, landed, 1n);
  ranks[0].collect();
  expect(ranks[0].decisions()).toEqual([{ requestId: 5, failed: false, sourceSafe: true, reason: null }]);
});

test('one rank alone decides by itself', () => {
  const alone = new Agreement(null);
  alone.report(5, landed, null);
  alone.collect();
  expect(alone.decisions()).toEqual([{ requestId: 5, failed: false, sourceSafe: true, reason: null }]);
});
