/** The coordinator's promises one by one: spec 14.7, ownership, signals, and what restarts prove. */
import type { Coordinator } from '../../lib/control/coordinator/coordinator.js';
import { expectedEngines } from '../../lib/control/coordinator/expected-engines.js';
import { waits } from '../../lib/control/coordinator/request-table.js';
import { decodeValue } from '../../lib/control/protocol/wire-bytes.js';
import type { HeldHandoff } from '../../lib/control/protocol/messages.js';
import { Float64, type Wire } from '../../lib/control/protocol/wire-value.js';
import {
  CoordinatorDesk,
  deskWith,
  type EngineWords,
  finishedBody,
  handoffBody,
  submitMessage,
  submitWithKv,
  wire,
  words,
} from '../support/coordinator-desk.js';
import { parseInferenceShards } from '../../lib/topology/inference-shards.js';

const state = wire({ element_size: 2, ssm_layout: wire({ layer_start: 0, num_layers: 4, dims: wire({ nheads: 4 }) }) });
const hybrid = (slots: number) => ({
  ssm: wire({ conv: state, recurrent: state }),
  ssm_slot_capacity: slots,
  ssm_handoff_max_slots: 1,
});
const hybridBody = handoffBody(wire({ ssm: wire({ conv: 1 }) }));

function open(options = {}): CoordinatorDesk {
  const desk = new CoordinatorDesk(options);
  desk.say('c1', { header: 'CONNECT' });
  return desk;
}

function pair(options = {}): CoordinatorDesk {
  const desk = open(options);
  desk.engine('p1', { incarnation: 'i1' });
  desk.engine('d1', { incarnation: 'i1' });
  return desk;
}

describe('capacity', () => {
  test('waits first come, first served, and fills the room that each release makes', () => {
    const desk = open();
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
    const desk = open();
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
    const desk = pair();
    desk.submit('c1', 1);
    expect(desk.prefilled('p1', 0, hybridBody)).toEqual(['c1 REQUEST_ERROR 1 safe', 'p1 RELEASE_KV 0']);
  });

  test('bounds of clients and requests are told, and take nothing', () => {
    const desk = open({ limits: { requestsPerClientMax: 1, clientsMax: 1 } });
    desk.engine('p1');
    desk.submit('c1', 1);
    expect(desk.submit('c1', 2)).toEqual(['c1 REQUEST_ERROR 2 safe']);
    expect(desk.say('c2', { header: 'CONNECT' })).toEqual([]);
    expect(desk.core.snapshot(0).clients).toBe(1);
  });

  test('a queue deadline ends the wait, not the prefill that runs', () => {
    const desk = open({ limits: { queueMs: 100 } });
    desk.engine('p1', { meta: { request_capacity: 1 } });
    desk.submit('c1', 1);
    desk.submit('c1', 2);
    expect(words(desk.core.tick(90))).toEqual([]);
    expect(words(desk.core.tick(200))).toEqual(['c1 REQUEST_ERROR 2 safe']);
    expect(desk.core.snapshot(200).requests.prefill).toBe(1);
  });
});

