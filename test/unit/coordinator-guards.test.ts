/** What the coordinator's core must refuse or ignore, each by the case that nothing else would notice. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { settleOptions } from '../../lib/control/coordinator/coordinator-options.js';
import { EngineRecord } from '../../lib/control/coordinator/engine-record.js';
import type { Effect } from '../../lib/control/coordinator/interface.js';
import { Outbox } from '../../lib/control/coordinator/outbox.js';
import { Placement } from '../../lib/control/coordinator/placement.js';
import { readRegistration } from '../../lib/control/coordinator/registration.js';
import { Remembered } from '../../lib/control/coordinator/remembered.js';
import { RequestFlow } from '../../lib/control/coordinator/request-flow.js';
import { RequestRecord } from '../../lib/control/coordinator/request-record.js';
import type { HeldHandoff, SubmitRequest } from '../../lib/control/protocol/messages.js';
import { EngineChooser } from '../../lib/control/routing/engine-chooser.js';
import { CoordinatorDesk, prompt, submitMessage, submitWithKv, wire, words } from '../support/coordinator-desk.js';

function open(options: ConstructorParameters<typeof CoordinatorDesk>[0] = {}): CoordinatorDesk {
  const desk = new CoordinatorDesk(options);
  desk.say('c1', { header: 'CONNECT' });
  return desk;
}

const ignored = (desk: CoordinatorDesk, peer: string, said: Parameters<CoordinatorDesk['hear']>[1]): unknown[] =>
  desk.hear(peer, said).flatMap((effect): unknown[] => (effect.kind === 'log' ? [effect.fields['because']] : [effect]));

describe('one peer is one thing', () => {
  test('an engine cannot become a client', () => {
    const desk = open();
    desk.engine('p1');
    expect(ignored(desk, 'p1', { header: 'CONNECT' })).toEqual(['the sender is an engine']);
    expect(desk.core.snapshot(0).clients).toBe(1);
    expect(desk.submit('p1', 1)).toEqual([]);
  });

  test.each([[true], [false]])('a client cannot become an engine, roles: %s', (isDisaggregated) => {
    const desk = open({ isDisaggregated });
    if (isDisaggregated) expect(desk.engine('c1', { role: 'prefill' })).toEqual([]);
    else expect(ignored(desk, 'c1', { header: 'REGISTER' })).toEqual(['the sender is a client']);
    expect(desk.core.snapshot(0)).toMatchObject({ engines: [], clients: 1 });
    // It goes on as what it is.
    expect(desk.submit('c1', 1)).toEqual(['c1 REQUEST_ERROR 1 safe']);
  });
});

test('all clients together have so many requests alive, and each that ends makes room', () => {
  const desk = open({ isDisaggregated: false, limits: { requestsMax: 2 } });
  desk.say('c2', { header: 'CONNECT' });
  desk.say('e1', { header: 'REGISTER' });
  expect(desk.submit('c1', 1)).toEqual(['e1 SUBMIT_REQUEST 0']);
  expect(desk.submit('c2', 1)).toEqual(['e1 SUBMIT_REQUEST 1']);
  expect(desk.submit('c2', 2)).toEqual(['c2 REQUEST_ERROR 2 safe']);
  desk.finished('e1', 0);
  expect(desk.submit('c2', 3)).toEqual(['e1 SUBMIT_REQUEST 2']);
});

test.each([
  ['the source', ['nixl', 'nccl'], ['nixl']],
  ['the target', ['nixl'], ['nixl', 'nccl']],
])('nothing is sent where only %s could push', (_name, source, target) => {
  const desk = open();
  desk.engine('p1', { incarnation: 'i1', transports: source });
  desk.engine('d1', { incarnation: 'i1', transports: target });
  desk.submit('c1', 1);
  desk.prefilled('p1', 0);
  expect(desk.say('d1', { header: 'KV_TRANSFER_READY', requestId: 0, cachedPrefixBlocks: 0 })).toEqual([
    'c1 REQUEST_ERROR 1 unsafe',
  ]);
});

describe('an engine that registers again under its name', () => {
  test.each([
    ['p1', 'decode'],
    ['d1', 'prefill'],
  ])('%s may not change its role to %s', (peer, role) => {
    const desk = open();
    desk.engine('p1');
    desk.engine('d1');
    expect(desk.engine(peer, { role })).toEqual([`${peer} REGISTRATION_ERROR`]);
    expect(desk.refusals.at(-1)).toContain('may not change its role');
    expect(desk.core.snapshot(0).engines.map((engine) => engine.peer)).not.toContain(peer);
  });

  test('may not change its transport', () => {
    const desk = open();
    desk.engine('p1');
    desk.engine('d1');
    expect(desk.engine('p1', { transport: 'host' })).toEqual(['p1 REGISTRATION_ERROR']);
    expect(desk.refusals.at(-1)).toBe('an engine may not change its transport: expected nixl, got host');
    // As somebody new it may come with another one.
    expect(desk.engine('p1', { transport: 'host' })).toEqual(['p1 REGISTER_ROLE_ACK']);
  });
});

test('a handoff that was released while its request still runs is not offered once more', () => {
  const desk = open({ isDisaggregated: false });
  desk.say('e1', { header: 'REGISTER' });
  desk.submit('c1', 1, { do_kv_handoff: true });
  const offer = { header: 'REGISTER_KV', requestId: 0 } as const;
  expect(ignored(desk, 'e1', offer)).toEqual([]);
  expect(ignored(desk, 'e1', offer)).toEqual(['it was offered before']);
  expect(desk.say('c1', { header: 'RELEASE_KV', requestId: 0, instance: 'run1' })).toContain('e1 RELEASE_KV 0');
  expect(ignored(desk, 'e1', offer)).toEqual(['it was offered before']);
  expect(desk.core.snapshot(0).pins).toEqual([]);
});

describe('pins of an earlier run', () => {
  const held = (requestId: number, more: Partial<HeldHandoff>): HeldHandoff => {
    return { requestId, state: 'pinned', peerInstance: null, peerIncarnation: null, ageMs: 5, blocks: 2, ...more };
  };

  test('the reader of another source’s handoff with the same id says nothing about this one', () => {
    const desk = open({ firstRequestId: 1000 });
    desk.engine('p1', { incarnation: 'i1', held: [held(1, {})] });
    const other = held(1, { state: 'importing', peerInstance: 'p2', peerIncarnation: 'i1' });
    desk.engine('d1', { incarnation: 'i1', held: [other] });
    expect(desk.say('d1', { header: 'KV_READ_DONE', requestId: 1 })).toEqual([]);
    expect(desk.core.snapshot(0).pins).toMatchObject([{ requestId: 1, owner: null, state: 'in-doubt' }]);
  });

  test('one whose reader was attested dead before its source came back goes at once', () => {
    const desk = open({ firstRequestId: 1000 });
    desk.say('c1', { header: 'RELEASE_KV_OWNER', instance: 'run1', owner: 'd1/i1' });
    const pins = [1, 2].map((id) => held(id, { peerInstance: 'd1', peerIncarnation: `i${id}` }));
    expect(desk.engine('p1', { incarnation: 'i1', held: pins })).toEqual(['p1 REGISTER_ROLE_ACK', 'p1 RELEASE_KV 1']);
    expect(desk.core.snapshot(0).pins).toMatchObject([{ requestId: 2, owner: 'd1/i2' }]);
  });
});

test('a prefill engine that no decode engine can read from gets nothing while another one can be read', () => {
  const desk = open();
  desk.engine('p1', { transport: 'host' });
  desk.engine('p2', { transport: 'nixl' });
  desk.engine('d1', { transport: 'nixl' });
  const asked = [1, 2, 3].flatMap((id) => desk.submit('c1', id));
  expect(asked).toEqual([0, 1, 2].map((id) => `p2 SUBMIT_REQUEST ${id}`));
});

test('of what an engine reports of itself, so much is kept', () => {
  const desk = open();
  desk.engine('p1');
  const keys = Array.from({ length: 100 }, (_, index) => [`key${index}`, index] as const);
  desk.say('p1', { header: 'ENGINE_STATUS', status: wire({ name: 'no number', ...Object.fromEntries(keys) }) });
  expect(desk.core.snapshot(0).engines[0]!.load).toEqual(Object.fromEntries(keys.slice(0, 64)));
});

test('an engine’s own process is found again under its new registration, another one under its name is not', () => {
  const options = settleOptions({ instance: 'run', isDisaggregated: true });
  const placement = new Placement(options, new EngineChooser(options));
  const record = (incarnation: string): EngineRecord => {
    const extension = { instance: 'p1', incarnation, transports: ['host'], held: [] };
    const entry = { request_capacity: 8, tokens_per_block: 16, element_size: 2, head_dim: 64 };
    const meta = wire({ ...entry, num_layers_global: 4, num_kv_heads_global: 8 });
    const said = {
      header: 'REGISTER_ROLE',
      role: 'prefill',
      transport: 'host',
      instanceMeta: [meta],
      extension,
    } as const;
    return new EngineRecord('p1', readRegistration(said), 0, 8, 0);
  };
  const [first, again, other] = [record('i1'), record('i1'), record('i2')];
  placement.add(first);
  expect(placement.current(first)).toBe(first);
  placement.remove(first);
  expect(placement.current(first)).toBeNull();
  placement.add(other);
  expect(placement.current(first)).toBeNull();
  placement.remove(other);
  placement.add(again);
  expect(placement.current(first)).toBe(again);
});

test('what peers have named is remembered up to a bound, the latest of it', () => {
  const remembered = new Remembered<number>();
  for (let value = 0; value < 65_536; value++) remembered.add(value);
  remembered.add(0);
  expect([0, 1, 65_535].map((value) => remembered.has(value))).toEqual([true, true, true]);
  remembered.add(65_536);
  expect([0, 1, 2, 65_536].map((value) => remembered.has(value))).toEqual([true, false, true, true]);
});

describe('a request that was sent on for the last time', () => {
  test('leaves its prompt with its engine; one that never got it brings it back for the next', () => {
    const desk = open({ isDisaggregated: false });
    desk.say('e1', { header: 'REGISTER' });
    desk.say('e2', { header: 'REGISTER' });
    const asked = { ...(submitMessage(1, { temperature: 3 }) as SubmitRequest), offloadParams: prompt, media: prompt };
    const sends = (effects: readonly Effect[]) => effects.flatMap((effect) => (effect.kind === 'send' ? [effect] : []));
    const [first] = sends(desk.hear('c1', asked));
    expect(first).toMatchObject({ peer: 'e1', message: { ...asked, requestId: 0, blockHashes: null } });
    const again = sends(desk.core.undelivered(desk.now++, 'e1', first!.message));
    expect(again).toEqual([{ ...first, peer: 'e2' }]);
    expect(sends(desk.core.undelivered(desk.now++, 'e2', again[0]!.message))).toMatchObject([
      { peer: 'c1', message: { header: 'REQUEST_ERROR', requestId: 1, sourceSafe: true } },
    ]);
  });

  test('so does a handoff that a client brings', () => {
    const desk = open();
    desk.engine('d1');
    desk.engine('d2');
    const [first] = desk.hear('c1', submitWithKv(1)).flatMap((effect) => (effect.kind === 'send' ? [effect] : []));
    expect(first!.peer).toBe('d1');
    const again = desk.core.undelivered(desk.now++, 'd1', first!.message);
    expect(again.filter(({ kind }) => kind === 'send')).toEqual([{ ...first, peer: 'd2' }]);
  });

  test('while it runs the coordinator does not keep its prompt', async () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const desk = open({ isDisaggregated: false });
    desk.say('e1', { header: 'REGISTER' });
    const prompts = [1, 2, 3].map((id) => {
      const own = new Uint8Array(prompt);
      desk.hear('c1', { ...(submitMessage(id) as SubmitRequest), prompt: own });
      return new WeakRef(own);
    });
    await new Promise((resolve) => setImmediate(resolve));
    collect();
    expect(prompts.filter((reference) => reference.deref() !== undefined)).toEqual([]);
    expect(desk.core.snapshot(0).requests.decode).toBe(3);
  });
});

test('a deadline ends a stay and no other: neither one that is over nor one without', () => {
  const desk = open({ limits: { prefillMs: 100, decodeMs: null } });
  desk.engine('p1');
  desk.engine('d1');
  desk.submit('c1', 1);
  desk.submit('c1', 2);
  desk.prefilled('p1', 0);
  expect(words(desk.core.tick(90))).toEqual([]);
  // The first has gone on to decode, where nothing ends its stay.
  expect(words(desk.core.tick(1000))).toEqual(['c1 REQUEST_ERROR 2 safe', 'p1 ABORT_REQUEST 1', 'p1 RELEASE_KV 1']);
  expect(words(desk.core.tick(100_000))).toEqual([]);
  expect(desk.core.snapshot(0).requests).toMatchObject({ prefill: 0, decode: 1 });
});

test('of a request that is gone nothing is looked at any more', () => {
  const options = settleOptions({ instance: 'run', isDisaggregated: true, limits: { queueMs: 5, decodeMs: 5 } });
  const chooser = new EngineChooser(options);
  const flow = new RequestFlow(options, new Outbox(), chooser, new Placement(options, chooser));
  const [first, second] = [0, 1].map((id) => {
    const submitted = submitMessage(id) as SubmitRequest;
    const request = new RequestRecord(id, null, id, submitted, submitted.blockHashes!, 'waitingPrefill');
    flow.add(request);
    return request;
  });
  expect([flow.requests.size, flow.timed.values()]).toEqual([2, [first, second]]);
  expect(flow.raise(first!, 'abort')).toBe(true);
  expect([flow.requests.values(), flow.timed.values()]).toEqual([[second], [second]]);
});
