/**
 * Ranks over sockets, in one process: they keep the log's order, and lose a rank that dies, lies or does not read. Real
 * processes are under test/cross-process.
 */
import { connect, createServer, type Socket } from 'node:net';
import { isDeepStrictEqual } from 'node:util';
import type { LogRecord, RankReport } from '../../lib/control/rank-group.js';
import { frameBytes, frameKind } from '../../lib/control/ranks/framing.js';
import { encodeStepFrame } from '../../lib/control/ranks/step-frame.js';
import { encodeWireValue } from '../../lib/control/ranks/wire-value.js';
import type { SocketRankGroup, SocketRankGroupOptions } from '../../lib/control/socket-rank-group.js';
import {
  add,
  doNotFake,
  frame,
  nextFrame,
  open,
  rank,
  rawRank,
  placementBytes,
  report,
  reportBytes,
  socketPath,
  until,
  whole,
} from '../support/socket-ranks.js';

describe('a whole group', () => {
  test('gathers by rank, each its own copy, and keeps gathers apart when a rank runs ahead', async () => {
    const groups = await whole(3);
    const own = { addr: (1n << 64n) - 1n, list: [1, null], none: undefined };
    const first = groups.map((group, index) => group.allGather(index === 1 ? own : index));
    const second = [...groups].reverse().map((group) => group.allGather(`again ${group.rank}`));
    for (const gathered of await Promise.all(first)) {
      expect(gathered).toEqual([0, own, 2]);
      expect(gathered[1]).not.toBe(own);
    }
    for (const gathered of await Promise.all(second)) expect(gathered).toEqual(['again 0', 'again 1', 'again 2']);
    await expect(groups[0]!.allGather(() => 1)).rejects.toThrow('value: expected plain data, got a function');
  });

  test('carries frames to every worker and reports to rank 0, in order', async () => {
    const [leader, ...workers] = (await whole(3)) as [SocketRankGroup, ...SocketRankGroup[]];
    const sent = [frame(1, add(1)), frame(2), frame(3, { kind: 'abort', attemptId: 1, reason: 'caller' })];
    for (const each of sent) leader.publish(each);
    for (const worker of workers) {
      for (const each of sent) expect(await nextFrame(worker)).toEqual(each);
      expect(worker.nextFrame()).toBeNull();
    }
    workers[0]!.report(report(1, 1));
    workers[1]!.report(report(7, 2, true));
    workers[0]!.report(report(2, 1, true));
    const got: RankReport[] = [];
    await until(leader, () => got.push(...leader.drainReports()) === 3);
    expect(got.filter(({ completion }) => completion[11] === 1)).toEqual([report(1, 1), report(2, 1, true)]);
    expect(got.filter(({ completion }) => completion[11] === 2)).toEqual([report(7, 2, true)]);
    expect(leader.drainReports()).toEqual([]);
  });

  test('carries a frame much larger than a socket’s buffer', async () => {
    const [leader, worker] = (await whole(2)) as [SocketRankGroup, SocketRankGroup];
    const big = { ...(add(1) as Extract<LogRecord, { kind: 'add' }>), prompt: new Int32Array(1_000_000).fill(7) };
    leader.publish(frame(1, big));
    leader.publish(frame(2));
    const [got] = (await nextFrame(worker)).records;
    expect(isDeepStrictEqual(got, big)).toBe(true);
    expect(await nextFrame(worker)).toEqual(frame(2));
  });

  test('messages longer than a frame may be take several', async () => {
    const [leader, worker] = (await whole(2, undefined, { frameBytesMax: 1024 })) as [SocketRankGroup, SocketRankGroup];
    const long = { text: 'x'.repeat(5000) };
    const gathered = await Promise.all([leader.allGather(long), worker.allGather('y'.repeat(1024))]);
    for (const each of gathered) expect(each).toEqual([long, 'y'.repeat(1024)]);
    for (const [step, size] of [900, 1000, 1100, 10_000].entries()) {
      const sent = frame(step + 1, add(1, { filler: 'z'.repeat(size) }));
      leader.publish(sent);
      expect(await nextFrame(worker)).toEqual(sent);
    }
  });

  test('refuses what a rank must not do', async () => {
    const [leader, worker] = (await whole(2)) as [SocketRankGroup, SocketRankGroup];
    expect(() => leader.report(report(1, 0))).toThrow('report: rank: expected a worker (rank above 0), got 0');
    expect(() => leader.nextFrame()).toThrow('nextFrame: rank: expected a worker (rank above 0), got 0');
    const notZero = expect.objectContaining({ code: 'NOT_RANK_ZERO' });
    expect(() => worker.publish(frame(1))).toThrow(notZero);
    expect(() => worker.drainReports()).toThrow(notZero);
    expect(() => worker.report({ completion: new Uint8Array(13), placement: null })).toThrow(
      'report: expected 14 bytes, got 13',
    );
    const lie = { ...report(1, 1), placement: placementBytes(1, 2) };
    expect(() => worker.report(lie)).toThrow('placement.rank: expected rank 1, who sent it, got 2');
    expect(() => worker.report(report(1, 2))).toThrow('report.rank: expected rank 1, who sent it, got 2');
    expect(() => leader.publish(frame(2))).toThrow('frame.step: expected 1, got 2');
    // A record that cannot travel leaves the log where it was.
    expect(() => leader.publish(frame(1, add(1, { f: () => 1 })))).toThrow('expected plain data, got a function');
    leader.publish(frame(1));
    expect(await nextFrame(worker)).toEqual(frame(1));
  });

  test('after close every call fails, and others hear that it was on purpose', async () => {
    const [leader, first, second] = (await whole(3)) as [SocketRankGroup, SocketRankGroup, SocketRankGroup];
    const waiting = leader.allGather(0);
    first.close();
    first.close();
    await expect(waiting).rejects.toMatchObject({ code: 'CLOSED' });
    const closed = expect.objectContaining({ code: 'CLOSED' });
    expect(() => first.report(report(1, 1))).toThrow(closed);
    expect(() => first.nextFrame()).toThrow(closed);
    await expect(first.allGather(1)).rejects.toMatchObject({ code: 'CLOSED' });
    await expect(leader.allGather(1)).rejects.toMatchObject({ code: 'CLOSED' });
    expect(leader.failure).toBeNull();
    leader.publish(frame(1)); // nothing in it: nobody misses it
    expect(leader.failure).toBeNull();
    leader.publish(frame(2, add(1)));
    expect(leader.failure).toMatchObject({
      code: 'RANK_LOST',
      message:
        'rank 1 of 3 is lost because it closed its group and cannot apply the log any more; this instance must be restarted',
      details: { rank: 1 },
    });
    expect(await nextFrame(second)).toEqual(frame(1));
    expect(await nextFrame(second)).toEqual(frame(2, add(1)));
    await until(second, () => second.failure !== null);
    expect(second.failure).toMatchObject({ code: 'RANK_LOST', details: { rank: 1 } });
    leader.close();
    expect(() => leader.publish(frame(3))).toThrow(closed);
    expect(() => leader.drainReports()).toThrow(closed);
  });

  test('a worker takes the frames of a rank 0 that closed, and nothing after', async () => {
    const [leader, worker] = (await whole(2)) as [SocketRankGroup, SocketRankGroup];
    leader.publish(frame(1, add(1)));
    leader.close();
    expect(await nextFrame(worker)).toEqual(frame(1, add(1)));
    worker.report(report(1, 1)); // nobody is left to read it
    expect(worker.nextFrame()).toBeNull();
    expect(worker.failure).toBeNull();
  });

  test('a gather that is late ends with who is missing, and so does the group', async () => {
    const [leader, first] = (await whole(3)) as [SocketRankGroup, SocketRankGroup, SocketRankGroup];
    jest.useFakeTimers({ doNotFake: [...doNotFake] });
    const both = [leader.allGather(0), first.allGather(1)].map((gather) => gather.catch((error: Error) => error));
    // Rank 0 takes what a worker sends in order: when this report is here, so is the value before it.
    first.report(report(1, 1));
    await until(leader, () => leader.drainReports().length === 1);
    jest.advanceTimersByTime(60_000);
    const [late, lateToo] = await Promise.all(both);
    expect(late).toMatchObject({
      code: 'RANK_SETUP_FAILED',
      message: 'ranks 2 gave no value within 60000 ms of a gather; set the instance up again',
    });
    expect(lateToo).toMatchObject({ code: 'RANK_SETUP_FAILED' });
    expect(leader.failure).toBe(late);
    await expect(leader.allGather(0)).rejects.toBe(late);
  });
});

