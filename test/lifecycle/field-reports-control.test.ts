/** Reports about routers and their messages, each with the promise that makes it impossible here; the core alone, no sockets. */
import { CoordinatorDesk, deskWith, handoffBody } from '../support/coordinator-desk.js';

const abort = (requestId: number) => ({ header: 'ABORT_REQUEST', requestId }) as const;

describe('field report 11: a client that leaves between the end of prefill and the start of decode', () => {
  test('while its prompt is computed: the state that arrives afterwards is released, and decode hears nothing', () => {
    const { desk, id } = deskWith('prefill');
    expect(desk.say('c1', abort(70))).toEqual([`p1 ABORT_REQUEST ${id}`]);
    expect(desk.prefilled('p1', id, handoffBody())).toEqual([`p1 RELEASE_KV ${id}`, 'c1 REQUEST_ABORTED 70 safe']);
    expect(desk.core.snapshot(99).pins).toEqual([]);
  });

  test('while its state waits for room on decode: the source is released at once', () => {
    const { desk, id } = deskWith('waitingDecode');
    const heard = desk.say('c1', abort(70));
    expect(heard).toContain(`p1 RELEASE_KV ${id}`);
    expect(heard.filter((word) => word.startsWith('d1'))).toEqual([]);
    // The room that comes free goes to nobody: the one who waited for it is gone.
    desk.say('d1', { header: 'KV_READ_DONE', requestId: 0 });
    expect(desk.finished('d1', 0).filter((word) => word.startsWith('d1'))).toEqual([]);
    expect(desk.core.snapshot(99).pins).toEqual([]);
  });

  test('by losing its connection, in either place', () => {
    for (const state of ['prefill', 'waitingDecode'] as const) {
      const { desk, id } = deskWith(state);
      const heard = [...desk.lose('c1'), ...(state === 'prefill' ? desk.prefilled('p1', id, handoffBody()) : [])];
      expect(heard).toContain(`p1 RELEASE_KV ${id}`);
      expect(heard.filter((word) => word.includes('WITH_KV'))).toEqual([]);
    }
  });
});

describe('field report 100: what the router believes to be cached', () => {
  const hashes = [11n, 12n, 13n];
  /** Which of two prefill engines the next request with the prefix goes to; it is prefilled, decoded and gone. */
  function serve(desk: CoordinatorDesk, requestId: number, wanted: bigint[]): string {
    const [sent] = desk.submit('c1', requestId, {}, wanted);
    const [engine, , id] = sent!.split(' ') as [string, string, string];
    expect(desk.prefilled(engine, Number(id))).toContain(`d1 SUBMIT_REQUEST_WITH_KV ${id}`);
    expect(desk.say('d1', { header: 'KV_READ_DONE', requestId: Number(id) })).toEqual([`${engine} RELEASE_KV ${id}`]);
    expect(desk.finished('d1', Number(id))).toEqual([`c1 ENGINE_REPLY ${requestId}`]);
    return engine;
  }
  function opened(): CoordinatorDesk {
    const desk = new CoordinatorDesk({ policy: 'longest_prefix' });
    desk.say('c1', { header: 'CONNECT' });
    for (const engine of ['p1', 'p2', 'd1']) desk.engine(engine, { incarnation: 'i1' });
    return desk;
  }

  test('comes from what it sent itself, in order: no events are lost, reordered or repeated', () => {
    const desk = opened();
    const holder = serve(desk, 0, hashes);
    for (const id of [1, 2, 3]) expect(serve(desk, id, hashes)).toBe(holder);
  });

  test('ends with the engine: restarted under the same name it is believed to hold nothing', () => {
    const desk = opened();
    const prefixes = [0n, 1n, 2n, 3n, 4n, 5n, 6n, 7n].map((index) => [100n + index, 200n + index]);
    const held = prefixes.filter((prefix, index) => serve(desk, index, prefix) === 'p1');
    const again = (first: number): Set<string> =>
      new Set(held.map((prefix, index) => serve(desk, first + index, prefix)));
    expect(held.length).toBeGreaterThan(2);
    expect(again(20)).toEqual(new Set(['p1']));
    desk.lose('p1');
    desk.engine('p1', { incarnation: 'i2' });
    // Nobody holds them, so that equals take turns.
    expect(again(40)).toEqual(new Set(['p1', 'p2']));
  });

  test('where it is wrong it costs time only: the engine computes what it does not have, and the request is served', () => {
    const desk = opened();
    const holder = serve(desk, 0, hashes);
    const other = holder === 'p1' ? 'p2' : 'p1';
    desk.lose(holder);
    // The only engine left has never seen the prefix.
    expect(serve(desk, 1, hashes)).toBe(other);
    expect(serve(desk, 2, [])).toBe(other);
  });
});
