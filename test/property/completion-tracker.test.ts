/**
 * The tracker against the plainest statement of its rule, over random traces; and its id set against a `Set`.
 */
import fc from 'fast-check';
import { CompletionTracker } from '../../lib/decode/completion-tracker.js';
import { IdSet } from '../../lib/decode/id-set.js';

describe('CompletionTracker', () => {
  it('announces per request at most one failure, then at most one end, and nothing after the end', () => {
    const step = fc.oneof(
      fc.record({
        kind: fc.constant('report' as const),
        requestId: fc.nat(4),
        rank: fc.nat(2),
        failed: fc.boolean(),
        sourceSafe: fc.boolean(),
      }),
      fc.record({ kind: fc.constant('fail' as const), requestId: fc.nat(4) }),
      fc.record({ kind: fc.constant('drain' as const) }),
    );
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 3 }), fc.array(step, { maxLength: 60 }), (worldSize, steps) => {
        const tracker = new CompletionTracker(worldSize);
        const accepted = new Map<string, { failed: boolean; sourceSafe: boolean }>();
        const givenUp = new Set<number>();
        const announced = new Map<number, { failed: boolean; sourceSafe: boolean }[]>();
        const ended = (id: number) => announced.get(id)?.at(-1)?.sourceSafe === true;
        const results = (id: number) => Array.from({ length: worldSize }, (_, rank) => accepted.get(`${id}/${rank}`));
        for (const step of [...steps, { kind: 'drain' as const }]) {
          if (step.kind === 'report') {
            const { requestId, rank, failed, sourceSafe } = step;
            const key = `${requestId}/${rank}`;
            const before = accepted.get(key);
            const isRefused =
              rank >= worldSize ||
              (!ended(requestId) &&
                before !== undefined &&
                (before.failed !== failed || (before.sourceSafe && !sourceSafe)));
            if (isRefused) {
              expect(() => tracker.report(step)).toThrow();
            } else {
              tracker.report(step);
              if (!ended(requestId)) accepted.set(key, { failed, sourceSafe });
            }
          } else if (step.kind === 'fail') {
            const all = results(step.requestId);
            const isWon =
              all.every((result) => result?.sourceSafe === true && !result.failed) && !givenUp.has(step.requestId);
            expect(tracker.fail(step.requestId, 'because')).toBe(!ended(step.requestId) && !isWon);
            if (!ended(step.requestId) && !isWon) givenUp.add(step.requestId);
          } else {
            for (const { requestId, failed, sourceSafe } of tracker.drain()) {
              expect(ended(requestId)).toBe(false);
              const all = results(requestId);
              expect(failed).toBe(givenUp.has(requestId) || all.some((result) => result?.failed === true));
              expect(sourceSafe).toBe(all.every((result) => result?.sourceSafe === true));
              const before = announced.get(requestId) ?? [];
              if (!sourceSafe) expect(before).toEqual([]);
              announced.set(requestId, [...before, { failed, sourceSafe }]);
            }
            // What is due has been said.
            for (let id = 0; id < 5; id++) {
              const all = results(id);
              const failed = givenUp.has(id) || all.some((result) => result?.failed === true);
              if (all.every((result) => result?.sourceSafe === true)) expect(ended(id)).toBe(true);
              if (failed) expect(announced.get(id)?.at(-1)?.failed).toBe(true);
            }
          }
        }
      }),
      { numRuns: 2000 },
    );
  });
});

describe('IdSet', () => {
  it('holds what was added, in as many runs as there are', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(60), { maxLength: 80 }), (ids) => {
        const set = new IdSet();
        const model = new Set<number>();
        for (const id of ids) {
          expect(set.add(id)).toBe(!model.has(id));
          model.add(id);
          for (let probe = -1; probe <= 61; probe++) expect(set.has(probe)).toBe(model.has(probe));
          expect(set.runCount).toBe([...model].filter((member) => !model.has(member - 1)).length);
        }
      }),
      { numRuns: 300 },
    );
  });
});
