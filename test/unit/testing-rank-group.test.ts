/** The in-process rank group: order, isolation, held delivery, and every misuse. */
import { InProcessRankGroup } from '../../lib/control/in-process-rank-group.js';
import type { LogRecord, RankReport, StepFrame } from '../../lib/control/rank-group.js';

const report = (mark: number): RankReport => ({
  completion: new Uint8Array(14).fill(mark),
  placement: mark % 2 === 0 ? null : new Uint8Array(20).fill(mark),
});
const marks = (reports: readonly RankReport[]) =>
  reports.map(({ completion, placement }) => [completion[0], placement?.[19] ?? null]);
const frame = (step: number, ...records: LogRecord[]): StepFrame => ({ step, records });
const add = (attemptId: number): LogRecord => ({
  kind: 'add',
  attemptId,
  requestId: `r${attemptId}`,
  prompt: Int32Array.of(1, 2, 3),
  samplingParams: { stop_words: ['end'] },
  kvMeta: { resume_tokens: [7] },
  sourceBlockIds: [4],
  blockHashes: BigInt64Array.of(5n),
});

test('gathers every value by rank, and gives each rank a copy of its own', async () => {
  const ranks = InProcessRankGroup.create(3);
  const own = { rank: 1, list: [1] };
  const gathered = await Promise.all([ranks[0]!.allGather('a'), ranks[1]!.allGather(own), ranks[2]!.allGather(null)]);
  expect(gathered[0]).toEqual(['a', { rank: 1, list: [1] }, null]);
  expect(gathered[1]).toEqual(gathered[0]);
  expect(gathered[0]![1]).not.toBe(own);
  expect(gathered[0]![1]).not.toBe(gathered[1]![1]);
});

test('keeps successive gathers apart when one rank runs ahead', async () => {
  const ranks = InProcessRankGroup.create(2);
  const ahead = [ranks[0]!.allGather('a1'), ranks[0]!.allGather('a2')];
  const behind = [ranks[1]!.allGather('b1'), ranks[1]!.allGather('b2')];
  expect(await Promise.all([...ahead, ...behind])).toEqual([
    ['a1', 'b1'],
    ['a2', 'b2'],
    ['a1', 'b1'],
    ['a2', 'b2'],
  ]);
});

test('gathers with one rank', async () => {
  expect(await InProcessRankGroup.create(1)[0]!.allGather(5)).toEqual([5]);
});

test('carries reports to rank 0 as copies, each rank in its own order', () => {
  const ranks = InProcessRankGroup.create(3);
  let wakes = 0;
  ranks[0]!.onWake = () => wakes++;
  const sent = report(1);
  ranks[1]!.report(sent);
  sent.completion.fill(9);
  sent.placement!.fill(9);
  ranks[2]!.report(report(2));
  ranks[1]!.report(report(3));
  expect(marks(ranks[0]!.drainReports())).toEqual([
    [1, 1],
    [3, 3],
    [2, null],
  ]);
  expect(ranks[0]!.drainReports()).toEqual([]);
  expect(wakes).toBe(3);
});

test('gives every worker each frame once, in order, as its own copy', () => {
  const ranks = InProcessRankGroup.create(3);
  const wakes = [0, 0, 0];
  ranks.forEach((rank, index) => (rank.onWake = () => wakes[index]!++));
  const sent = frame(1, add(1));
  ranks[0]!.publish(sent);
  ranks[0]!.publish(frame(2));
  for (const worker of ranks.slice(1)) {
    const first = worker.nextFrame();
    expect(first).toEqual(sent);
    expect(first).not.toBe(sent);
    expect(first!.records[0]).not.toBe(sent.records[0]);
    expect(worker.nextFrame()).toEqual({ step: 2, records: [] });
    expect(worker.nextFrame()).toBeNull();
  }
  expect(wakes).toEqual([0, 2, 2]);
});

test('holds frames for a worker until they are delivered, and never reorders them', () => {
  let held = true;
  const ranks = InProcessRankGroup.create(3, {
    delivery: (rank, kind) => (held && rank === 2 && kind === 'frame' ? 'held' : 'now'),
  });
  let wakes = 0;
  ranks[2]!.onWake = () => wakes++;
  ranks[0]!.publish(frame(1));
  held = false;
  ranks[0]!.publish(frame(2)); // would be delivered now, but must stay behind the held one
  expect(ranks[1]!.nextFrame()!.step).toBe(1);
  expect(ranks[2]!.nextFrame()).toBeNull();
  expect(ranks[2]!.heldCount).toBe(2);
  expect(ranks[2]!.deliver('frame', 1)).toBe(1);
  expect(ranks[2]!.nextFrame()!.step).toBe(1);
  expect(ranks[2]!.nextFrame()).toBeNull();
  expect(ranks[2]!.deliver('frame')).toBe(1);
  expect(ranks[2]!.nextFrame()!.step).toBe(2);
  expect(ranks[2]!.deliver('frame')).toBe(0);
  expect(wakes).toBe(2);
});

