/** When an engine counts as stopped: by its own interval, by three of its reports, and never without them. */
import type { ToCoordinator } from '../../lib/control/protocol/messages.js';
import { wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { EngineWatch } from '../../lib/control/zeromq/engine-watch.js';

const reports = (interval: number | string): ToCoordinator => ({
  header: 'ENGINE_STATUS',
  status: wireMap({ interval_ms: interval }),
});

function registered(): EngineWatch {
  const watch = new EngineWatch();
  watch.heard('engine', { header: 'REGISTER' }, 5_000);
  return watch;
}

test('an engine that never reports is never stopped', () => {
  const watch = registered();
  expect([watch.silentMs('engine', 5_000), watch.silentMs('engine', 95_000)]).toEqual([0, 90_000]);
  expect(watch.isSilent('engine', 1e9)).toBe(false);
});

test.each([20, 1_000, 7_500])(
  'stopped is more than three intervals of %i ms, counted from what was heard last',
  (every) => {
    const watch = registered();
    watch.heard('engine', reports(every), 10_000);
    expect(watch.isSilent('engine', 10_000 + 3 * every)).toBe(false);
    expect(watch.isSilent('engine', 10_001 + 3 * every)).toBe(true);
    watch.heard('engine', { header: 'KV_READ_DONE', requestId: 1 }, 50_000);
    expect(watch.silentMs('engine', 50_400)).toBe(400);
    expect(watch.isSilent('engine', 50_000 + 3 * every)).toBe(false);
    expect(watch.isSilent('engine', 50_001 + 3 * every)).toBe(true);
  },
);

test.each([0, -1_000, 'often'])('an interval of %j says nothing', (interval) => {
  const watch = registered();
  watch.heard('engine', reports(interval), 10_000);
  expect(watch.isSilent('engine', 1e9)).toBe(false);
});

test('an engine that registers anew has said nothing yet; who is gone or is no engine is not watched', () => {
  const watch = registered();
  watch.heard('engine', reports(1_000), 10_000);
  watch.heard('engine', { header: 'REGISTER' }, 11_000);
  expect(watch.isSilent('engine', 1e9)).toBe(false);
  watch.heard('client', { header: 'CONNECT' }, 11_000);
  watch.heard('client', reports(1_000), 11_000);
  expect([watch.silentMs('client', 12_000), watch.isSilent('client', 1e9), watch.peers]).toEqual([
    null,
    false,
    ['engine'],
  ]);
  watch.heard('engine', { header: 'DISCONNECT' }, 12_000);
  watch.heard('other', { header: 'REGISTER' }, 12_000);
  watch.lost('other');
  expect([watch.silentMs('engine', 12_000), watch.silentMs('other', 12_000), watch.peers]).toEqual([null, null, []]);
});