describe('registration', () => {
  const reason = (desk: CoordinatorDesk, peer: string, said: Parameters<CoordinatorDesk['engine']>[1]): string => {
    const words = desk.engine(peer, said);
    return words.join();
  };

  test.each([
    ['another geometry', { meta: { head_dim: 128 } }],
    ['a capacity of 0', { meta: { request_capacity: 0 } }],
    ['no capacity', { meta: { request_capacity: null } }],
    ['a layer geometry that is not whole', { meta: { num_layers_global: null } }],
    ['a rank without its size', { meta: { tp_rank: 0 } }],
    ['a rank that is not the only one of its size', { meta: { tp_rank: 0, tp_size: 2, pp_rank: 0, pp_size: 1 } }],
    ['a stage that is missing', { meta: { tp_rank: 0, tp_size: 1, pp_rank: 0, pp_size: 2 } }],
    ['SSM state without a layout', { meta: { ...hybrid(1), ssm: wire({ conv: wire({}), recurrent: state }) } }],
  ])('%s is rejected, and the rest goes on', (_name, said) => {
    const desk = pair();
    expect(reason(desk, 'd2', said)).toBe('d2 REGISTRATION_ERROR');
    expect(desk.submit('c1', 1)).toEqual(['p1 SUBMIT_REQUEST 0']);
    expect(desk.core.snapshot(0).engines).toHaveLength(2);
  });

  test('gen-b: one transport for all; gen-c: one for each pair', () => {
    const b = pair({ behaviour: 'gen-b' });
    expect(b.engine('d2', { transport: 'nccl' })).toEqual(['d2 REGISTRATION_ERROR']);
    const c = open();
    c.engine('p1', { transport: 'nixl' });
    c.engine('d1', { transport: 'nccl' });
    c.engine('d2', { transport: 'host', transports: ['host', 'nixl'], incarnation: 'i1' });
    for (const id of [0, 1, 2]) {
      c.submit('c1', id);
      expect(c.prefilled('p1', id)).toEqual([`d2 SUBMIT_REQUEST_WITH_KV ${id}`]);
    }
    c.lose('d2');
    c.submit('c1', 3);
    expect(c.prefilled('p1', 3)).toEqual(['c1 REQUEST_ERROR 3 safe', 'p1 RELEASE_KV 3']);
  });

  describe('of a deployment that is known', () => {
    const engines = expectedEngines(parseInferenceShards('tp=2,role=prefill+tp=1,dp=2,role=decode'));
    const ranks = [0, 1].map((tp_rank) => ({ tp_rank, tp_size: 2, pp_rank: 0, pp_size: 1 }));

    test('the engines come under their names', () => {
      const desk = open({ engines });
      expect(desk.core.snapshot(0).missing).toEqual(['prefill_s0_dp0', 'decode_s1_dp0', 'decode_s1_dp1']);
      expect(desk.engine('prefill_s0_dp0', { ranks })).toEqual(['prefill_s0_dp0 REGISTER_ROLE_ACK']);
      for (const peer of ['decode_s1_dp0', 'decode_s1_dp1'])
        expect(desk.engine(peer)).toEqual([`${peer} REGISTER_ROLE_ACK`]);
      expect(desk.core.snapshot(0).missing).toEqual([]);
      desk.lose('decode_s1_dp0');
      expect(desk.core.snapshot(0).missing).toEqual(['decode_s1_dp0']);
    });

    test.each<[string, string, EngineWords, string]>([
      [
        'an engine of another name',
        'decode_s1_dp2',
        {},
        'identity: expected one of prefill_s0_dp0, decode_s1_dp0, decode_s1_dp1, got "decode_s1_dp2"',
      ],
      ['one of too few ranks', 'prefill_s0_dp0', {}, 'expected 2 ranks, tp 2 × pp 1 of prefill_s0_dp0, got 1'],
      [
        'one of another shape',
        'prefill_s0_dp0',
        { ranks: [0, 1].map((pp_rank) => ({ tp_rank: 0, tp_size: 1, pp_rank, pp_size: 2 })) },
        'transfer metadata[0].tp_size: expected 2, as prefill_s0_dp0 has, got 1',
      ],
      [
        'one of another role',
        'decode_s1_dp0',
        { role: 'prefill' },
        'expected decode, as decode_s1_dp0 has, got prefill',
      ],
    ])('%s is rejected', (_name, peer, said, message) => {
      const desk = open({ engines });
      desk.engine(peer, said);
      expect(desk.refusals).toEqual([expect.stringContaining(message)]);
      expect(desk.core.snapshot(0).engines).toEqual([]);
    });

    test('so is one without a role of another name', () => {
      const desk = open({ isDisaggregated: false, engines: expectedEngines(parseInferenceShards('dp=2')) });
      expect(['mp-coord-1', 'mp-coord-2'].map((peer) => desk.say(peer, { header: 'REGISTER' }))).toEqual([
        [],
        ['mp-coord-2 REGISTRATION_ERROR'],
      ]);
    });
  });

  test('the same identity again ends what the stale engine had, and may not change its role', () => {
    const desk = pair();
    desk.submit('c1', 1);
    expect(desk.engine('p1')).toEqual(['c1 REQUEST_ERROR 1 safe', 'p1 REGISTER_ROLE_ACK']);
    expect(desk.core.snapshot(0).engines.find(({ peer }) => peer === 'p1')).toMatchObject({ active: 0, queued: 0 });
    expect(desk.engine('p1', { role: 'decode' })).toEqual(['p1 REGISTRATION_ERROR']);
  });

  test('once all have left, the next may be of another model', () => {
    const desk = pair();
    desk.lose('p1');
    desk.lose('d1');
    expect(desk.engine('p1', { meta: { head_dim: 128 } })).toEqual(['p1 REGISTER_ROLE_ACK']);
  });

  test('engines with a role and engines without do not mix', () => {
    expect(pair().say('e1', { header: 'REGISTER' })).toEqual(['e1 REGISTRATION_ERROR']);
    expect(open({ isDisaggregated: false }).engine('p1')).toEqual(['p1 REGISTRATION_ERROR']);
  });
});

