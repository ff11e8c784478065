/**
 * Every message in every state of a request, from everybody who has no say in it: nothing may change, and nobody may be
 * told anything. And what the right peer says twice, or out of turn.
 */
import { requestTable, type RequestState } from '../../lib/control/coordinator/request-table.js';
import type { ToCoordinator } from '../../lib/control/protocol/messages.js';
import {
  deskWith,
  finishedBody,
  handoffBody,
  submitMessage,
  submitWithKv,
  type CoordinatorDesk,
} from '../support/coordinator-desk.js';

const states = (Object.keys(requestTable) as RequestState[]).filter((state) => state !== 'gone');
const reader = ['importing', 'generating', 'cancellingImport', 'cancellingGeneration', 'doubtful', 'abandoned'];
const waiting = ['waitingPrefill', 'waitingDecode'];

/** Every message about a request. */
function messagesAbout(id: number): readonly ToCoordinator[] {
  const reply = (body: Uint8Array): ToCoordinator => ({
    header: 'ENGINE_REPLY',
    replies: [{ requestId: id, needsDetokenize: false, body }],
  });
  return [
    reply(handoffBody()),
    reply(finishedBody),
    { header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId: id, body: finishedBody }] },
    { header: 'KV_READ_DONE', requestId: id },
    { header: 'KV_TRANSFER_READY', requestId: id, cachedPrefixBlocks: 0 },
    { header: 'REQUEST_ERROR', requestId: id, reason: 'no', sourceSafe: true },
    { header: 'REQUEST_ERROR', requestId: id, reason: 'no', sourceSafe: false },
    { header: 'REQUEST_ABORTED', requestId: id, sourceSafe: true },
    { header: 'REQUEST_ABORTED', requestId: id, sourceSafe: false },
    { header: 'REGISTER_KV', requestId: id },
    { header: 'ABORT_REQUEST', requestId: 70 },
    { header: 'ABORT_REQUEST', requestId: id },
    { header: 'RELEASE_KV', requestId: id, instance: null },
    { header: 'RELEASE_KV', requestId: id, instance: 'run1' },
    { header: 'RELEASE_KV', requestId: id, instance: 'run0' },
  ];
}

/** What needs a connected client, or a registered engine, and comes from neither. */
const others: readonly ToCoordinator[] = [
  submitMessage(70),
  submitMessage(71),
  submitWithKv(72),
  { header: 'CLAIM_KV', requestId: 0, instance: 'run1', owner: 'o' },
  { header: 'RELEASE_KV_OWNER', instance: 'run1', owner: 'd1/i1' },
  { header: 'SHUTDOWN' },
  { header: 'DISCONNECT' },
  { header: 'ENGINE_STATUS', status: new Map([['active', 3]]) },
  { header: 'SET_GENERATION_EPOCH', epoch: 3 },
  ...(['PAUSE', 'UNPAUSE', 'SUSPEND', 'RESUME', 'STOP', 'START_CUDA_PROFILER', 'STOP_CUDA_PROFILER'] as const).map(
    (header) => ({ header }),
  ),
];

function ignored({ core }: CoordinatorDesk): number {
  return core.snapshot(0).counters['ignored']!;
}

/** All that can be seen of the core, but for how much it has ignored and how old pins are. */
function seen({ core }: CoordinatorDesk): unknown {
  const { counters, ...rest } = core.snapshot(0);
  return { ...rest, counters: { ...counters, ignored: 0 } };
}

function expectIgnored(desk: CoordinatorDesk, peer: string, message: ToCoordinator): void {
  const [before, count] = [seen(desk), ignored(desk)];
  const effects = desk.hear(peer, message).map((effect) => (effect.kind === 'log' ? effect.event : effect));
  expect({ peer, message, effects, ignored: ignored(desk) - count }).toEqual({
    peer,
    message,
    effects: ['message ignored'],
    ignored: 1,
  });
  expect(seen(desk)).toEqual(before);
}

