/** Who leaves a coordinator and how: clients that are dismissed or gone, engines that register again as something else. */
import { requestTable, waits, type RequestState } from '../../lib/control/coordinator/request-table.js';
import { CoordinatorDesk, deskWith, words } from '../support/coordinator-desk.js';

const living = (Object.keys(requestTable) as RequestState[]).filter((state) => state !== 'gone');
/** Where a client was told already that its request failed. */
const isTold = (state: RequestState): boolean => state.startsWith('doubtful') || state === 'abandoned';

describe('a client that is dismissed', () => {
  test.each(living)('while its request is %s is told once, and its request ends', (state) => {
    const { desk, id } = deskWith(state);
    const before = desk.core.snapshot(desk.now).counters;
    const said = words(desk.core.dismiss(desk.now++, 'c1', 'no say'));
    const errors = said.filter((word) => word.includes('REQUEST_ERROR 70'));
    expect(errors).toEqual(isTold(state) ? [] : ['c1 REQUEST_ERROR 70 unsafe']);
    expect(desk.core.snapshot(desk.now).clients).toBe(0);

    const engines = ['e1', 'd1', 'p1'];
    const more = engines.flatMap((peer) => [
      ...desk.prefilled(peer, id),
      ...desk.say(peer, { header: 'REQUEST_ERROR', requestId: id, reason: 'late', sourceSafe: false }),
      ...desk.say(peer, { header: 'REQUEST_ABORTED', requestId: id, sourceSafe: true }),
    ]);
    const forClient = [...said, ...more].filter((word) => word.startsWith('c1 ') && word.includes(' 70 '));
    expect(forClient).toEqual([...errors, 'c1 REQUEST_ABORTED 70 safe'].slice(state === 'abandoned' ? 1 : 0));
    const { counters, requests } = desk.core.snapshot(desk.now);
    expect(counters['failed']! + counters['aborted']! + counters['completed']!).toBe(
      before['failed']! + before['aborted']! + (isTold(state) ? 0 : waits(state) ? 2 : 1),
    );
    // The one before it in the queue, where it waits.
    expect(requests.terminating).toBe(waits(state) ? 1 : 0);
  });

  test.each(living)('while its request is %s gets no second error, whatever happens to the engines', (state) => {
    const ends: ((desk: CoordinatorDesk, id: number, peer: string) => string[])[] = [
      (desk, _id, peer) => desk.lose(peer),
      (desk, requestId, peer) =>
        desk.say(peer, { header: 'REQUEST_ERROR', requestId, reason: 'late', sourceSafe: false }),
      (desk) => words(desk.core.tick((desk.now += 1e9))),
    ];
    for (const end of ends) {
      const { desk, id } = deskWith(state);
      const said = words(desk.core.dismiss(desk.now++, 'c1', 'no say'));
      const more = ['d1', 'p1', 'e1'].flatMap((peer) => end(desk, id, peer));
      const errors = [...said, ...more].filter((word) => word.includes('REQUEST_ERROR 70'));
      expect(errors).toHaveLength(isTold(state) ? 0 : 1);
    }
  });

  test('has no say any more, and one that is not known changes nothing', () => {
    const { desk } = deskWith('importing');
    desk.core.dismiss(desk.now++, 'c1', 'no say');
    expect(desk.submit('c1', 71)).toEqual([]);
    expect(words(desk.core.dismiss(desk.now++, 'c1', 'no say'))).toEqual([]);
    expect(words(desk.core.dismiss(desk.now++, 'nobody', 'no say'))).toEqual([]);
  });

  test('as an engine leaves, with the reason', () => {
    const { desk } = deskWith('importing');
    const effects = desk.core.dismiss(desk.now++, 'p1', 'it is not on the list');
    expect(effects).toContainEqual({
      kind: 'send',
      peer: 'c1',
      message: {
        header: 'REQUEST_ERROR',
        requestId: 70,
        reason: 'its prefill engine is gone: it is not on the list',
        sourceSafe: true,
      },
    });
    expect(desk.core.snapshot(desk.now).engines.map(({ peer }) => peer)).toEqual(['d1']);
  });
});

