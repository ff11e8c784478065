/** Engines that stopped to report: while others of their pool are heard, they get nothing new; they lose nothing that they have. */
import { wireMap } from '../../lib/control/protocol/wire-bytes.js';
import { CoordinatorDesk, submitWithKv } from '../support/coordinator-desk.js';

const every = 1_000;
const reports = (desk: CoordinatorDesk, peer: string) =>
  desk.hear(peer, { header: 'ENGINE_STATUS', status: wireMap({ interval_ms: every }) });

/** A desk with engines that all reported at 0, at a time at which a report of all of them is overdue. */
function overdue(...peers: string[]): CoordinatorDesk {
  const desk = new CoordinatorDesk();
  for (const peer of peers) {
    desk.engine(peer);
    reports(desk, peer);
  }
  desk.hear('c1', { header: 'CONNECT' });
  desk.now = 4 * every;
  return desk;
}

/** Who gets the next requests. */
const taken = (desk: CoordinatorDesk, first: number): string[] =>
  [0, 1, 2, 3].map((index) => desk.submit('c1', first + index)[0]!.split(' ')[0]!);

test('a silent prefill engine gets nothing new until it is heard again', () => {
  const desk = overdue('p1', 'p2', 'd1');
  reports(desk, 'p2');
  expect(taken(desk, 1)).toEqual(['p2', 'p2', 'p2', 'p2']);
  // Any word of it will do.
  desk.hear('p1', { header: 'REQUEST_ABORTED', requestId: 999, sourceSafe: true });
  expect(taken(desk, 5)).toEqual(['p1', 'p1', 'p1', 'p1']);
});

test('nor does a silent decode engine, whoever brings the handoff', () => {
  const desk = overdue('p1', 'd1', 'd2');
  for (const peer of ['p1', 'd2']) reports(desk, peer);
  const decodes = [0, 1, 2].flatMap((id) => {
    desk.submit('c1', id + 1);
    return desk.prefilled('p1', id).filter((word) => word.includes('SUBMIT_REQUEST_WITH_KV'));
  });
  expect(decodes.map((word) => word.split(' ')[0])).toEqual(['d2', 'd2', 'd2']);
  expect(desk.say('c1', submitWithKv(9))[0]).toMatch(/^d2 SUBMIT_REQUEST_WITH_KV /);
});

test('where all are silent, it is as if none were', () => {
  const desk = overdue('p1', 'p2', 'd1');
  expect(new Set(taken(desk, 1))).toEqual(new Set(['p1', 'p2']));
});

test('one that never reports is never silent', () => {
  const desk = overdue('p1', 'd1');
  desk.engine('p2');
  desk.now = 1e9;
  expect(new Set(taken(desk, 1))).toEqual(new Set(['p2']));
});

test('what a silent engine has, it keeps, and its replies count', () => {
  const desk = new CoordinatorDesk();
  for (const peer of ['p1', 'd1']) desk.engine(peer);
  reports(desk, 'p1');
  desk.hear('c1', { header: 'CONNECT' });
  desk.submit('c1', 1);
  desk.now = 100 * every;
  expect(desk.core.tick(desk.now)).toEqual([]);
  expect(desk.core.snapshot(desk.now).engines).toHaveLength(2);
  expect(desk.prefilled('p1', 0)).toEqual(expect.arrayContaining(['d1 SUBMIT_REQUEST_WITH_KV 0']));
});