describe('a rank that is lost', () => {
  /** Three ranks, of which the last is ours to misuse. */
  async function withRaw(options: Partial<SocketRankGroupOptions> = {}) {
    const address = { path: socketPath() };
    const [leader, worker, raw] = await Promise.all([
      rank({ rank: 0, size: 3, address, ...options }),
      rank({ rank: 1, size: 3, address, ...options }),
      rawRank(address, 2, 3, frameKind.ready),
    ]);
    return { leader, worker, raw };
  }

  async function expectLost(
    { leader, worker }: { leader: SocketRankGroup; worker: SocketRankGroup },
    why: string,
  ): Promise<void> {
    for (const group of [leader, worker]) {
      await until(group, () => group.failure !== null);
      expect(group.failure).toMatchObject({
        code: 'RANK_LOST',
        message: `rank 2 of 3 is lost because ${why}; this instance must be restarted`,
        sourceSafe: false,
        targetSafe: false,
        details: { rank: 2 },
      });
    }
    // What the living agree on goes on reaching them.
    leader.publish(frame(1, add(1)));
    expect(await nextFrame(worker)).toEqual(frame(1, add(1)));
    worker.report(report(1, 1));
    await until(leader, () => leader.drainReports().length === 1);
    await expect(leader.allGather(1)).rejects.toBe(leader.failure);
  }

  test('its end is everybody’s news', async () => {
    const group = await withRaw();
    group.raw.destroy();
    await expectLost(group, 'its connection ended');
  });

  test('an open gather ends with it', async () => {
    const group = await withRaw();
    const waiting = [group.leader.allGather(0), group.worker.allGather(1)];
    for (const each of waiting) each.catch(() => undefined);
    group.raw.destroy();
    for (const each of waiting) await expect(each).rejects.toMatchObject({ code: 'RANK_LOST', details: { rank: 2 } });
  });

  const bytes = (kind: number, payload: Uint8Array | string): Uint8Array =>
    frameBytes(kind, typeof payload === 'string' ? Buffer.from(payload, 'hex') : payload);
  test.each<[string, Uint8Array]>([
    ['frame kind: expected one that a worker sends, got 9', bytes(frameKind.step, encodeStepFrame(frame(1)))],
    ['frame kind: expected one that a worker sends, got 77', bytes(77, '')],
    ['frame: expected at most 65536 bytes, got 65537', new Uint8Array([0, 1, 0, 1, 8])],
    ['report: expected 14 bytes, got 13', bytes(frameKind.report, reportBytes(1, 2).subarray(1))],
    ['report.rank: expected rank 2, who sent it, got 1', bytes(frameKind.report, reportBytes(1, 1))],
    ['report.failed: expected 0 or 1, got 2', bytes(frameKind.report, reportBytes(1, 2).fill(2, 12, 13))],
    [
      'placement: expected 20 bytes, got 19',
      bytes(frameKind.report, Buffer.concat([reportBytes(1, 2), new Uint8Array(19)])),
    ],
    [
      'placement.rank: expected rank 2, who sent it, got 1',
      bytes(frameKind.report, Buffer.concat([reportBytes(1, 2), placementBytes(1, 1)])),
    ],
    ['gathered value at byte 1: expected a known kind of value, got 255', bytes(frameKind.gather, 'ff')],
    [
      'gathers: expected at most 16 ahead of the others, got "more"',
      Buffer.concat(Array.from({ length: 17 }, () => bytes(frameKind.gather, '00'))),
    ],
  ])('a breach of the protocol ends it: %s', async (why, breach) => {
    const group = await withRaw({ frameBytesMax: 65_536 });
    group.raw.write(breach);
    await expectLost(group, `what it sent is refused: ${why}`);
  });

  test('one whose message never ends', async () => {
    const group = await withRaw({ frameBytesMax: 65_536, backlogBytesMax: 100_000 });
    for (let part = 0; part < 2; part += 1) group.raw.write(bytes(frameKind.part, new Uint8Array(60_000)));
    await expectLost(group, 'what it sent is refused: message: expected at most 100000 bytes, got 120000');
  });

  test('one that does not read what it is sent', async () => {
    const group = await withRaw({ backlogBytesMax: 1 << 20 });
    group.raw.pause();
    const big = add(1, { filler: 'x'.repeat(100_000) });
    for (let step = 1; step <= 40; step += 1) {
      group.leader.publish(frame(step, big));
      expect((await nextFrame(group.worker)).step).toBe(step);
    }
    expect(group.leader.failure).toMatchObject({
      code: 'RANK_LOST',
      message: expect.stringContaining('it does not take what it is sent, and more than 1048576 bytes wait for it'),
      details: { rank: 2 },
    });
  });

  /** A worker whose rank 0 this file speaks for. */
  async function withRawLeader(): Promise<{ worker: SocketRankGroup; socket: Socket }> {
    // A true rank 0 does the introduction; a proxy in the middle then speaks instead of it.
    const real = socketPath();
    const path = socketPath();
    let toWorker: Socket | null = null;
    const proxy = createServer((socket) => {
      toWorker = socket;
      const upstream = connect(real);
      upstream.on('data', (chunk) => socket.write(chunk));
      socket.on('data', (chunk) => upstream.write(chunk));
      for (const end of [socket, upstream]) end.on('error', () => undefined);
      open.push({ close: () => upstream.destroy() });
    });
    open.push(proxy);
    await new Promise<void>((resolve) => proxy.listen(path, resolve));
    const leader = rank({ rank: 0, size: 3, address: { path: real } });
    const other = rawRank({ path: real }, 2, 3, frameKind.ready);
    const worker = await rank({ rank: 1, size: 3, address: { path } });
    await Promise.all([leader, other]);
    return { worker, socket: toWorker as unknown as Socket };
  }

  test.each<[string, Uint8Array]>([
    ['its connection ended', new Uint8Array()],
    [
      'what it sent is refused: frame kind: expected one that rank 0 sends, got 8',
      bytes(frameKind.report, reportBytes(1, 1)),
    ],
    ['what it sent is refused: frame.step: expected 1, got 2', bytes(frameKind.step, encodeStepFrame(frame(2)))],
    [
      'what it sent is refused: frame: expected a step and its records, got 5',
      bytes(frameKind.step, encodeWireValue(5)),
    ],
    [
      'what it sent is refused: gathered: expected an answer that is waited for, got "one more"',
      bytes(frameKind.gathered, encodeWireValue([0, 1, 2].map((value) => encodeWireValue(value)))),
    ],
    [
      'what it sent is refused: gathered: expected 3 encoded values, got an array of 2',
      bytes(frameKind.gathered, encodeWireValue([encodeWireValue(0), encodeWireValue(1)])),
    ],
    [
      'what it sent is refused: loss.rank: expected a rank in [1, 2], got 3',
      bytes(frameKind.lost, encodeWireValue([3, 'x'])),
    ],
    ['what it sent is refused: loss.why: expected a reason, got 1', bytes(frameKind.lost, encodeWireValue([2, 1]))],
  ])('a rank 0 that is lost: %s', async (why, breach) => {
    const { worker, socket } = await withRawLeader();
    if (breach.length === 0) socket.destroy();
    else socket.write(breach);
    await until(worker, () => worker.failure !== null);
    expect(worker.failure).toMatchObject({
      code: 'RANK_LOST',
      message: `rank 0 of 3 is lost because ${why}; this instance must be restarted`,
      details: { rank: 0 },
    });
    expect(() => worker.nextFrame()).toThrow(worker.failure as Error);
    worker.report(report(1, 1)); // nobody is left to read it
  });
});
