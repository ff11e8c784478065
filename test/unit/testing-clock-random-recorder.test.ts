/** The simulated clock, the seeded random generator and the recorder. */
import { EventEmitter } from 'eventemitter3';
import { HandoffError } from '../../lib/errors.js';
import { Recorder } from '../../lib/testing/recorder.js';
import { SeededRandom } from '../../lib/testing/seeded-random.js';
import { SimulatedClock } from '../../lib/testing/simulated-clock.js';

describe('SimulatedClock', () => {
  test('fires timers in order of time, then of setting, each at its own time', () => {
    const clock = new SimulatedClock(100);
    const fired: string[] = [];
    const note = (name: string) => () => fired.push(`${name}@${clock.now()}`);
    clock.after(5, note('b'));
    clock.after(1, note('a'));
    clock.after(5, note('c'));
    clock.after(9, note('late'));
    expect(clock.advance(5)).toBe(3);
    expect(fired).toEqual(['a@101', 'b@105', 'c@105']);
    expect(clock.now()).toBe(105);
    expect(clock.nextMs).toBe(109);
  });

  test('fires timers that were set while it advanced, when they fall due in the same advance', () => {
    const clock = new SimulatedClock();
    const fired: number[] = [];
    clock.after(2, () => {
      fired.push(clock.now());
      clock.after(3, () => fired.push(clock.now()));
      clock.after(4, () => fired.push(clock.now()));
    });
    clock.advance(5);
    expect(fired).toEqual([2, 5]);
    expect(clock.pendingCount).toBe(1);
  });

  test('a cancelled timer does not fire and does not hold up the next', () => {
    const clock = new SimulatedClock();
    const fired: string[] = [];
    const first = clock.after(1, () => fired.push('first'));
    const second = clock.after(2, () => fired.push('second'));
    first.cancel();
    first.cancel();
    expect(clock.pendingCount).toBe(1);
    expect(clock.step()).toBe(true);
    expect(clock.now()).toBe(2);
    second.cancel();
    expect(clock.pendingCount).toBe(0);
    expect(clock.step()).toBe(false);
    expect(fired).toEqual(['second']);
  });

  test('keeps order among many timers with few distinct times', () => {
    const clock = new SimulatedClock();
    const random = new SeededRandom(7);
    const expected: { at: number; index: number }[] = [];
    const fired: { at: number; index: number }[] = [];
    for (let index = 0; index < 500; index++) {
      const at = random.int(0, 20);
      expected.push({ at, index });
      clock.after(at, () => fired.push({ at: clock.now(), index }));
    }
    expected.sort((a, b) => a.at - b.at || a.index - b.index);
    while (clock.step()) continue;
    expect(fired).toEqual(expected);
  });

  test.each([-1, Number.NaN, Infinity])('refuses to move by %p', (ms) => {
    expect(() => new SimulatedClock().advance(ms)).toThrow(`ms: expected a finite number of at least 0, got ${ms}`);
    expect(() => new SimulatedClock().after(ms, () => {})).toThrow(
      `delayMs: expected a finite number of at least 0, got ${ms}`,
    );
    expect(() => new SimulatedClock(Number.NaN)).toThrow('startMs: expected a finite number of milliseconds, got NaN');
  });
});

