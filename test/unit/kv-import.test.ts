/**
 * Goal: the import's state table is what the documents say, cell by cell. Method: every state meets every event; what is
 * not listed here must throw `INVARIANT`, and rules that hold over all cells are checked over all cells.
 */
import {
  importTable,
  importTransition,
  ownsMemory,
  type ImportEffect,
  type ImportEvent,
  type ImportState,
} from '../../lib/decode/kv-import.js';
import type { HandoffError } from '../../lib/errors.js';

const states: readonly ImportState[] = [
  'queued',
  'reserved',
  'cancelling',
  'agreed',
  'admitted',
  'aborting',
  'quarantined',
  'reclaimed',
  'completed',
];
const events: readonly ImportEvent[] = [
  'start',
  'abort',
  'expire',
  'succeed',
  'failSafe',
  'failUnsafe',
  'nowSafe',
  'admit',
  'completeWithoutForward',
  'finish',
  'engineFail',
];

/** `state event -> next: effects`, one line for each cell that exists. */
const documented = `
queued start -> reserved: leaveQueue beginTransfer
queued abort -> reclaimed: leaveQueue settleAborted noticeAbortedSafe noticeReadDone
queued expire -> reclaimed: leaveQueue settleError noticeErrorSafe noticeReadDone
reserved abort -> cancelling: cancelTransfer
reserved succeed -> agreed: registerHashes queueAdmission noticeReadDone
reserved failSafe -> reclaimed: dropHashes releaseMemory settleError noticeErrorSafe noticeReadDone
reserved failUnsafe -> quarantined: dropHashes cancelTransfer holdMemory settleError noticeErrorUnsafe
cancelling abort -> cancelling:
cancelling succeed -> reclaimed: dropHashes releaseMemory settleAborted noticeAbortedSafe noticeReadDone
cancelling failSafe -> reclaimed: dropHashes releaseMemory settleAborted noticeAbortedSafe noticeReadDone
cancelling failUnsafe -> quarantined: dropHashes cancelTransfer holdMemory settleAborted noticeAbortedUnsafe
agreed expire -> reclaimed: leaveAdmission releaseMemory settleError noticeErrorSafe
agreed abort -> reclaimed: leaveAdmission releaseMemory settleAborted noticeAbortedSafe
agreed admit -> admitted: leaveAdmission engineAdmit
agreed completeWithoutForward -> completed: leaveAdmission releaseMemory settleFinished
admitted abort -> aborting: engineAbort noticeAbortedSafe
admitted finish -> completed: settleFinished
admitted engineFail -> completed: settleError noticeErrorSafe
aborting abort -> aborting:
aborting finish -> completed: settleAborted
aborting engineFail -> completed: settleAborted
quarantined abort -> quarantined:
quarantined nowSafe -> reclaimed: releaseMemory noticeAbortedSafe noticeReadDone
`;
const cells = new Map(
  documented
    .trim()
    .split('\n')
    .map((line) => {
      const [, cell, next, effects] = /^(\w+ \w+) -> (\w+):\s*(.*)$/.exec(line)!;
      return [cell!, { next: next!, effects: effects === '' ? [] : effects!.split(' ') }];
    }),
);

describe.each(states)('an import that is %s', (state) => {
  test.each(events)('meets %s', (event) => {
    const expected = cells.get(`${state} ${event}`);
    if (expected !== undefined) {
      expect(importTransition(state, event)).toEqual(expected);
      return;
    }
    let error: HandoffError | null = null;
    try {
      importTransition(state, event);
    } catch (thrown) {
      error = thrown as HandoffError;
    }
    expect(error).toMatchObject({
      code: 'INVARIANT',
      message: `broken invariant: an import in state ${state} cannot ${event}`,
      details: { state, event },
      targetSafe: false,
    });
  });
});

test('the lists above are all states and all events of the table', () => {
  expect(Object.keys(importTable)).toEqual(states);
  const used = Object.values(importTable).flatMap((row) => Object.keys(row));
  expect(new Set(used)).toEqual(new Set(events));
  expect(cells.size).toBe(used.length);
});

/** Every transition that exists, with the state it leaves. */
const transitions = states.flatMap((from) =>
  Object.entries(importTable[from]).map(([event, { next, effects }]) => ({ from, event, next, effects })),
);

describe('whatever the table says', () => {
  const has = (effects: readonly ImportEffect[], ...wanted: readonly ImportEffect[]): boolean =>
    wanted.some((effect) => effects.includes(effect));

  test('memory that an import holds goes back, goes to the engine, or stays held', () => {
    for (const { from, event, next, effects } of transitions) {
      const given = has(effects, 'releaseMemory', 'engineAdmit');
      expect(`${from} ${event}: ${given}`).toBe(`${from} ${event}: ${ownsMemory(from) && !ownsMemory(next)}`);
    }
  });

  test('an unsafe failure gives nothing back', () => {
    for (const { event, next, effects } of transitions) {
      if (event !== 'failUnsafe') continue;
      expect(next).toBe('quarantined');
      expect(has(effects, 'releaseMemory', 'noticeReadDone')).toBe(false);
      expect(has(effects, 'holdMemory')).toBe(true);
    }
  });

  test('no walk settles twice, ends unsettled, or says twice that nothing reads the source', () => {
    const walk = (state: ImportState, settled: number, told: number, seen: readonly ImportState[]): void => {
      const ways = transitions.filter(({ from, next }) => from === state && next !== state);
      if (ways.length === 0) {
        expect({ seen, settled, told }).toEqual({ seen, settled: 1, told: 1 });
        return;
      }
      for (const { next, effects } of ways) {
        const settles = effects.filter((effect) => effect.startsWith('settle')).length;
        const tells = effects.filter((effect) => effect === 'noticeReadDone').length;
        walk(next, settled + settles, told + tells, [...seen, next]);
      }
    };
    walk('queued', 0, 0, ['queued']);
  });

  test('hashes are registered or dropped where the transfer is decided, and nowhere else', () => {
    for (const { from, event, effects } of transitions) {
      const decided = ['succeed', 'failSafe', 'failUnsafe'].includes(event);
      expect(`${from} ${event}: ${has(effects, 'registerHashes', 'dropHashes')}`).toBe(`${from} ${event}: ${decided}`);
    }
  });
});
