/** What fits into a coordinator and its engines, what waits, and which bounds may be set (spec 14.7). */
import { waits } from '../../lib/control/coordinator/request-table.js';
import {
  CoordinatorDesk,
  handoffBody,
  hybrid,
  openDesk,
  pairedDesk,
  submitWithKv,
  wire,
  words,
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