test('holds reports of a worker until they are delivered', () => {
  const ranks = InProcessRankGroup.create(2, { delivery: (rank, kind) => (kind === 'report' ? 'held' : 'now') });
  let wakes = 0;
  ranks[0]!.onWake = () => wakes++;
  ranks[1]!.report(report(1));
  ranks[1]!.report(report(2));
  expect(ranks[0]!.drainReports()).toEqual([]);
  expect(ranks[1]!.deliver('report', 1)).toBe(1);
  expect(marks(ranks[0]!.drainReports())).toEqual([[1, 1]]);
  expect(ranks[1]!.deliver('report')).toBe(1);
  expect(marks(ranks[0]!.drainReports())).toEqual([[2, null]]);
  expect(wakes).toBe(2);
});

test('refuses what a rank must not do', () => {
  const ranks = InProcessRankGroup.create(2);
  expect(() => ranks[0]!.report(report(1))).toThrow(
    expect.objectContaining({
      code: 'ARGUMENT_INVALID',
      message: 'report: rank: expected a worker (rank above 0), got 0',
    }),
  );
  expect(() => ranks[0]!.nextFrame()).toThrow(
    expect.objectContaining({
      code: 'ARGUMENT_INVALID',
      message: 'nextFrame: rank: expected a worker (rank above 0), got 0',
    }),
  );
  expect(() => ranks[1]!.publish(frame(1))).toThrow(
    expect.objectContaining({ code: 'NOT_RANK_ZERO', message: 'publish: expected rank 0, got rank 1' }),
  );
  expect(() => ranks[1]!.drainReports()).toThrow(
    expect.objectContaining({ code: 'NOT_RANK_ZERO', message: 'drainReports: expected rank 0, got rank 1' }),
  );
  expect(() => ranks[1]!.report({ completion: new Uint8Array(13), placement: null })).toThrow(
    expect.objectContaining({ code: 'ARGUMENT_INVALID', message: 'report.completion: expected 14 bytes, got 13' }),
  );
  expect(() => ranks[1]!.report({ completion: new Uint8Array(14), placement: new Uint8Array(21) })).toThrow(
    expect.objectContaining({ code: 'ARGUMENT_INVALID', message: 'report.placement: expected 20 bytes, got 21' }),
  );
});

test('refuses a gap, a repetition and a step 0 in the frames', () => {
  const ranks = InProcessRankGroup.create(2);
  expect(() => ranks[0]!.publish(frame(0))).toThrow('frame.step: expected 1, got 0');
  ranks[0]!.publish(frame(1));
  expect(() => ranks[0]!.publish(frame(1))).toThrow('frame.step: expected 2, got 1');
  expect(() => ranks[0]!.publish(frame(3))).toThrow('frame.step: expected 2, got 3');
  ranks[0]!.publish(frame(2));
  expect([ranks[1]!.nextFrame()!.step, ranks[1]!.nextFrame()!.step]).toEqual([1, 2]);
});

test.each([0, -1, 1.5, Number.NaN])('refuses a group of size %p', (size) => {
  expect(() => InProcessRankGroup.create(size)).toThrow(`size: expected a positive integer, got ${size}`);
});

test('after close, every call of that rank fails and others go on', async () => {
  const ranks = InProcessRankGroup.create(3);
  let wakes = 0;
  ranks[1]!.onWake = () => wakes++;
  ranks[1]!.close();
  ranks[1]!.close();
  const closed = expect.objectContaining({ code: 'CLOSED' });
  expect(() => ranks[1]!.report(report(1))).toThrow(closed);
  expect(() => ranks[1]!.nextFrame()).toThrow(closed);
  await expect(ranks[1]!.allGather(1)).rejects.toEqual(closed);
  ranks[0]!.publish(frame(1));
  expect(wakes).toBe(0);
  expect(ranks[2]!.nextFrame()!.step).toBe(1);
  ranks[0]!.close();
  expect(() => ranks[0]!.publish(frame(2))).toThrow(closed);
  expect(() => ranks[0]!.drainReports()).toThrow(closed);
  ranks[2]!.report(report(1)); // nobody is left to read it
});

test('a gather that can no longer complete is rejected at once', async () => {
  const ranks = InProcessRankGroup.create(2);
  const waiting = ranks[0]!.allGather('a');
  ranks[1]!.close();
  await expect(waiting).rejects.toMatchObject({ code: 'CLOSED' });
  await expect(ranks[0]!.allGather('b')).rejects.toMatchObject({ code: 'CLOSED' });
});
