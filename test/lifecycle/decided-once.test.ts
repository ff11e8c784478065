/**
 * Goal: what rank 0 decided is decided once, however often it is asked before the log has come round; and what the log
 * brings is looked at before anything is done with it. Method: two ranks whose broadcast the test holds back.
 */
import type { LogRecord } from '../../lib/control/rank-group.js';
import { broadcast, codeThrown, handOff, heard, instance, world } from '../support/misuse-world.js';

test('a pin past its limit is ended by one record, and stays until that has come round', async () => {
  const network = world();
  const ranks = await instance({
    role: 'prefill',
    network,
    size: 2,
    carrier: 'host',
    options: { deadlines: { pinMs: 50 } },
  });
  handOff(ranks);
  network.advance(60);
  for (let i = 0; i < 3; i += 1) for (const { sdk } of ranks) sdk.pollPendingKvPushes();
  const records = ranks[0]!.sdk.drainHandoffCompletionNotifications();
  expect(records).toEqual([{ kind: 'release', handoffId: 1, reason: 'expired' }]);
  expect(ranks.map(({ sdk }) => sdk.inspect().pins.length)).toEqual([1, 1]);
  for (const { sdk } of ranks) for (const record of records) sdk.recordHandoffCompletionNotification(record);
  expect(ranks.map(({ sdk }) => sdk.inspect().pins.length)).toEqual([0, 0]);
  for (const rank of ranks) expect(heard(rank, 'released')).toHaveLength(1);
  broadcast(ranks);
});

test.each<[string, object]>([
  [
    'an attempt that is no integer',
    { kind: 'decision', attemptId: 1.5, failed: false, sourceSafe: true, reason: null },
  ],
  ['an attempt that is no number', { kind: 'abort', attemptId: '1', reason: 'caller' }],
  ['an attempt that is NaN', { kind: 'abort', attemptId: Number.NaN, reason: 'caller' }],
  ['a yes that is a number', { kind: 'decision', attemptId: 1, failed: 0, sourceSafe: true, reason: null }],
])('a notification with %s is refused by name, and moves no log', async (_what, record) => {
  const [rank] = await instance({ role: 'decode', network: world(), size: 1, carrier: 'host' });
  const before = rank!.sdk.inspect().logIndex;
  expect(codeThrown(() => rank!.sdk.recordHandoffCompletionNotification(record as LogRecord))).toBe('ARGUMENT_INVALID');
  expect(rank!.sdk.inspect().logIndex).toBe(before);
});
