/** Who may claim and release a handoff, and what restarts and attestations prove (spec 1.7). */
import type { HeldHandoff } from '../../lib/control/protocol/messages.js';
import { type CoordinatorDesk, deskWith, openDesk } from '../support/coordinator-desk.js';

describe('ownership', () => {
  const offered = (): CoordinatorDesk => {
    const desk = openDesk({ isDisaggregated: false });
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
    const desk = openDesk({ firstRequestId: 1000 });
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
