/** What waits for slow readers: each bound on its own, to the byte, and the sum that operators see. */
import type { SubmitRequest } from '../../lib/control/protocol/messages.js';
import { Outboxes, type Waiting } from '../../lib/control/zeromq/outboxes.js';
import { submitMessage } from '../support/coordinator-desk.js';

const limits = { clientBytesMax: 100, engineBytesMax: 250, messagesMax: 4 };
const entry = (requestId: number, bytes: number): Waiting => ({
  message: { header: 'REQUEST_ABORTED', requestId, sourceSafe: true },
  frames: [],
  bytes,
});

const submit = (requestId: number, bytes: number): Waiting => ({
  message: submitMessage(requestId) as SubmitRequest,
  frames: [],
  bytes,
});

test('a client’s bytes reach their bound and not a byte beyond it; what it loses is named once each', () => {
  const boxes = new Outboxes(limits);
  expect(boxes.add('client', entry(1, 60), false)).toEqual({ kind: 'none' });
  expect(boxes.add('client', entry(1, 40), false)).toEqual({ kind: 'none' });
  expect(boxes.add('other', entry(9, 100), false)).toEqual({ kind: 'none' });
  expect([boxes.bytesOf('client'), boxes.bytes]).toEqual([100, 200]);
  expect(boxes.add('client', entry(2, 1), false)).toEqual({
    kind: 'client',
    requests: [1, 2].map((requestId) => ({ requestId, isOver: true })),
  });
  expect(boxes.has('client')).toBe(false);
  expect([boxes.bytesOf('client'), boxes.bytes, boxes.bytesOf('other')]).toEqual([0, 100, 100]);
});

test('a lost request is over when its last word is lost with it, and acknowledgements name no request', () => {
  const body = Uint8Array.of(0x80);
  const messages: Waiting['message'][] = [
    { header: 'ENGINE_REPLY_PARTIAL', requestId: 1, body },
    { header: 'ENGINE_REPLY', requestId: 1, body },
    { header: 'ENGINE_REPLY_PARTIAL', requestId: 2, body },
    { header: 'REQUEST_ERROR', requestId: 3, reason: 'no', sourceSafe: false },
    { header: 'REQUEST_ABORTED', requestId: 3, sourceSafe: true },
    { header: 'REQUEST_ERROR', requestId: 4, reason: 'no', sourceSafe: false },
    { header: 'CLAIM_KV_ACK', requestId: 5, instance: 'run', granted: true },
    { header: 'RELEASE_KV_ACK', requestId: 6, instance: 'run' },
  ];
  const room = new Outboxes({ ...limits, messagesMax: messages.length - 1 });
  const results = messages.map((message) => room.add('client', { message, frames: [], bytes: 1 }, false));
  const requests = [
    { requestId: 1, isOver: true },
    { requestId: 2, isOver: false },
    { requestId: 3, isOver: true },
    { requestId: 4, isOver: false },
  ];
  expect(results.at(-1)).toEqual({ kind: 'client', requests });
  expect(room.bytes).toBe(0);
});

test('an engine has a bound of its own, and keeps what waits already', () => {
  const boxes = new Outboxes(limits);
  const first = submit(1, 101);
  expect(boxes.add('engine', first, true)).toEqual({ kind: 'none' });
  expect(boxes.add('engine', submit(2, 149), true)).toEqual({ kind: 'none' });
  expect(boxes.add('engine', submit(3, 1), true)).toEqual({ kind: 'engine' });
  expect([boxes.bytesOf('engine'), boxes.bytes, boxes.first('engine')]).toEqual([250, 250, first]);
  // What stops and releases requests has as much room again.
  expect(boxes.add('engine', entry(1, 250), true)).toEqual({ kind: 'none' });
  expect(boxes.add('engine', entry(2, 1), true)).toEqual({ kind: 'engine' });
  boxes.shift('engine');
  boxes.shift('engine');
  expect([boxes.bytes, boxes.first('engine')]).toEqual([250, entry(1, 250)]);
  for (let count = 0; count < 2 * limits.messagesMax - 1; count++)
    expect(boxes.add('engine', entry(3, 0), true)).toEqual({ kind: 'none' });
  expect(boxes.add('engine', entry(3, 0), true)).toEqual({ kind: 'engine' });
  boxes.drop('engine');
  expect(boxes.add('engine', submit(3, 1), true)).toEqual({ kind: 'none' });
});

test('messages have a bound whatever their size', () => {
  const boxes = new Outboxes(limits);
  for (const isEngine of [true, false]) {
    const peer = isEngine ? 'engine' : 'client';
    const of = isEngine ? submit : entry;
    for (let count = 0; count < limits.messagesMax; count++)
      expect(boxes.add(peer, of(count, 1), isEngine)).toEqual({ kind: 'none' });
    expect(boxes.add(peer, of(9, 1), isEngine).kind).toBe(peer);
  }
  expect(boxes.bytes).toBe(limits.messagesMax);
});

test('what a peer leaves behind is no longer counted', () => {
  const boxes = new Outboxes(limits);
  boxes.add('gone', entry(1, 70), false);
  boxes.add('stays', entry(2, 20), false);
  expect(boxes.drop('gone')).toEqual([entry(1, 70)]);
  expect([boxes.drop('gone'), boxes.bytes, [...boxes.peers]]).toEqual([[], 20, ['stays']]);
  boxes.shift('stays');
  expect([boxes.bytes, [...boxes.peers]]).toEqual([0, []]);
});
