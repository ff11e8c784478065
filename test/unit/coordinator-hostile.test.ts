/** What a hostile peer says to the coordinator's core: refused with a reason, and everybody else is served as before. */
import type { Wire } from '../../lib/control/protocol/wire-value.js';
import { CoordinatorDesk, submitWithKv, wire } from '../support/coordinator-desk.js';

function open(options: ConstructorParameters<typeof CoordinatorDesk>[0] = {}): CoordinatorDesk {
  const desk = new CoordinatorDesk(options);
  desk.say('c1', { header: 'CONNECT' });
  return desk;
}

describe('a client brings a handoff whose metadata cannot be read', () => {
  test.each([
    ['a key that is no text', [0x81, 0x01, 0x02]],
    ['a key twice', [0x82, 0xa1, 0x61, 0x01, 0xa1, 0x61, 0x02]],
    ['a key that is no UTF-8', [0x81, 0xa1, 0xff, 0x01]],
  ])('%s', (_what, bytes) => {
    const desk = open();
    desk.engine('d1');
    const message = { ...submitWithKv(1), kvMeta: Uint8Array.from(bytes) };
    expect(desk.say('c1', message as ReturnType<typeof submitWithKv>)).toEqual(['c1 REQUEST_ERROR 1 safe']);
    expect(desk.core.snapshot(0).counters).toMatchObject({ submitted: 0, refused: 1 });
    expect(desk.say('c1', submitWithKv(2))).toEqual(['d1 SUBMIT_REQUEST_WITH_KV 0']);
  });

  test('without roles it goes to the engine as it is', () => {
    const desk = open({ isDisaggregated: false });
    desk.say('e1', { header: 'REGISTER' });
    const kvMeta = Uint8Array.from([0x81, 0x01, 0x02]);
    const message = { ...submitWithKv(1), kvMeta };
    const [sent] = desk.hear('c1', message as ReturnType<typeof submitWithKv>);
    expect(sent).toMatchObject({ kind: 'send', peer: 'e1', message: { kvMeta } });
  });
});

test('a request that comes twice while the coordinator drains has one last reply', () => {
  const desk = open();
  desk.engine('p1');
  desk.engine('d1');
  expect(desk.submit('c1', 1)).toEqual(['p1 SUBMIT_REQUEST 0']);
  desk.core.drain();
  expect(desk.submit('c1', 1)).toEqual([]);
  expect(desk.submit('c1', 2)).toEqual(['c1 REQUEST_ERROR 2 safe']);
  expect(desk.submit('c1', 2)).toEqual([]);
  expect(desk.prefilled('p1', 0)).toEqual(['d1 SUBMIT_REQUEST_WITH_KV 0']);
  expect(desk.finished('d1', 0)).toEqual(['p1 RELEASE_KV 0', 'c1 ENGINE_REPLY 1']);
});

describe('an engine that says that it is the process of another', () => {
  const reading = (): CoordinatorDesk => {
    const desk = open();
    desk.engine('p1', { incarnation: 'i1' });
    desk.engine('d1', { incarnation: 'i1' });
    desk.submit('c1', 1);
    desk.prefilled('p1', 0);
    return desk;
  };
  const pose = (desk: CoordinatorDesk): string[] => {
    const posed = { instance: 'd1', incarnation: 'i1', transports: ['nixl'], held: [] };
    const instanceMeta = [
      wire({
        request_capacity: 8,
        tokens_per_block: 16,
        element_size: 2,
        head_dim: 64,
        num_layers_global: 4,
        num_kv_heads_global: 8,
      }),
    ];
    return desk.say('d2', {
      header: 'REGISTER_ROLE',
      role: 'decode',
      transport: 'nixl',
      instanceMeta,
      extension: posed,
    });
  };

  test('is refused while the other is registered, and releases nothing', () => {
    const desk = reading();
    expect(pose(desk)).toEqual(['d2 REGISTRATION_ERROR']);
    expect(desk.core.snapshot(0).pins).toHaveLength(1);
  });

  test('proves nothing about what the other reads once its connection is lost', () => {
    const desk = reading();
    expect(desk.lose('d1')).toEqual(['c1 REQUEST_ERROR 1 unsafe']);
    expect(pose(desk)).toEqual(['d2 REGISTER_ROLE_ACK']);
    expect(desk.core.snapshot(0).pins).toHaveLength(1);
  });
});

test('what an engine says of its load is kept within bounds', () => {
  const desk = open();
  desk.engine('d1');
  const said = Array.from({ length: 100 }, (_, index): [string, Wire] => [`key-${index}`, index]);
  const status = new Map<string, Wire>([['x'.repeat(65), 1], ['x'.repeat(64), 2], ['text', 'no number'], ...said]);
  desk.say('d1', { header: 'ENGINE_STATUS', status });
  const [engine] = desk.core.snapshot(0).engines;
  expect(Object.entries(engine!.load!)).toHaveLength(64);
  expect(engine!.load).toMatchObject({ ['x'.repeat(64)]: 2, 'key-0': 0 });
  expect(engine!.load).not.toHaveProperty('x'.repeat(65));
});

test.each([
  ['an integer that JSON has no word for', 2n ** 60n],
  ['a list', [1]],
  ['text', '2'],
])('an engine whose SSM element size is %s is refused', (_what, elementSize: Wire) => {
  const desk = open();
  const layout = wire({ dims: wire({ channels: 4 }), layer_start: 0, num_layers: 2 });
  const state = (size: Wire) => wire({ element_size: size, ssm_layout: layout });
  const ssm = (size: Wire) => wire({ conv: state(2), recurrent: state(size) });
  const meta = (size: Wire) => ({ ssm: ssm(size), ssm_slot_capacity: 4 });
  expect(desk.engine('d1', { meta: meta(elementSize) })).toEqual(['d1 REGISTRATION_ERROR']);
  expect(desk.refusals[0]).toContain('ssm.recurrent element_size must be an integer');
  expect(desk.engine('d1', { meta: meta(2) })).toEqual(['d1 REGISTER_ROLE_ACK']);
});
