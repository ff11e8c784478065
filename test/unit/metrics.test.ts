/** Goal: counters and histograms say what was put into them. Method: edges of buckets, and every outcome once. */
import { Histogram, Metrics, type ImportOutcome, type PinOutcome } from '../../lib/observe/metrics.js';

const labels = { role: 'decode', instance: 'i', rank: 1 };

test('a histogram puts each value into the first bucket that reaches it, and the rest into one more', () => {
  const histogram = new Histogram([1, 10, 100]);
  for (const value of [0, 1, 1.0001, 10, 100, 101, Infinity]) histogram.observe(value);
  expect(histogram.snapshot()).toEqual({ bounds: [1, 10, 100], counts: [2, 2, 1, 2], sum: Infinity, count: 7 });
});

test('each outcome moves its own counter and no other', () => {
  const imports: readonly ImportOutcome[] = ['completed', 'failed', 'aborted', 'refused'];
  const pins: readonly PinOutcome[] = ['released', 'expired', 'attested'];
  for (const outcome of imports) {
    const metrics = new Metrics(labels);
    metrics.importOutcome(outcome);
    expect(metrics.snapshot().counters).toEqual({ [`imports_${outcome}_total`]: 1 });
  }
  for (const outcome of pins) {
    const metrics = new Metrics(labels);
    metrics.pinOutcome(outcome, 1500);
    expect(metrics.snapshot()).toMatchObject({
      counters: { [`pins_${outcome}_total`]: 1 },
      pinSeconds: { sum: 1.5, count: 1 },
    });
  }
});

test('transfers are counted by transport, in seconds and bytes', () => {
  const metrics = new Metrics(labels);
  metrics.transfer('host', 0.5, 4096);
  metrics.transfer('host', 0.25, 8192);
  metrics.transfer('other', 1, 1);
  const { transferSeconds, transferBytes } = metrics.snapshot();
  expect(Object.keys(transferSeconds)).toEqual(['host', 'other']);
  expect(transferSeconds['host']).toMatchObject({ sum: 0.75, count: 2 });
  expect(transferBytes['host']).toMatchObject({ sum: 12288, count: 2 });
  expect(transferBytes['host']!.counts.slice(0, 2)).toEqual([1, 1]);
});

test('a snapshot is a copy', () => {
  const metrics = new Metrics(labels);
  metrics.count('x');
  const before = metrics.snapshot();
  metrics.count('x', 4);
  metrics.queueSeconds.observe(1);
  expect([before.counters['x'], before.queueSeconds.count]).toEqual([1, 0]);
  expect([metrics.value('x'), metrics.value('y'), metrics.snapshot().labels]).toEqual([5, 0, labels]);
});
