/**
 * Goal: one order of records on every rank, whichever carrier. Method: logs over in-process groups, whose records are
 * plain numbers as far as the log cares; what each rank applied is compared.
 */
import { InProcessRankGroup } from '../../lib/control/in-process-rank-group.js';
import type { LogRecord, RankGroup } from '../../lib/control/rank-group.js';
import { HandoffError } from '../../lib/errors.js';
import { ScheduleLog, type LogCarrier } from '../../lib/schedule-log.js';

const record = (id: number): LogRecord => ({ kind: 'push-safe', pushId: id });
const idOf = (entry: LogRecord): number => (entry as Extract<LogRecord, { kind: 'push-safe' }>).pushId;

interface Rank {
  readonly log: ScheduleLog;
  readonly applied: (readonly [id: number, index: number])[];
}

function rank(
  carrier: LogCarrier,
  group: RankGroup | null = null,
  onApply: (id: number, log: ScheduleLog) => void = () => undefined,
): Rank {
  const applied: (readonly [number, number])[] = [];
  const log: ScheduleLog = new ScheduleLog(carrier, group, {
    apply: (entry, index) => {
      applied.push([idOf(entry), index]);
      onApply(idOf(entry), log);
    },
  });
  return { log, applied };
}

const ids = ({ applied }: Rank): number[] => applied.map(([id]) => id);

function thrown(call: () => unknown): HandoffError {
  try {
    call();
  } catch (error) {
    return error as HandoffError;
  }
  throw new Error('nothing was thrown');
}

describe('local', () => {
  test.each(['decide', 'submit'] as const)('%s applies at once; steps count in the index', (how) => {
    const one = rank('local');
    one.log[how](record(1));
    expect(one.log.beginStep()).toBe(true);
    one.log[how](record(2));
    expect(one.applied).toEqual([
      [1, 1],
      [2, 3],
    ]);
    expect([one.log.logIndex, one.log.stepIndex, one.log.stepReady, one.log.rank]).toEqual([3, 1, true, 0]);
    expect(one.log.pendingRecords).toEqual([]);
  });

  test('a record that another causes comes after it, not inside it', () => {
    const order: string[] = [];
    const log: ScheduleLog = new ScheduleLog('local', null, {
      apply: (entry) => {
        order.push(`begin ${idOf(entry)}`);
        if (idOf(entry) === 1) log.decide(record(2));
        order.push(`end ${idOf(entry)}`);
      },
    });
    log.decide(record(1));
    expect(order).toEqual(['begin 1', 'end 1', 'begin 2', 'end 2']);
  });

  test('a record that throws does not stop those behind it for ever', () => {
    const one = rank('local', null, (id) => {
      if (id === 1) throw new HandoffError('UNKNOWN_REQUEST', 'no');
    });
    expect(thrown(() => one.log.decide(record(1))).code).toBe('UNKNOWN_REQUEST');
    one.log.decide(record(2));
    expect(ids(one)).toEqual([1, 2]);
  });
});

