/** Which engines a coordinator takes, and under which conditions (spec 1.6, 14.7). */
import { expectedEngines } from '../../lib/control/coordinator/expected-engines.js';
import { parseInferenceShards } from '../../lib/topology/inference-shards.js';
import { type EngineWords, hybrid, openDesk, pairedDesk, ssmState, wire } from '../support/coordinator-desk.js';

describe('registration', () => {
  test.each([
    ['another geometry', { meta: { head_dim: 128 } }],
    ['a capacity of 0', { meta: { request_capacity: 0 } }],
    ['no capacity', { meta: { request_capacity: null } }],
    ['a layer geometry that is not whole', { meta: { num_layers_global: null } }],
    ['a rank without its size', { meta: { tp_rank: 0 } }],
    ['a rank that is not the only one of its size', { meta: { tp_rank: 0, tp_size: 2, pp_rank: 0, pp_size: 1 } }],
    ['a stage that is missing', { meta: { tp_rank: 0, tp_size: 1, pp_rank: 0, pp_size: 2 } }],
    ['SSM state without a layout', { meta: { ...hybrid(1), ssm: wire({ conv: wire({}), recurrent: ssmState }) } }],
  ])('%s is rejected, and the rest goes on', (_name, said) => {
    const desk = pairedDesk();
    expect(desk.engine('d2', said)).toEqual(['d2 REGISTRATION_ERROR']);
    expect(desk.submit('c1', 1)).toEqual(['p1 SUBMIT_REQUEST 0']);
    expect(desk.core.snapshot(0).engines).toHaveLength(2);
  });

  test('gen-b: one transport for all; gen-c: one for each pair', () => {
    const b = pairedDesk({ behaviour: 'gen-b' });
    expect(b.engine('d2', { transport: 'nccl' })).toEqual(['d2 REGISTRATION_ERROR']);
    const c = openDesk();
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
      const desk = openDesk({ engines });
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
      const desk = openDesk({ engines });
      desk.engine(peer, said);
      expect(desk.refusals).toEqual([expect.stringContaining(message)]);
      expect(desk.core.snapshot(0).engines).toEqual([]);
    });

    test('so is one without a role of another name', () => {
      const desk = openDesk({ isDisaggregated: false, engines: expectedEngines(parseInferenceShards('dp=2')) });
      expect(['mp-coord-1', 'mp-coord-2'].map((peer) => desk.say(peer, { header: 'REGISTER' }))).toEqual([
        [],
        ['mp-coord-2 REGISTRATION_ERROR'],
      ]);
    });
  });

  test('the same identity again ends what the stale engine had, and may not change its role', () => {
    const desk = pairedDesk();
    desk.submit('c1', 1);
    expect(desk.engine('p1')).toEqual(['c1 REQUEST_ERROR 1 safe', 'p1 REGISTER_ROLE_ACK']);
    expect(desk.core.snapshot(0).engines.find(({ peer }) => peer === 'p1')).toMatchObject({ active: 0, queued: 0 });
    expect(desk.engine('p1', { role: 'decode' })).toEqual(['p1 REGISTRATION_ERROR']);
  });

  test('a refusal can be told, however much there is that differs', () => {
    const sizes = Array.from({ length: 20_000 }, (_, at): [string, number] => [`size${at}`, at]);
    const large = wire({
      element_size: 2,
      ssm_layout: wire({ layer_start: 0, num_layers: 4, dims: new Map(sizes) }),
    });
    const desk = openDesk();
    desk.engine('p1', { meta: { ...hybrid(1), ssm: wire({ conv: large, recurrent: large }) } });
    expect(desk.engine('d1')).toEqual(['d1 REGISTRATION_ERROR']);
    expect(desk.refusals[0]).toMatch(/^incompatible transfer geometry: expected .*…$/);
    expect(desk.refusals[0]!.length).toBeLessThan(5_000);
  });

  test('once all have left, the next may be of another model', () => {
    const desk = pairedDesk();
    desk.lose('p1');
    desk.lose('d1');
    expect(desk.engine('p1', { meta: { head_dim: 128 } })).toEqual(['p1 REGISTER_ROLE_ACK']);
  });

  test('engines with a role and engines without do not mix', () => {
    expect(pairedDesk().say('e1', { header: 'REGISTER' })).toEqual(['e1 REGISTRATION_ERROR']);
    expect(openDesk({ isDisaggregated: false }).engine('p1')).toEqual(['p1 REGISTRATION_ERROR']);
  });
});