describe.each(states)('a request that is %s', (state) => {
  const isAggregated = ['running', 'cancellingRun', 'straying'].includes(state);
  /** The desk with bystanders: a second client, a second engine of each role, and one that was removed. */
  const prepared = () => {
    const made = deskWith(state);
    made.desk.say('c2', { header: 'CONNECT' });
    if (isAggregated) for (const peer of ['e2', 'gone']) made.desk.say(peer, { header: 'REGISTER' });
    else for (const peer of ['p2', 'd2', 'd-gone']) made.desk.engine(peer);
    made.desk.lose(isAggregated ? 'gone' : 'd-gone');
    return made;
  };

  test('is what the table says', () => {
    const { desk } = deskWith(state);
    const { requests, pins } = desk.core.snapshot(0);
    const phase = state === 'waitingPrefill' ? 'queuedPrefill' : state === 'waitingDecode' ? 'queuedDecode' : state;
    const phases = { queuedPrefill: 1, prefill: 1, queuedDecode: 1 } as Record<string, number>;
    const isOver = /^(?:cancelling|doubtful|abandoned)/.test(state);
    const expected = phases[phase] === undefined ? (isOver ? 'terminating' : 'decode') : phase;
    expect(requests[expected as keyof typeof requests]).toBe(1);
    const isPinned = [
      'prefill',
      'cancellingPrefill',
      'waitingDecode',
      'importing',
      'cancellingImport',
      'doubtful',
      'abandoned',
    ];
    expect(pins.some(({ requestId }) => requestId === (waiting.includes(state) ? 1 : 0))).toBe(
      isPinned.includes(state),
    );
  });

  test('does not hear a peer that nobody knows, nor one that was removed', () => {
    const { desk, id } = prepared();
    for (const peer of ['nobody', isAggregated ? 'gone' : 'd-gone']) {
      for (const message of [...messagesAbout(id), ...others]) expectIgnored(desk, peer, message);
    }
  });

  test('does not hear other engines, of either role', () => {
    const { desk, id } = prepared();
    const peers = isAggregated ? ['e2'] : ['p2', 'd2'];
    for (const peer of peers) for (const message of messagesAbout(id)) expectIgnored(desk, peer, message);
  });

  test('does not hear other clients, nor its own where engines speak', () => {
    const { desk, id } = prepared();
    const ofEngines = messagesAbout(id).slice(0, 10);
    for (const message of ofEngines) for (const peer of ['c1', 'c2']) expectIgnored(desk, peer, message);
    for (const message of messagesAbout(id).slice(10)) expectIgnored(desk, 'c2', message);
    expectIgnored(desk, 'c1', submitMessage(70));
    expect(desk.say('c2', { header: 'CLAIM_KV', requestId: id, instance: 'run1', owner: 'o' })).toEqual([
      `c2 CLAIM_KV_ACK ${id}`,
    ]);
    expect(desk.core.snapshot(0).pins.every(({ owner }) => owner !== 'o')).toBe(true);
  });

  if (!isAggregated && state !== 'abandoned') {
    test('does not hear its source say what only its reader can know', () => {
      const { desk, id } = prepared();
      expectIgnored(desk, 'p1', { header: 'KV_READ_DONE', requestId: id });
      expectIgnored(desk, 'p1', { header: 'KV_TRANSFER_READY', requestId: id, cachedPrefixBlocks: 0 });
      expectIgnored(desk, 'p1', { header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId: id, body: finishedBody }] });
      if (reader.includes(state))
        expectIgnored(desk, 'p1', { header: 'REQUEST_ABORTED', requestId: id, sourceSafe: true });
      expectIgnored(desk, 'p1', { header: 'REQUEST_ABORTED', requestId: id, sourceSafe: false });
    });
  }

  if (waiting.includes(state)) {
    test('does not hear the engine it waits for', () => {
      const { desk, id } = prepared();
      const peer = state === 'waitingDecode' ? 'd1' : 'p1';
      const abouts = messagesAbout(id).filter(({ header }) => header !== 'REQUEST_ERROR' || state === 'waitingDecode');
      for (const message of abouts.filter(({ header }) => header !== 'REQUEST_ABORTED' && header !== 'REGISTER_KV'))
        if (state === 'waitingDecode') expectIgnored(desk, peer, message);
        else if (message.header !== 'ENGINE_REPLY') expectIgnored(desk, peer, message);
    });
  }

  test.each(['p1', 'd1', 'e1', 'c1'])('takes whatever %s says twice as once', (peer) => {
    for (const index of messagesAbout(0).keys()) {
      const { desk, id } = deskWith(state);
      const message = messagesAbout(id)[index]!;
      const first = desk.say(peer, message);
      const second = desk.say(peer, message);
      const told = [...first, ...second].filter((word) => /^c1 (?:ENGINE_REPLY|REQUEST_\w+) 70/.test(word));
      // One answer, or after a failure in doubt (before or now) the word that it is over.
      expect({ message, told: told.length <= 1 || /unsafe/.test(told[0]!) }).toEqual({ message, told: true });
      const repeated = second.filter((word) => !/PARTIAL|SEND_KV|RELEASE_KV/.test(word));
      expect({ message, repeated }).toEqual({ message, repeated: [] });
    }
  });
});