describe('group', () => {
  const ranks = (size: number, onApply?: Parameters<typeof rank>[2], held = false): Rank[] =>
    InProcessRankGroup.create(size, held ? { delivery: () => 'held' } : {}).map((group) =>
      rank('group', group, onApply),
    );

  test('nothing applies before its frame, and then everywhere in the same order at the same index', () => {
    const all = ranks(3);
    const [first, ...workers] = all as [Rank, ...Rank[]];
    first.log.decide(record(1));
    first.log.submit(record(2));
    expect(first.log.pendingRecords.map(idOf)).toEqual([1, 2]);
    expect(all.map(ids)).toEqual([[], [], []]);
    expect(workers.map(({ log }) => log.beginStep())).toEqual([false, false]);
    for (const { log } of all) expect(log.beginStep()).toBe(true);
    expect(first.log.pendingRecords).toEqual([]);
    for (const each of all) {
      expect(each.applied).toEqual([
        [1, 1],
        [2, 2],
      ]);
      expect([each.log.logIndex, each.log.stepIndex]).toEqual([3, 1]);
    }
  });

  test('records that applying a frame causes go into the next frame', () => {
    const all = ranks(2, (id, log) => {
      if (id < 10 && log.rank === 0) log.decide(record(id + 10));
    });
    all[0]!.log.decide(record(1));
    for (const { log } of all) log.beginStep();
    expect(all.map(ids)).toEqual([[1], [1]]);
    expect(all[0]!.log.pendingRecords.map(idOf)).toEqual([11]);
    for (const { log } of all) log.beginStep();
    expect(all.map(ids)).toEqual([
      [1, 11],
      [1, 11],
    ]);
  });

  test('a worker applies one frame a step, however many have come', () => {
    const all = ranks(2);
    for (let id = 1; id <= 3; id += 1) {
      all[0]!.log.decide(record(id));
      all[0]!.log.beginStep();
    }
    const worker = all[1]!;
    expect(worker.log.stepReady).toBe(true);
    expect(worker.log.stepReady).toBe(true);
    worker.log.beginStep();
    expect(ids(worker)).toEqual([1]);
    worker.log.beginStep();
    worker.log.beginStep();
    expect([ids(worker), worker.log.stepReady, worker.log.beginStep()]).toEqual([[1, 2, 3], false, false]);
    expect([worker.log.logIndex, worker.log.stepIndex]).toEqual([6, 3]);
  });

  test('a worker decides nothing', () => {
    const worker = ranks(2)[1]!;
    for (const call of [() => worker.log.decide(record(1)), () => worker.log.submit(record(1))]) {
      expect(thrown(call)).toMatchObject({ code: 'NOT_RANK_ZERO', message: expect.stringContaining('this is rank 1') });
    }
    expect(worker.log.pendingRecords).toEqual([]);
  });

  test.each([2, 0, -1, 1.5])(
    'a frame of step %p instead of 1 is a divergence, and nothing of it applies',
    (frameStep) => {
      const frames = [{ step: frameStep, records: [record(1)] }];
      const group = { rank: 1, size: 2, nextFrame: () => frames.shift() ?? null } as unknown as RankGroup;
      const worker = rank('group', group);
      expect(thrown(() => worker.log.beginStep())).toMatchObject({ code: 'DIVERGENCE', targetSafe: false });
      expect([ids(worker), worker.log.logIndex]).toEqual([[], 0]);
    },
  );

  test('a repeated frame is a divergence', () => {
    const frames = [1, 1].map((step) => ({ step, records: [record(step)] }));
    const group = { rank: 1, size: 2, nextFrame: () => frames.shift() ?? null } as unknown as RankGroup;
    const worker = rank('group', group);
    worker.log.beginStep();
    expect(thrown(() => worker.log.beginStep()).code).toBe('DIVERGENCE');
    expect(ids(worker)).toEqual([1]);
  });

  test('needs a group', () => {
    expect(thrown(() => rank('group')).code).toBe('INVARIANT');
  });
});

describe('host', () => {
  const ranks = (): [Rank, Rank] => InProcessRankGroup.create(2).map((group) => rank('host', group)) as [Rank, Rank];

  test('what rank 0 decides applies where the broadcast puts it, on each rank', () => {
    const [first, worker] = ranks();
    first.log.submit(record(1));
    worker.log.submit(record(1));
    first.log.decide(record(2));
    first.log.decide(record(3));
    expect(ids(first)).toEqual([1]);
    expect(first.log.pendingRecords.map(idOf)).toEqual([2, 3]);
    const drained = first.log.drainNotifications();
    expect(first.log.drainNotifications()).toEqual([]);
    for (const { log } of [first, worker]) {
      for (const entry of drained) log.record(entry);
      log.beginStep();
    }
    expect(first.applied).toEqual(worker.applied);
    expect(ids(worker)).toEqual([1, 2, 3]);
    expect([worker.log.stepReady, worker.log.logIndex, first.log.logIndex]).toEqual([true, 4, 4]);
  });

  test('a worker decides nothing but what the broadcast carries anyway', () => {
    const [, worker] = ranks();
    expect(thrown(() => worker.log.decide(record(1))).code).toBe('NOT_RANK_ZERO');
    worker.log.submit(record(2));
    expect(ids(worker)).toEqual([2]);
  });
});

describe('carriers are never mixed', () => {
  test.each([
    ['local', 'only rank'],
    ['group', 'rank group'],
  ] as const)('%s: no notifications', (carrier, words) => {
    const one = rank(carrier, carrier === 'group' ? InProcessRankGroup.create(2)[0]! : null);
    for (const call of [() => one.log.drainNotifications(), () => one.log.record(record(1))]) {
      expect(thrown(call)).toMatchObject({ code: 'LOG_CARRIER_MIXED', message: expect.stringContaining(words) });
    }
    one.log.beginStep();
    expect(ids(one)).toEqual([]);
  });

  test('host: a step publishes and takes no frame', () => {
    const calls: string[] = [];
    const group = {
      rank: 0,
      size: 2,
      publish: () => calls.push('publish'),
      nextFrame: () => calls.push('nextFrame'),
    } as unknown as RankGroup;
    expect(rank('host', group).log.beginStep()).toBe(true);
    expect(calls).toEqual([]);
  });
});
