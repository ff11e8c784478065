/**
 * What rank 0 may announce, and when. Each test is one promise of the tracker; the traces of the reference run in the
 * conformance suite.
 */
import { CompletionTracker } from '../../lib/decode/completion-tracker.js';

const report = (requestId: number, rank: number, failed: boolean, sourceSafe: boolean) => ({
  requestId,
  rank,
  failed,
  sourceSafe,
});
const decision = (requestId: number, failed: boolean, sourceSafe: boolean, reason: string | null = null) => ({
  requestId,
  failed,
  sourceSafe,
  reason,
});

describe('CompletionTracker', () => {
  it('does not call a handoff complete while a rank is missing (field report 62)', () => {
    const tracker = new CompletionTracker(2);
    tracker.report(report(1, 0, false, true));
    expect(tracker.drain()).toEqual([]);
    tracker.report(report(1, 0, false, true));
    expect(tracker.drain()).toEqual([]);
    expect(tracker.openCount).toBe(1);
  });

  it('counts ranks apart even when they report the same request at once (field report 61)', () => {
    const tracker = new CompletionTracker(4);
    for (const rank of [3, 1, 0]) tracker.report(report(1, rank, false, true));
    expect(tracker.drain()).toEqual([]);
    tracker.report(report(1, 2, false, true));
    expect(tracker.drain()).toEqual([decision(1, false, true)]);
    expect(tracker.openCount).toBe(0);
  });

  it('gives one outcome when late ranks report after a failure, then a tombstone (field report 65)', () => {
    const tracker = new CompletionTracker(3);
    tracker.report(report(5, 1, true, true));
    expect(tracker.drain()).toEqual([decision(5, true, false)]);
    tracker.report(report(5, 0, false, true));
    expect(tracker.drain()).toEqual([]);
    expect(tracker.openCount).toBe(1);
    tracker.report(report(5, 2, true, true));
    expect(tracker.drain()).toEqual([decision(5, true, true)]);
    expect(tracker.openCount).toBe(0);
    for (let rank = 0; rank < 3; rank++) tracker.report(report(5, rank, false, true));
    expect(tracker.drain()).toEqual([]);
    expect(tracker.openCount).toBe(0);
    expect(tracker.lateReports).toBe(3);
  });

  it('announces a failure that is safe on every rank by the time of the drain once, as safe', () => {
    const tracker = new CompletionTracker(2);
    tracker.report(report(1, 0, true, false));
    tracker.report(report(1, 1, false, true));
    tracker.report(report(1, 0, true, true));
    expect(tracker.drain()).toEqual([decision(1, true, true)]);
    expect(tracker.drain()).toEqual([]);
  });

  it('holds a success until every rank is safe', () => {
    const tracker = new CompletionTracker(2);
    tracker.report(report(1, 0, false, false));
    tracker.report(report(1, 1, false, true));
    expect(tracker.drain()).toEqual([]);
    tracker.report(report(1, 0, false, true));
    expect(tracker.drain()).toEqual([decision(1, false, true)]);
  });

  it('counts a rank that became safe once, however often it says so', () => {
    const tracker = new CompletionTracker(3);
    tracker.report(report(1, 0, false, false));
    for (let again = 0; again < 3; again++) tracker.report(report(1, 0, false, true));
    expect(() => tracker.report(report(1, 0, false, false))).toThrow(
      expect.objectContaining({ code: 'COMPLETION_CONTRADICTED' }),
    );
    tracker.report(report(1, 1, false, true));
    expect(tracker.drain()).toEqual([]);
    tracker.report(report(1, 2, false, true));
    expect(tracker.drain()).toEqual([decision(1, false, true)]);
  });

  it('orders the decisions of one drain by first mention, not by completion', () => {
    const tracker = new CompletionTracker(2);
    tracker.report(report(8, 0, false, true));
    tracker.report(report(3, 0, false, true));
    tracker.report(report(3, 1, false, true));
    tracker.report(report(8, 1, false, true));
    tracker.report(report(4, 1, true, false));
    expect(tracker.drain().map(({ requestId }) => requestId)).toEqual([8, 3, 4]);
  });

  it.each([
    [
      'result',
      true,
      true,
      'the result of request 6 changed on rank 1 from succeeded to failed; ranks of this instance have diverged',
    ],
    [
      'safety',
      false,
      false,
      'the safety of request 6 changed on rank 1 from safe to not safe; ranks of this instance have diverged',
    ],
  ])('refuses a changed %s and keeps what it knew', (_what, failed, sourceSafe, message) => {
    const tracker = new CompletionTracker(2);
    tracker.report(report(6, 1, false, true));
    expect(() => tracker.report(report(6, 1, failed, sourceSafe))).toThrow(
      expect.objectContaining({ code: 'COMPLETION_CONTRADICTED', message, sourceSafe: false, targetSafe: false }),
    );
    tracker.report(report(6, 0, false, true));
    expect(tracker.drain()).toEqual([decision(6, false, true)]);
  });

  it.each([-1, 2, 0.5, NaN])('refuses rank %p of two', (rank) => {
    const tracker = new CompletionTracker(2);
    expect(() => tracker.report(report(1, rank, false, true))).toThrow(
      expect.objectContaining({
        code: 'ARGUMENT_INVALID',
        message: `report.rank: expected a rank in [0, 1], got ${rank}`,
      }),
    );
    expect(tracker.openCount).toBe(0);
  });

  it.each([-1, 0.5, 2 ** 53])('refuses %p as a request id', (requestId) => {
    const tracker = new CompletionTracker(1);
    expect(() => tracker.report(report(requestId, 0, false, true))).toThrow(
      expect.objectContaining({ code: 'ARGUMENT_INVALID' }),
    );
    expect(() => tracker.fail(requestId, 'deadline')).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID' }));
  });

  it.each([0, -1, 1.5])('refuses an instance of %p ranks', (worldSize) => {
    expect(() => new CompletionTracker(worldSize)).toThrow(expect.objectContaining({ code: 'ARGUMENT_INVALID' }));
  });

  describe('fail', () => {
    it('announces the failure once, unsafe while ranks are missing, and safe when all have reported, success included', () => {
      const tracker = new CompletionTracker(2);
      tracker.report(report(9, 0, false, true));
      expect(tracker.fail(9, 'transfer deadline')).toBe(true);
      expect(tracker.drain()).toEqual([decision(9, true, false, 'transfer deadline')]);
      expect(tracker.fail(9, 'again')).toBe(true);
      expect(tracker.drain()).toEqual([]);
      tracker.report(report(9, 1, false, true));
      expect(tracker.drain()).toEqual([decision(9, true, true, 'transfer deadline')]);
      expect(tracker.openCount).toBe(0);
    });

    it('works before any rank has reported', () => {
      const tracker = new CompletionTracker(1);
      expect(tracker.fail(2, 'queue deadline')).toBe(true);
      expect(tracker.drain()).toEqual([decision(2, true, false, 'queue deadline')]);
      tracker.report(report(2, 0, true, false));
      expect(tracker.drain()).toEqual([]);
      tracker.report(report(2, 0, true, true));
      expect(tracker.drain()).toEqual([decision(2, true, true, 'queue deadline')]);
    });

    it('comes too late for a success that every rank has reported, drained or not', () => {
      const tracker = new CompletionTracker(1);
      tracker.report(report(3, 0, false, true));
      expect(tracker.fail(3, 'deadline')).toBe(false);
      expect(tracker.drain()).toEqual([decision(3, false, true)]);
      expect(tracker.fail(3, 'deadline')).toBe(false);
      expect(tracker.drain()).toEqual([]);
      expect(tracker.openCount).toBe(0);
    });

    it('still beats a success that is not safe yet', () => {
      const tracker = new CompletionTracker(1);
      tracker.report(report(3, 0, false, false));
      expect(tracker.fail(3, 'deadline')).toBe(true);
      expect(tracker.drain()).toEqual([decision(3, true, false, 'deadline')]);
    });

    it('keeps the reason of a failure that a rank reported first out of it', () => {
      const tracker = new CompletionTracker(2);
      tracker.report(report(3, 0, true, true));
      expect(tracker.fail(3, 'deadline')).toBe(true);
      expect(tracker.drain()).toEqual([decision(3, true, false)]);
    });
  });

  describe('tombstones', () => {
    it('stay as few as the ids without an end, however many have ended', () => {
      const tracker = new CompletionTracker(1);
      for (let id = 0; id < 10_000; id++) {
        if (id % 1000 !== 500) tracker.report(report(id, 0, false, true));
      }
      expect(tracker.drain()).toHaveLength(9990);
      expect(tracker.tombstoneRunCount).toBe(11);
      for (let id = 500; id < 10_000; id += 1000) tracker.retire(id);
      expect(tracker.tombstoneRunCount).toBe(1);
      tracker.report(report(500, 0, true, true));
      expect(tracker.drain()).toEqual([]);
      expect(tracker.lateReports).toBe(1);
    });

    it('refuse to be made for a request that a rank has reported on', () => {
      const tracker = new CompletionTracker(2);
      tracker.report(report(1, 0, false, true));
      expect(() => tracker.retire(1)).toThrow(expect.objectContaining({ code: 'COMPLETION_CONTRADICTED' }));
      expect(tracker.openCount).toBe(1);
    });
  });
});