describe('SeededRandom', () => {
  test('the same seed gives the same numbers, for ever', () => {
    const random = new SeededRandom(42);
    // Written down when the generator was: a change of them breaks every seed that somebody noted.
    expect(Array.from({ length: 4 }, () => random.uint32())).toEqual([1959603763, 2423114712, 2466933512, 4144396390]);
  });

  test('seeds that differ only in high bits give different runs', () => {
    const first = (seed: number): number => new SeededRandom(seed).uint32();
    expect(new Set([1, 1 + 2 ** 32, 1 + 2 ** 40, -1, 0].map(first)).size).toBe(5);
  });

  test('ints cover their range, both ends included, and nothing else', () => {
    const random = new SeededRandom(1);
    const counts = new Map<number, number>();
    for (let i = 0; i < 6000; i++) {
      const value = random.int(-2, 3);
      counts.set(value, (counts.get(value) ?? 0) + 1);
    }
    expect([...counts.keys()].sort((a, b) => a - b)).toEqual([-2, -1, 0, 1, 2, 3]);
    for (const count of counts.values()) expect(Math.abs(count - 1000)).toBeLessThan(150);
  });

  test('a chance of 0 never and of 1 always comes', () => {
    const random = new SeededRandom(2);
    for (let i = 0; i < 1000; i++) {
      expect(random.chance(0)).toBe(false);
      expect(random.chance(1)).toBe(true);
    }
  });

  test('shuffles into a permutation and leaves its argument alone', () => {
    const random = new SeededRandom(3);
    const items = [1, 2, 3, 4, 5, 6];
    const orders = new Set<string>();
    for (let i = 0; i < 200; i++) {
      const shuffled = random.shuffle(items);
      orders.add(shuffled.join());
      expect(shuffled.slice().sort()).toEqual(items);
    }
    expect(items).toEqual([1, 2, 3, 4, 5, 6]);
    expect(orders.size).toBeGreaterThan(150);
  });

  test('a fork does not disturb its parent, however much is drawn from it', () => {
    const withDraws = new SeededRandom(4);
    const without = new SeededRandom(4);
    const fork = withDraws.fork();
    without.fork();
    for (let i = 0; i < 50; i++) fork.uint32();
    expect(withDraws.uint32()).toBe(without.uint32());
    expect(fork.uint32()).not.toBe(without.uint32());
  });

  test('names what it cannot do', () => {
    const random = new SeededRandom(5);
    expect(() => random.pick([])).toThrow('items: expected at least one item, got an array of 0');
    expect(() => random.int(3, 2)).toThrow('max: expected an integer in [3, 4294967298], got 2');
    expect(() => random.int(0.5, 2)).toThrow('min: expected an integer, got 0.5');
    expect(() => new SeededRandom(0.5)).toThrow('seed: expected an integer, got 0.5');
  });
});

describe('Recorder', () => {
  test('records watched events in order with times, and stops when told', () => {
    const clock = new SimulatedClock();
    const recorder = new Recorder(clock);
    const emitter = new EventEmitter();
    const stop = recorder.watch('decode0', emitter, ['handoffAdmitted', 'requestError']);
    emitter.emit('handoffAdmitted', { attemptId: 1 });
    clock.advance(3);
    emitter.emit('unwatched');
    emitter.emit('requestError', { attemptId: 2 });
    stop();
    emitter.emit('handoffAdmitted', { attemptId: 3 });
    expect(recorder.entries).toEqual([
      { index: 0, atMs: 0, source: 'decode0', event: 'handoffAdmitted', args: [{ attemptId: 1 }] },
      { index: 1, atMs: 3, source: 'decode0', event: 'requestError', args: [{ attemptId: 2 }] },
    ]);
    expect(recorder.of('requestError')).toHaveLength(1);
    expect(recorder.of('requestError', 'prefill0')).toHaveLength(0);
    expect(emitter.listenerCount('handoffAdmitted')).toBe(0);
  });

  test('prints a short trace: last lines only, values shortened', () => {
    const clock = new SimulatedClock();
    const recorder = new Recorder(clock);
    for (let i = 0; i < 5; i++) recorder.record('sim', 'early', i);
    clock.advance(12.5);
    recorder.record('decode0', 'requestError', {
      attemptId: 7,
      error: new HandoffError('TRANSFER_FAILED', 'transfer failed'),
      blocks: Int32Array.from({ length: 20 }, (_, i) => i),
      nested: { deep: true },
    });
    expect(recorder.trace(2)).toBe(
      [
        '     0.000  sim          early 4',
        '    12.500  decode0      requestError {attemptId: 7, error: TRANSFER_FAILED, ' +
          'blocks: [0, 1, 2, 3, 4, 5, 6, 7, … 20 in all], nested: an object}',
      ].join('\n'),
    );
    expect(recorder.trace(10, (entry) => entry.source === 'sim').split('\n')).toHaveLength(5);
  });

  test('is bounded: the oldest go, the count stays true', () => {
    const recorder = new Recorder(new SimulatedClock(), 10);
    for (let i = 0; i < 25; i++) recorder.record('s', 'e', i);
    expect(recorder.count).toBe(25);
    expect(recorder.entries.length).toBeLessThanOrEqual(10);
    expect(recorder.entries.at(-1)!.args).toEqual([24]);
    recorder.clear();
    expect(recorder.entries).toEqual([]);
    expect(() => new Recorder(new SimulatedClock(), 0)).toThrow('capacity: expected a positive integer, got 0');
  });
});
