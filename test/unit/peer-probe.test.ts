/** Looking for peers that are gone: who is asked, by what, and how often. No sockets; the timers are the test's. */
import { decodeMessage } from '../../lib/control/protocol/codec.js';
import type { Frames } from '../../lib/control/protocol/codec.js';
import type { Deliveries, Delivered } from '../../lib/control/zeromq/deliveries.js';
import { PeerProbe } from '../../lib/control/zeromq/peer-probe.js';
import { RelayCore } from '../support/relay-core.js';
import { submitMessage } from '../support/coordinator-desk.js';

beforeEach(() => jest.useFakeTimers());
afterEach(() => jest.useRealTimers());

function scene(engines: readonly string[] = []) {
  const core = new RelayCore();
  const asked: string[] = [];
  const frames = new Map<string, Frames>();
  const gone: string[] = [];
  const ways = new Map<string, Delivered>();
  const deliveries = {
    flush: () => Promise.resolve(),
    put: (peer: string, sent: Frames) => {
      asked.push(peer);
      frames.set(peer, sent);
      return Promise.resolve(ways.get(peer) ?? 'sent');
    },
  } as unknown as Deliveries;
  const probe = new PeerProbe({
    ...{ core, deliveries, profile: 'multi-frame', engines: () => engines },
    clock: { now: () => performance.now() },
    isGone: (peer, what) => gone.push(`${what} ${peer}`),
  });
  return { core, asked, frames, gone, ways, probe };
}

/** A client with a request at the engine. */
function waits(core: RelayCore, peer: string): void {
  core.engine = 'e1';
  core.receive(0, peer, submitMessage(1));
}

test('engines are asked by a release of nobody’s id, waiting clients by one more acknowledgement, others by nothing', async () => {
  const { core, asked, frames, gone, ways, probe } = scene(['e1', 'e2']);
  waits(core, 'c1');
  waits(core, 'c2');
  core.receive(0, 'idle', { header: 'CONNECT' });
  ways.set('e2', 'gone').set('c2', 'gone').set('c1', 'full');
  probe.soon();
  await jest.advanceTimersByTimeAsync(49);
  expect(asked).toEqual([]);
  await jest.advanceTimersByTimeAsync(1);
  expect([...asked].sort()).toEqual(['c1', 'c2', 'e1', 'e2']);
  expect(decodeMessage('multi-frame', 'engine', frames.get('e1')!)).toEqual({
    header: 'RELEASE_KV',
    requestId: Number.MAX_SAFE_INTEGER,
    instance: null,
  });
  expect(decodeMessage('multi-frame', 'client', frames.get('c1')!)).toEqual({
    header: 'CONNECT_ACK',
    instance: 'relay',
  });
  expect(gone.sort()).toEqual(['client c2', 'engine e2']);
});

test('however many connections end, clients are asked once a second, and once more after the last', async () => {
  const { core, asked, probe } = scene(['e1']);
  waits(core, 'c1');
  for (let at = 0; at < 2_500; at += 10) {
    probe.soon();
    await jest.advanceTimersByTimeAsync(10);
  }
  const count = (peer: string): number => asked.filter((each) => each === peer).length;
  expect(count('c1')).toBe(3);
  expect(count('e1')).toBeGreaterThan(30);
  await jest.advanceTimersByTimeAsync(5_000);
  expect(count('c1')).toBe(4);
});

test('nobody is asked once it has stopped, also of those whose turn was to come', async () => {
  const { core, asked, probe } = scene(['e1']);
  for (let index = 0; index < 600; index++) waits(core, `c${index}`);
  probe.soon();
  // So many have their turn before others have theirs.
  jest.advanceTimersByTime(50);
  for (let turns = 0; turns < 2_000; turns++) await Promise.resolve();
  probe.stop();
  await jest.advanceTimersByTimeAsync(1_000);
  expect(asked).toHaveLength(256 + 1);
  probe.soon();
  await jest.advanceTimersByTimeAsync(5_000);
  expect(asked).toHaveLength(256 + 1);
});
