/** What fits into a coordinator and its engines, what waits, and which bounds may be set (spec 14.7). */
import type { SubmitRequest } from '../../lib/control/protocol/messages.js';
import { waits } from '../../lib/control/coordinator/request-table.js';
import {
  CoordinatorDesk,
  handoffBody,
  hybrid,
  openDesk,
  pairedDesk,
  submitMessage,
  submitWithKv,
  wire,
  words,
  type Sent,
} from '../support/coordinator-desk.js';

const hybridBody = handoffBody(wire({ ssm: wire({ conv: 1 }) }));

describe('capacity', () => {
  test('waits first come, first served, and fills the room that each release makes', () => {
    const desk = openDesk();
    desk.engine('p1', { meta: { request_capacity: 2 } });
    desk.engine('d1');
    expect([1, 2, 3, 4].map((id) => desk.submit('c1', id))).toEqual([
      ['p1 SUBMIT_REQUEST 0'],
      ['p1 SUBMIT_REQUEST 1'],
      [],
      [],
    ]);
    desk.prefilled('p1', 1);
    expect(desk.say('d1', { header: 'KV_READ_DONE', requestId: 1 })).toEqual([
      'p1 RELEASE_KV 1',
      'p1 SUBMIT_REQUEST 2',
    ]);
    expect(desk.submit('c1', 5)).toEqual([]);
    expect(desk.lose('p1').sort()).toEqual([0, 3, 4, 5].map((id) => `c1 REQUEST_ERROR ${id === 0 ? 1 : id} safe`));
  });

  test('nothing overtakes a request that waits for a slot, although there is room for it', () => {
    const desk = openDesk();
    desk.engine('p1', { meta: hybrid(8) });
    desk.engine('d1', { meta: hybrid(1) });
    for (const id of [1, 2, 3]) desk.submit('c1', id);
    expect(desk.prefilled('p1', 0, hybridBody)).toEqual(['d1 SUBMIT_REQUEST_WITH_KV 0']);
    expect(desk.prefilled('p1', 1, hybridBody)).toEqual([]);
    // Without SSM state it needs no slot, but another came first.
    expect(desk.prefilled('p1', 2)).toEqual([]);
    // The slot is held until generation completes.
    expect(desk.say('d1', { header: 'KV_READ_DONE', requestId: 0 })).toEqual(['p1 RELEASE_KV 0']);
    expect(desk.finished('d1', 0)).toEqual([
      'c1 ENGINE_REPLY 1',
      'd1 SUBMIT_REQUEST_WITH_KV 1',
      'd1 SUBMIT_REQUEST_WITH_KV 2',
    ]);
  });

  test('what can never fit is refused, and its source released', () => {
    const desk = pairedDesk();
    desk.submit('c1', 1);
    expect(desk.prefilled('p1', 0, hybridBody)).toEqual(['c1 REQUEST_ERROR 1 safe', 'p1 RELEASE_KV 0']);
  });

  test('bounds of clients and requests are told, and take nothing', () => {
    const desk = openDesk({ limits: { requestsPerClientMax: 1, clientsMax: 1 } });
    desk.engine('p1');
    desk.submit('c1', 1);
    expect(desk.submit('c1', 2)).toEqual(['c1 REQUEST_ERROR 2 safe']);
    expect(desk.say('c2', { header: 'CONNECT' })).toEqual([]);
    expect(desk.core.snapshot(0).clients).toBe(1);
  });

  test('the bytes of prompts that are kept are bounded, and each that is sent on or ends makes room', () => {
    // A prompt has 4 bytes.
    const desk = openDesk({ limits: { promptBytesMax: 12 } });
    desk.engine('p1', { meta: { request_capacity: 1 } });
    desk.engine('d1');
    for (const id of [1, 2, 3]) desk.submit('c1', id);
    const refused = desk.hear('c1', submitMessage(4)).find(({ kind }) => kind === 'send');
    const reason = 'the coordinator keeps as many bytes of prompts as it may';
    expect(refused).toMatchObject({ message: { header: 'REQUEST_ERROR', requestId: 4, reason, sourceSafe: true } });
    desk.say('c1', { header: 'ABORT_REQUEST', requestId: 3 });
    expect(desk.submit('c1', 5)).toEqual([]);
    expect(desk.submit('c1', 6)).toEqual(['c1 REQUEST_ERROR 6 safe']);
    // Decode has it now.
    desk.prefilled('p1', 0);
    expect(desk.submit('c1', 7)).toEqual([]);
    expect(desk.submit('c1', 8)).toEqual(['c1 REQUEST_ERROR 8 safe']);
    expect(desk.core.snapshot(0).promptBytes).toBe(12);
    desk.lose('c1');
    expect(desk.core.snapshot(0).promptBytes).toBe(0);
  });

  test('sampling maps count with the bytes that they keep, at any depth', () => {
    const desk = openDesk({ limits: { promptBytesMax: 100 } });
    desk.engine('p1');
    const sampling = { stop: ['12345678', wire({ k: Uint8Array.of(1, 2) })], top_k: 1 };
    desk.submit('c1', 1, sampling);
    // The prompt, the keys, the texts and the bytes, and eight for each value.
    expect(desk.core.snapshot(0).promptBytes).toBe(4 + (4 + 1 + 5) + (8 + 2) + 5 * 8);
    expect(desk.submit('c1', 2, sampling)).toEqual(['c1 REQUEST_ERROR 2 safe']);
  });

  test('of a prompt’s hashes as many are looked at as anybody’s prompt has blocks', () => {
    const hashes = new BigInt64Array(2 ** 16 + 10).map((_, index) => BigInt(index + 1));
    const sent = { ...(submitMessage(1) as SubmitRequest), blockHashes: hashes };
    const computed = { ...sent, blockHashes: null };
    for (const message of [sent, computed]) {
      const desk = pairedDesk({ policy: 'longest_prefix', hashPrompt: () => hashes });
      desk.say('c1', message);
      expect(desk.core.snapshot(0).affinityEntries).toBe(2 ** 16);
    }
  });

  test('what its engine never got is kept again until it is sent on', () => {
    const desk = openDesk({ isDisaggregated: false });
    desk.say('e1', { header: 'REGISTER' });
    desk.say('e2', { header: 'REGISTER' });
    const sent = desk.hear('c1', submitMessage(1)).find((effect) => effect.kind === 'send') as Sent;
    expect(desk.core.snapshot(0).promptBytes).toBe(0);
    expect(words(desk.core.undelivered(1, sent.peer, sent.message))).toEqual([
      `${sent.peer === 'e1' ? 'e2' : 'e1'} SUBMIT_REQUEST 0`,
    ]);
    expect(desk.core.snapshot(0).promptBytes).toBe(0);
  });

  test('a queue deadline ends the wait, not the prefill that runs', () => {
    const desk = openDesk({ limits: { queueMs: 100 } });
    desk.engine('p1', { meta: { request_capacity: 1 } });
    desk.submit('c1', 1);
    desk.submit('c1', 2);
    expect(words(desk.core.tick(90))).toEqual([]);
    expect(words(desk.core.tick(200))).toEqual(['c1 REQUEST_ERROR 2 safe']);
    expect(desk.core.snapshot(200).requests.prefill).toBe(1);
  });
});