describe('requests', () => {
  test('prefill gets the sampling of a prefill, decode the client’s own', () => {
    const desk = pair();
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
    const desk = pair();
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

  test('a handoff that decode never got releases its source', () => {
    const desk = pair();
    desk.submit('c1', 1);
    const replies = [{ requestId: 0, needsDetokenize: false, body: handoffBody() }];
    const effects = desk.hear('p1', { header: 'ENGINE_REPLY', replies });
    const sent = effects.find((effect) => effect.kind === 'send' && effect.message.header === 'SUBMIT_REQUEST_WITH_KV');
    const { message } = sent as { readonly message: Parameters<Coordinator['undelivered']>[2] };
    expect(words(desk.core.undelivered(5, 'd1', message))).toEqual(['c1 REQUEST_ERROR 1 safe', 'p1 RELEASE_KV 0']);
  });

  test('a client that is gone leaves nothing running', () => {
    const desk = pair();
    desk.submit('c1', 1);
    desk.prefilled('p1', 0);
    expect(desk.lose('c1')).toEqual(['d1 ABORT_REQUEST 0']);
    expect(desk.say('d1', { header: 'REQUEST_ABORTED', requestId: 0, sourceSafe: true })).toEqual(['p1 RELEASE_KV 0']);
    expect(desk.core.snapshot(9).pins).toEqual([]);
  });

  test('deltas reach the client while it waits, and no longer', () => {
    const desk = pair();
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
    ]) {
      const desk = pair({ behaviour });
      desk.submit('c1', 1);
      desk.prefilled('p1', 0);
      desk.say('d1', { header: 'KV_READ_DONE', requestId: 0 });
      expect(desk.lose('d1')).toEqual([`c1 REQUEST_ERROR 1 ${word}`]);
      expect(desk.core.snapshot(9).requests.terminating).toBe(0);
    }
  });

  test('the loss of a decode engine that is sent to leaves nothing to prove; of one that reads, its pin', () => {
    const lost = (behaviour: 'gen-b' | 'gen-c', transport: string): string[] => {
      const desk = open({ behaviour });
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
      const desk = open();
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
    const desk = open({ isDisaggregated: false, limits: { lateReplyMs: 50 } });
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
    const desk = open({ isDisaggregated: false });
    expect(desk.submit('c1', 1)).toEqual(['c1 REQUEST_ERROR 1 safe']);
    desk.say('e1', { header: 'REGISTER' });
    expect(desk.submit('c1', 2)).toEqual(['e1 SUBMIT_REQUEST 1']);
  });
});

describe('signals', () => {
  test('legal ones are broadcast, illegal ones are not; STOP leaves the coordinator open to new engines', () => {
    const desk = pair();
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
    expect(pair().hear('c1', { header: 'SHUTDOWN' })).toEqual([{ kind: 'stop', reason: 'a client asked for it' }]);
  });
});

describe('ownership', () => {
  const offered = (): CoordinatorDesk => {
    const desk = open({ isDisaggregated: false });
    desk.say('e1', { header: 'REGISTER' });
    desk.submit('c1', 1, { do_kv_handoff: true });
    desk.say('e1', { header: 'REGISTER_KV', requestId: 0 });
    desk.finished('e1', 0);
    return desk;
  };
  const claim = (desk: CoordinatorDesk, owner: string, instance = 'run1') =>
    desk
      .hear('c1', { header: 'CLAIM_KV', requestId: 0, instance, owner })
      .flatMap((effect) =>
        effect.kind === 'send' && effect.message.header === 'CLAIM_KV_ACK' ? [effect.message.granted] : [],
      );

  test('the first claim wins, the same owner may repeat it, and fences hold', () => {
    const desk = offered();
    expect([claim(desk, 'a', 'run0'), claim(desk, ''), claim(desk, 'a'), claim(desk, 'a'), claim(desk, 'b')]).toEqual([
      [false],
      [false],
      [true],
      [true],
      [false],
    ]);
    expect(desk.core.snapshot(0).pins).toMatchObject([{ requestId: 0, owner: 'a', state: 'claimed' }]);
  });

  test('a fenced release is forwarded and acknowledged, also when it is repeated; another fence is not', () => {
    const desk = offered();
    expect(desk.say('c1', { header: 'RELEASE_KV', requestId: 0, instance: 'run0' })).toEqual([]);
    const release = { header: 'RELEASE_KV', requestId: 0, instance: 'run1' } as const;
    expect(desk.say('c1', release)).toEqual(['e1 RELEASE_KV 0', 'c1 RELEASE_KV_ACK 0']);
    expect(desk.say('c1', release)).toEqual(['c1 RELEASE_KV_ACK 0']);
    expect(claim(desk, 'a')).toEqual([false]);
    expect(desk.say('e1', { header: 'REGISTER_KV', requestId: 0 })).toEqual([]);
  });

  test('while the engine is away there is no acknowledgement; after its return there is', () => {
    const desk = offered();
    desk.lose('e1');
    const release = { header: 'RELEASE_KV', requestId: 0, instance: 'run1' } as const;
    expect(desk.say('c1', release)).toEqual([]);
    desk.say('e1', { header: 'REGISTER' });
    expect(desk.say('c1', release)).toEqual(['e1 RELEASE_KV 0', 'c1 RELEASE_KV_ACK 0']);
  });

  test('an attested owner’s handoffs are released, and it claims nothing more', () => {
    const desk = offered();
    claim(desk, 'a');
    const attest = { header: 'RELEASE_KV_OWNER', instance: 'run1', owner: 'a' } as const;
    expect(desk.say('c1', { ...attest, owner: '' })).toEqual([]);
    expect(desk.say('c1', { ...attest, instance: 'run0' })).toEqual([]);
    expect(desk.say('c1', attest)).toEqual(['e1 RELEASE_KV 0', 'c1 RELEASE_KV_OWNER_ACK']);
    desk.submit('c1', 2);
    desk.say('e1', { header: 'REGISTER_KV', requestId: 1 });
    expect(desk.hear('c1', { header: 'CLAIM_KV', requestId: 1, instance: 'run1', owner: 'a' })).toMatchObject([
      { message: { granted: false } },
    ]);
  });

  test('what the coordinator hands over itself cannot be claimed or released from outside', () => {
    const { desk, id } = deskWith('importing');
    expect(desk.say('c1', { header: 'RELEASE_KV', requestId: id, instance: 'run1' })).toEqual([]);
    expect(claim(desk, 'a')).toEqual([false]);
  });
});

describe('returns', () => {
  const held = (requestId: number, more: Partial<HeldHandoff>): HeldHandoff => ({
    requestId,
    state: 'pinned',
    peerInstance: null,
    peerIncarnation: null,
    ageMs: 5,
    blocks: 2,
    ...more,
  });

  test('a reader that is lost keeps the pin; the same process back without it ends the doubt', () => {
    const { desk } = deskWith('importing');
    expect(desk.lose('d1')).toEqual(['c1 REQUEST_ERROR 70 unsafe']);
    expect(desk.engine('d1', { incarnation: 'i2' })).toEqual(['d1 REGISTER_ROLE_ACK']);
    expect(desk.core.snapshot(0).pins).toMatchObject([{ state: 'in-doubt', owner: 'd1/i1' }]);
    expect(desk.engine('d1', { incarnation: 'i1' })).toEqual([
      'd1 REGISTER_ROLE_ACK',
      'p1 RELEASE_KV 0',
      'c1 REQUEST_ABORTED 70 safe',
    ]);
  });

  test('back and still reading: it is told to stop, and the pin waits for its word', () => {
    const { desk } = deskWith('importing');
    desk.lose('d1');
    const importing = held(0, { state: 'importing', peerInstance: 'p1', peerIncarnation: 'i1' });
    expect(desk.engine('d1', { incarnation: 'i1', held: [importing] })).toEqual([
      'd1 REGISTER_ROLE_ACK',
      'd1 ABORT_REQUEST 0',
    ]);
    expect(desk.say('d1', { header: 'REQUEST_ABORTED', requestId: 0, sourceSafe: true })).toEqual([
      'p1 RELEASE_KV 0',
      'c1 REQUEST_ABORTED 70 safe',
    ]);
  });

  test('an attestation ends the doubt, but not of a reader that is registered', () => {
    const { desk } = deskWith('importing');
    const attest = { header: 'RELEASE_KV_OWNER', instance: 'run1', owner: 'd1/i1' } as const;
    expect(desk.say('c1', attest)).toEqual([]);
    desk.lose('d1');
    expect(desk.say('c1', attest)).toEqual([
      'p1 RELEASE_KV 0',
      'c1 REQUEST_ABORTED 70 safe',
      'c1 RELEASE_KV_OWNER_ACK',
    ]);
  });

  test('after a restart of the coordinator a pin is released on its reader’s word only', () => {
    const desk = open({ firstRequestId: 1000 });
    const reading = { state: 'importing', peerInstance: 'p1', peerIncarnation: 'i1' } as const;
    desk.engine('p1', {
      incarnation: 'i1',
      held: [
        held(1, { peerInstance: 'd1', peerIncarnation: 'i1' }),
        held(2, { peerInstance: 'd1', peerIncarnation: 'i1' }),
        held(3, {}),
        held(4, {}),
      ],
    });
    expect(desk.core.snapshot(0).pins.map(({ requestId, state: pin }) => `${requestId} ${pin}`)).toEqual(
      [1, 2, 3, 4].map((id) => `${id} in-doubt`),
    );
    expect(desk.say('c1', { header: 'RELEASE_KV', requestId: 1, instance: null })).toEqual([]);
    expect(desk.engine('d1', { incarnation: 'i1', held: [held(2, reading), held(3, reading)] })).toEqual([
      'd1 REGISTER_ROLE_ACK',
      'd1 ABORT_REQUEST 2',
      'd1 ABORT_REQUEST 3',
      'p1 RELEASE_KV 1',
    ]);
    expect(desk.say('d1', { header: 'KV_READ_DONE', requestId: 2 })).toEqual(['p1 RELEASE_KV 2']);
    expect(desk.say('d1', { header: 'REQUEST_ABORTED', requestId: 3, sourceSafe: true })).toEqual(['p1 RELEASE_KV 3']);
    // Nobody has said who reads it.
    expect(desk.core.snapshot(0).pins).toMatchObject([{ requestId: 4, owner: null, state: 'in-doubt' }]);
    // A prefill that ended after the registration cannot have been passed on by the run before; one from before can.
    expect(desk.prefilled('p1', 9)).toEqual(['p1 RELEASE_KV 9']);
    expect(desk.prefilled('p1', 4)).toEqual([]);
  });

  test('a status reply says all that the snapshot says, in the words of the wire', () => {
    const { desk } = deskWith('importing');
    const [effect] = desk.hear('anybody', { header: 'STATUS' });
    const { status } = (effect as unknown as { message: { status: ReadonlyMap<string, unknown> } }).message;
    expect(status.get('instance')).toBe('run1');
    expect(status.get('pins_total')).toBe(1);
    expect(
      (status.get('engines') as ReadonlyMap<string, unknown>[]).map((engine) => engine.get('request_capacity')),
    ).toEqual([8, 8]);
  });
});

test('agents’ own metadata is put back for decode, and strangers are refused', () => {
  const desk = open();
  desk.engine('p1', { meta: { agent_name: 'a', agent_metadata_b64: 'QUJD' } });
  desk.engine('d1');
  const replies = [{ requestId: 0, needsDetokenize: false, body: handoffBody(wire({ agent_name: 'a', x: 1 })) }];
  desk.submit('c1', 1);
  const sent = desk.hear('p1', { header: 'ENGINE_REPLY', replies }).find((effect) => effect.kind === 'send');
  const { kvMeta } = (sent as unknown as { message: { kvMeta: Uint8Array } }).message;
  expect(decodeValue(kvMeta)).toEqual(wire({ agent_name: 'a', x: 1, agent_metadata_b64: 'QUJD' }));
  const refused = [
    wire({ agent_name: 'b' }),
    wire({ agent_name: 5 }),
    wire({ agent_name: 'a', agent_metadata_b64: 'QUJE' }),
    wire({ agent_name: 'a', tp_metas: [wire({ agent_name: 'b' })] }),
  ];
  refused.forEach((kvMeta, index) => {
    desk.submit('c1', 2 + index);
    expect(desk.prefilled('p1', 1 + index, handoffBody(kvMeta))).toEqual([
      `c1 REQUEST_ERROR ${2 + index} safe`,
      `p1 RELEASE_KV ${1 + index}`,
    ]);
  });
});

test.each<[string, Wire, Wire]>([
  [
    'of every rank',
    { tp_metas: [{ agent_name: 'a' }, { agent_name: 'a', y: 2 }] },
    {
      tp_metas: [
        { agent_name: 'a', agent_metadata_b64: 'QUJD' },
        { agent_name: 'a', y: 2, agent_metadata_b64: 'QUJD' },
      ],
    },
  ],
  [
    'that was not left out',
    { agent_name: 'a', agent_metadata_b64: 'QUJD', x: 1 },
    { agent_name: 'a', agent_metadata_b64: 'QUJD', x: 1 },
  ],
  [
    'beside fifteen keys',
    { agent_name: 'a', ...Object.fromEntries(Array.from({ length: 14 }, (_, at) => [`k${at}`, at])) },
    {
      agent_name: 'a',
      ...Object.fromEntries(Array.from({ length: 14 }, (_, at) => [`k${at}`, at])),
      agent_metadata_b64: 'QUJD',
    },
  ],
] as unknown as [string, Wire, Wire][])('agents’ metadata %s is as registered', (_title, given, expected) => {
  const desk = open();
  desk.engine('p1', { meta: { agent_name: 'a', agent_metadata_b64: 'QUJD' } });
  desk.engine('d1');
  desk.submit('c1', 1);
  const replies = [{ requestId: 0, needsDetokenize: false, body: handoffBody(mapsOf(given)) }];
  const sent = desk.hear('p1', { header: 'ENGINE_REPLY', replies }).find((effect) => effect.kind === 'send');
  const { kvMeta } = (sent as unknown as { message: { kvMeta: Uint8Array } }).message;
  expect(decodeValue(kvMeta)).toEqual(mapsOf(expected));
});

test.each<[string, Wire]>([
  ['no list', wire({})],
  ['a fraction', [1, new Float64(2)]],
  ['text', ['4']],
  ['more than a number holds', [2n ** 60n]],
  ['nil', [null]],
])('source blocks that are %s make no handoff', (_title, blockIds) => {
  const desk = open();
  desk.engine('p1');
  desk.engine('d1');
  desk.submit('c1', 1);
  expect(desk.prefilled('p1', 0, handoffBody(wire({}), blockIds))).toEqual([
    'c1 REQUEST_ERROR 1 safe',
    'p1 RELEASE_KV 0',
  ]);
  desk.submit('c1', 2);
  expect(desk.prefilled('p1', 1, handoffBody(wire({}), [-1, 200, 70_000, 2 ** 40]))).toEqual([
    'd1 SUBMIT_REQUEST_WITH_KV 1',
  ]);
});

test('a client’s own handoff takes a slot on decode, and its failure in doubt stays until decode says more', () => {
  const desk = open();
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
  [{ instance: '' }, 'instance: expected a name, got ""'],
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

/** Plain objects as maps of the wire, at any depth. */
function mapsOf(value: unknown): Wire {
  if (Array.isArray(value)) return value.map(mapsOf);
  if (typeof value !== 'object' || value === null) return value as Wire;
  return new Map(Object.entries(value).map(([key, inner]) => [key, mapsOf(inner)]));
}
