/** A request’s way through a coordinator, and control signals (spec 1.6, 1.8, 14.7). */
import type { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import { finishedBody, handoffBody, openDesk, pairedDesk, submitMessage, words } from '../support/coordinator-desk.js';

type Undelivered = Parameters<Coordinator['undelivered']>[2];

describe('requests', () => {
  test('prefill gets the sampling of a prefill, decode the client’s own', () => {
    const desk = pairedDesk();
    const [submit] = desk.hear('c1', submitMessage(1, { num_tokens_total: 9, temperature: 1 }));
    expect(submit).toMatchObject({ kind: 'send', message: { header: 'SUBMIT_REQUEST' } });
    const sampling = (submit as unknown as { message: { sampling: ReadonlyMap<string, unknown> } }).message.sampling;
    expect([...sampling]).toEqual([
      ['num_tokens_total', null],
      ['temperature', 1],
      ['do_kv_handoff', true],
      ['num_tokens_to_generate', 0],
      ['skip_prompt_log_probs', true],
    ]);
  });

  test('an engine that a message cannot reach is gone, and its request goes to the next', () => {
    const desk = pairedDesk();
    desk.engine('p2');
    const [effect] = desk.hear('c1', submitMessage(1));
    const { peer, message } = effect as {
      readonly peer: string;
      readonly message: Parameters<Coordinator['undelivered']>[2];
    };
    const other = peer === 'p1' ? 'p2' : 'p1';
    expect(words(desk.core.undelivered(5, peer, message))).toEqual([`${other} SUBMIT_REQUEST 0`]);
    expect(words(desk.core.undelivered(6, other, message))).toEqual(['c1 REQUEST_ERROR 1 safe']);
  });

  test('what an engine says of a failure names no request by the coordinator’s number', () => {
    const first = 1_796_011_542_535_000;
    const desk = pairedDesk({ firstRequestId: first });
    for (const id of [7, 8]) desk.submit('c1', id);
    const reason = `no page for request ${first + 1} beside ${first}, 12345678901 bytes, block 1${first}`;
    const told = desk
      .hear('p1', { header: 'REQUEST_ERROR', requestId: first + 1, reason, sourceSafe: true })
      .find(({ kind }) => kind === 'send');
    expect(told).toMatchObject({
      peer: 'c1',
      message: { requestId: 8, reason: `no page for request 8 beside …, 12345678901 bytes, block 1${first}` },
    });
  });

  test('a failure is logged under the name that its client has for it', () => {
    const logged = (name: string | number) => {
      const desk = pairedDesk();
      desk.submit('c1', 1, { x_request_id: name });
      const error = { header: 'REQUEST_ERROR', requestId: 0, reason: 'full', sourceSafe: true } as const;
      return desk.hear('p1', error).find(({ kind }) => kind === 'log');
    };
    const fields = { request: 0, reason: 'full', sourceSafe: true };
    expect(logged('mine')).toMatchObject({ event: 'request failed', fields: { ...fields, xRequestId: 'mine' } });
    for (const none of ['x'.repeat(257), 5]) expect(logged(none)).toMatchObject({ fields: { xRequestId: null } });
  });

  test('what crosses an abort on its way is no warning', () => {
    const desk = pairedDesk();
    desk.submit('c1', 1);
    desk.prefilled('p1', 0);
    desk.say('c1', { header: 'ABORT_REQUEST', requestId: 1 });
    const late = { header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId: 0, body: finishedBody }] } as const;
    expect(desk.hear('d1', late)).toMatchObject([{ kind: 'log', level: 'debug', event: 'message ignored' }]);
    expect(desk.hear('c1', { header: 'ABORT_REQUEST', requestId: 5 })).toMatchObject([{ level: 'debug' }]);
    expect(desk.hear('d2', late)).toMatchObject([{ level: 'warn' }]);
    expect(desk.core.snapshot(0).counters['ignored']).toBe(3);
  });

  test('a handoff that decode never got releases its source', () => {
    const desk = pairedDesk();
    desk.submit('c1', 1);
    const replies = [{ requestId: 0, needsDetokenize: false, body: handoffBody() }];
    const effects = desk.hear('p1', { header: 'ENGINE_REPLY', replies });
    const sent = effects.find((effect) => effect.kind === 'send' && effect.message.header === 'SUBMIT_REQUEST_WITH_KV');
    const { message } = sent as { readonly message: Parameters<Coordinator['undelivered']>[2] };
    expect(words(desk.core.undelivered(5, 'd1', message))).toEqual(['c1 REQUEST_ERROR 1 safe', 'p1 RELEASE_KV 0']);
  });

  test('a request that its engine cannot be given fails alone, and the engine keeps its place and its others', () => {
    const reason = 'its engine reads its requests too slowly';
    const desk = pairedDesk();
    desk.submit('c1', 1);
    const [prefill] = desk.hear('c1', submitMessage(2)) as unknown as [{ readonly message: Undelivered }];
    expect(words(desk.core.undelivered(5, 'p1', prefill.message, reason))).toEqual([
      'c1 REQUEST_ERROR 2 safe',
      'p1 RELEASE_KV 1',
    ]);
    const replies = [{ requestId: 0, needsDetokenize: false, body: handoffBody() }];
    const effects = desk.hear('p1', { header: 'ENGINE_REPLY', replies });
    const sent = effects.find((effect) => effect.kind === 'send' && effect.message.header === 'SUBMIT_REQUEST_WITH_KV');
    const { message } = sent as unknown as { readonly message: Undelivered };
    expect(words(desk.core.undelivered(6, 'd1', message, reason))).toEqual([
      'c1 REQUEST_ERROR 1 safe',
      'p1 RELEASE_KV 0',
    ]);
    const { engines, pins, counters } = desk.core.snapshot(7);
    expect(engines.map(({ peer, active }) => `${peer} ${active}`)).toEqual(['p1 0', 'd1 0']);
    expect(pins).toEqual([]);
    expect(counters).toMatchObject({ failed: 2, enginesRemoved: 0 });

    const plain = openDesk({ isDisaggregated: false });
    plain.say('e1', { header: 'REGISTER' });
    const [run] = plain.hear('c1', submitMessage(1)) as unknown as [{ readonly message: Undelivered }];
    expect(words(plain.core.undelivered(5, 'e1', run.message, reason))).toEqual(['c1 REQUEST_ERROR 1 safe']);
    expect(words(plain.core.undelivered(6, 'e1', run.message, reason))).toEqual([]);
    expect(plain.core.snapshot(7).engines).toHaveLength(1);
  });

  test('a client that is gone leaves nothing running', () => {
    const desk = pairedDesk();
    desk.submit('c1', 1);
    desk.prefilled('p1', 0);
    expect(desk.lose('c1')).toEqual(['d1 ABORT_REQUEST 0']);
    expect(desk.say('d1', { header: 'REQUEST_ABORTED', requestId: 0, sourceSafe: true })).toEqual(['p1 RELEASE_KV 0']);
    expect(desk.core.snapshot(9).pins).toEqual([]);
  });

  test('deltas reach the client while it waits, and no longer', () => {
    const desk = pairedDesk();
    desk.submit('c1', 1);
    desk.prefilled('p1', 0);
    const partial = { header: 'ENGINE_REPLY_PARTIAL', partials: [{ requestId: 0, body: finishedBody }] } as const;
    expect(desk.say('d1', partial)).toEqual(['c1 ENGINE_REPLY_PARTIAL 1']);
    desk.say('c1', { header: 'ABORT_REQUEST', requestId: 1 });
    expect(desk.say('d1', partial)).toEqual([]);
  });

  test('the loss of decode after the source was released is safe in gen-c, and told as the reference does in gen-b', () => {
    for (const [behaviour, word] of [
      ['gen-c', 'safe'],
      ['gen-b', 'unsafe'],
    ] as const) {
      const desk = pairedDesk({ behaviour });
      desk.submit('c1', 1);
      desk.prefilled('p1', 0);
      desk.say('d1', { header: 'KV_READ_DONE', requestId: 0 });
      expect(desk.lose('d1')).toEqual([`c1 REQUEST_ERROR 1 ${word}`]);
      expect(desk.core.snapshot(9).requests.terminating).toBe(0);
    }
  });

  test('the loss of a decode engine that is sent to leaves nothing to prove; of one that reads, its pin', () => {
    const lost = (behaviour: 'gen-b' | 'gen-c', transport: string): string[] => {
      const desk = openDesk({ behaviour });
      for (const peer of ['p1', 'd1']) desk.engine(peer, { transport });
      desk.submit('c1', 1);
      desk.prefilled('p1', 0);
      if (transport === 'nccl') desk.say('d1', { header: 'KV_TRANSFER_READY', requestId: 0, cachedPrefixBlocks: 0 });
      return desk.lose('d1');
    };
    expect(lost('gen-c', 'nccl')).toEqual([
      'c1 REQUEST_ERROR 1 unsafe',
      'p1 RELEASE_KV 0',
      'c1 REQUEST_ABORTED 1 safe',
    ]);
    for (const [behaviour, transport] of [['gen-b', 'nccl'] as const, ['gen-c', 'nixl'] as const])
      expect(lost(behaviour, transport)).toEqual(['c1 REQUEST_ERROR 1 unsafe']);
  });

  test.each([true, false])(
    'a push that an abort ended is no failure of its request (source safe: %s)',
    (sourceSafe) => {
      const desk = openDesk();
      for (const peer of ['p1', 'd1']) desk.engine(peer, { transport: 'nccl' });
      desk.submit('c1', 1);
      desk.prefilled('p1', 0);
      desk.say('d1', { header: 'KV_TRANSFER_READY', requestId: 0, cachedPrefixBlocks: 0 });
      expect(desk.say('c1', { header: 'ABORT_REQUEST', requestId: 1 })).toEqual(['d1 ABORT_REQUEST 0']);
      // The target gave up first, and its source noticed.
      expect(
        desk.say('p1', { header: 'REQUEST_ERROR', requestId: 0, reason: 'the target is gone', sourceSafe }),
      ).toEqual([]);
      expect(desk.say('d1', { header: 'REQUEST_ABORTED', requestId: 0, sourceSafe: true })).toEqual([
        'p1 RELEASE_KV 0',
        'c1 REQUEST_ABORTED 1 safe',
      ]);
      expect(desk.core.snapshot(9).counters).toMatchObject({ aborted: 1, failed: 0 });
    },
  );

  test('engines without roles: the least loaded gets it; a late reply of one that is gone counts, then time is up', () => {
    const desk = openDesk({ isDisaggregated: false, limits: { lateReplyMs: 50 } });
    for (const peer of ['e1', 'e2']) desk.say(peer, { header: 'REGISTER' });
    expect([1, 2, 3].flatMap((id) => desk.submit('c1', id))).toEqual([
      'e1 SUBMIT_REQUEST 0',
      'e2 SUBMIT_REQUEST 1',
      'e1 SUBMIT_REQUEST 2',
    ]);
    desk.lose('e1');
    expect(desk.finished('e1', 0)).toEqual(['c1 ENGINE_REPLY 1']);
    expect(desk.finished('e1', 0)).toEqual([]);
    expect(words(desk.core.tick(1000))).toEqual(['c1 REQUEST_ERROR 3 safe']);
    expect(desk.finished('e2', 1)).toEqual(['c1 ENGINE_REPLY 2']);
  });

  test('without any engine a request is refused, and the coordinator goes on', () => {
    const desk = openDesk({ isDisaggregated: false });
    expect(desk.submit('c1', 1)).toEqual(['c1 REQUEST_ERROR 1 safe']);
    desk.say('e1', { header: 'REGISTER' });
    expect(desk.submit('c1', 2)).toEqual(['e1 SUBMIT_REQUEST 1']);
  });
});

describe('signals', () => {
  test('legal ones are broadcast, illegal ones are not; STOP leaves the coordinator open to new engines', () => {
    const desk = pairedDesk();
    const say = (header: 'PAUSE' | 'UNPAUSE' | 'SUSPEND' | 'RESUME' | 'STOP' | 'START_CUDA_PROFILER') =>
      desk.say('c1', { header });
    expect(say('SUSPEND')).toEqual([]);
    expect(say('PAUSE')).toEqual(['p1 PAUSE', 'd1 PAUSE']);
    expect(say('PAUSE')).toEqual([]);
    expect(say('START_CUDA_PROFILER')).toHaveLength(2);
    expect(desk.say('c1', { header: 'SET_GENERATION_EPOCH', epoch: 7 })).toHaveLength(2);
    expect(say('STOP')).toEqual(['p1 STOP', 'd1 STOP']);
    expect(desk.core.snapshot(0)).toMatchObject({ state: 'RUNNING', epoch: 7 });
  });

  test('a client can end the loop', () => {
    expect(pairedDesk().hear('c1', { header: 'SHUTDOWN' })).toEqual([
      { kind: 'stop', reason: 'a client asked for it' },
    ]);
  });
});