test('clients that wait for something may be gone and matter; all do when no more can connect', () => {
  const desk = new CoordinatorDesk({ limits: { clientsMax: 3 } });
  for (const peer of ['c1', 'c2']) desk.say(peer, { header: 'CONNECT' });
  desk.engine('p1');
  expect(desk.core.clientsToProbe()).toEqual([]);
  desk.submit('c2', 1);
  expect(desk.core.clientsToProbe()).toEqual(['c2']);
  desk.say('c3', { header: 'CONNECT' });
  expect(desk.core.clientsToProbe()).toEqual(['c1', 'c2', 'c3']);
  desk.lose('c2');
  expect(desk.core.clientsToProbe()).toEqual([]);
});

describe('an engine that registers again', () => {
  const wrong = [
    ['another geometry', { meta: { head_dim: 128 } }],
    ['another role', { role: 'decode' }],
    ['another transport', { transport: 'nccl' }],
    ['a capacity of 0', { meta: { request_capacity: 0 } }],
  ] as const;

  test.each(wrong)('with %s is out: its requests end with that reason, and the rest goes on', (_name, said) => {
    const { desk } = deskWith('prefill');
    desk.engine('p2');
    expect(desk.engine('p1', { incarnation: 'i1', ...said })).toEqual([
      'c1 REQUEST_ERROR 70 safe',
      'p1 REGISTRATION_ERROR',
    ]);
    expect(desk.core.snapshot(desk.now).engines.map(({ peer }) => peer)).toEqual(['d1', 'p2']);
    expect(desk.submit('c1', 71)).toEqual(['p2 SUBMIT_REQUEST 1']);
    // What it computed for the request of before is released by nobody: the engine of before is no more.
    expect(desk.prefilled('p1', 0)).toEqual([]);
  });

  test('is told beforehand what it would be told, and that changes nothing', () => {
    const names = ['p1', 'd1', 'd2'];
    const sayings = [{}, { incarnation: 'i1' }, ...wrong.map(([, said]) => said)];
    for (const alone of [false, true])
      for (const peer of names)
        for (const said of sayings) {
          const desk = new CoordinatorDesk();
          desk.engine('p1', { incarnation: 'i1' });
          if (!alone) desk.engine('d1', { incarnation: 'i1' });
          const message = desk.registration(peer, said);
          const before = desk.core.snapshot(desk.now);
          const refusal = desk.core.refusalOf(peer, message);
          expect(desk.core.snapshot(desk.now)).toEqual(before);
          desk.say(peer, message);
          expect(desk.refusals).toEqual(refusal === null ? [] : [refusal]);
        }
    const plain = new CoordinatorDesk({ isDisaggregated: false });
    expect(plain.core.refusalOf('e1', { header: 'REGISTER' })).toBeNull();
    expect(new CoordinatorDesk().core.refusalOf('e1', { header: 'REGISTER' })).toBe(
      'this coordinator takes engines with a role only',
    );
  });

  test('a reader that comes back as something else leaves the pin in doubt', () => {
    const { desk } = deskWith('importing');
    expect(desk.engine('d1', { incarnation: 'i1', meta: { head_dim: 128 } })).toEqual([
      'c1 REQUEST_ERROR 70 unsafe',
      'd1 REGISTRATION_ERROR',
    ]);
    expect(desk.core.snapshot(desk.now).pins).toMatchObject([{ requestId: 0, state: 'in-doubt', owner: 'd1/i1' }]);
    expect(desk.engine('d1', { incarnation: 'i1' })).toEqual([
      'd1 REGISTER_ROLE_ACK',
      'p1 RELEASE_KV 0',
      'c1 REQUEST_ABORTED 70 safe',
    ]);
  });
});