test('a client’s own handoff takes a slot on decode, and its failure in doubt stays until decode says more', () => {
  const desk = openDesk();
  desk.engine('p1', { meta: hybrid(2) });
  desk.engine('d1', { meta: hybrid(2) });
  expect(desk.say('c1', submitWithKv(1, wire({ ssm: wire({ conv: 1 }) })))).toEqual(['d1 SUBMIT_REQUEST_WITH_KV 0']);
  expect(desk.core.snapshot(0).engines[1]).toMatchObject({ active: 1, slotsUsed: 1 });
  desk.say('d1', { header: 'REQUEST_ERROR', requestId: 0, reason: 'no', sourceSafe: false });
  expect(desk.core.snapshot(0).requests.terminating).toBe(1);
  expect(desk.say('d1', { header: 'REQUEST_ABORTED', requestId: 0, sourceSafe: true })).toEqual([
    'c1 REQUEST_ABORTED 1 safe',
  ]);
});

test.each([
  [{ instance: '' }, 'instance: expected a name of at most 512 characters, got ""'],
  [{ firstRequestId: -1 }, 'firstRequestId: expected an integer of at least 0, got -1'],
  [{ pushTransports: ['nccl', ''] }, 'pushTransports: expected a list of names, got an array of 2'],
  [
    { engines: ['prefill_s0_dp0'] as never },
    'engines: expected what expectedEngines gives, or null, got an array of 1',
  ],
  [{ engineRequestsMax: 0 }, 'engineRequestsMax: expected an integer of at least 1, got 0'],
  [{ limits: { queueMs: -1 } }, 'limits.queueMs: expected milliseconds, got -1'],
  [{ limits: { clientsMax: 0 } }, 'limits.clientsMax: expected at least 1, got 0'],
])('%j is refused', (options, message) => {
  expect(() => new CoordinatorDesk(options)).toThrow(message);
});

test('only two states wait', () => {
  expect(waits('waitingPrefill') && waits('waitingDecode') && !waits('prefill')).toBe(true);
});
