/** Deliveries over a socket that the test plays: what each peer gets, in which order, and what the core is told of the rest. */
import type { Router } from 'zeromq';
import type { CoordinatorCore, Effect } from '../../lib/control/coordinator/interface.js';
import { decodeMessage } from '../../lib/control/protocol/codec.js';
import type { SubmitRequest, ToClient, ToCoordinator, ToEngine } from '../../lib/control/protocol/messages.js';
import { encodeValue, wireMap } from '../../lib/control/protocol/wire-bytes.js';
import type { Wire } from '../../lib/control/protocol/wire-value.js';
import { Deliveries } from '../../lib/control/zeromq/deliveries.js';
import { defaultOutboxLimits, type OutboxLimits } from '../../lib/control/zeromq/outboxes.js';
import { PeerRoutes } from '../../lib/control/zeromq/peer-routes.js';
import { submitMessage } from '../support/coordinator-desk.js';
import { until } from '../support/waiting.js';

/** What the socket says to a message for a peer; by default it takes it. */
type Answer = 'EAGAIN' | 'EHOSTUNREACH';

class Scene {
  readonly answers = new Map<string, Answer>();
  /** `peer id` of each message that the socket took. */
  readonly sent: string[] = [];
  /** What the core was told: `undelivered peer id`, `lost peer`, `peer HEADER id`. */
  readonly told: string[] = [];
  readonly logged: string[] = [];
  readonly stopped: string[] = [];
  /** What the core does when it is told that something was undelivered. */
  next: Effect[] = [];
  readonly deliveries: Deliveries;

  constructor(outboxLimits: OutboxLimits = defaultOutboxLimits) {
    const router = {
      send: (parts: Uint8Array[]): Promise<void> => {
        const peer = Buffer.from(parts[0]!).toString('latin1');
        const code = this.answers.get(peer);
        if (code !== undefined) return Promise.reject(Object.assign(new Error(code), { code }));
        const place = peer.startsWith('c') ? 'client' : 'engine';
        const message = decodeMessage('multi-frame', place, parts.slice(1));
        this.sent.push(`${peer} ${'requestId' in message ? message.requestId : message.header}`);
        return Promise.resolve();
      },
    };
    const idOf = (message: object): string => ('requestId' in message ? String(message.requestId) : '-');
    const core = {
      undelivered: (_now: number, peer: string, message: ToEngine | ToClient, reason: string | null) => {
        this.told.push(`undelivered ${peer} ${idOf(message)}${reason === null ? '' : `: ${reason}`}`);
        return this.next.splice(0);
      },
      peerLost: (_now: number, peer: string) => {
        this.told.push(`lost ${peer}`);
        return [];
      },
      receive: (_now: number, peer: string, message: ToCoordinator) => {
        this.told.push(`${peer} ${message.header} ${idOf(message)}`);
        return [];
      },
    };
    this.deliveries = new Deliveries({
      router: router as unknown as Router,
      routes: new PeerRoutes(undefined),
      core: core as unknown as CoordinatorCore,
      profile: 'multi-frame',
      outboxLimits,
      clock: { now: () => 0 },
      log: (_level, event) => this.logged.push(event),
      completeStatus: (status) => status,
      stop: (reason) => this.stopped.push(reason),
    });
  }

  do(...effects: Effect[]): Promise<void> {
    this.deliveries.add(effects);
    return this.deliveries.flush();
  }
}

const body = encodeValue(wireMap({ status: 'COMPLETED' }));
const submit = (peer: string, requestId: number, sampling: Record<string, Wire> = {}): Effect => {
  return { kind: 'send', peer, message: submitMessage(requestId, sampling) as SubmitRequest };
};
const release = (peer: string, requestId: number): Effect => {
  return { kind: 'send', peer, message: { header: 'RELEASE_KV', requestId, instance: null } };
};
const reply = (peer: string, requestId: number): Effect => {
  return { kind: 'send', peer, message: { header: 'ENGINE_REPLY', requestId, body } };
};
const partial = (peer: string, requestId: number): Effect => {
  return { kind: 'send', peer, message: { header: 'ENGINE_REPLY_PARTIAL', requestId, body } };
};

let scene: Scene;
afterEach(() => scene.deliveries.close());

test('all is done in its order, with what the core makes of what was not taken behind it', async () => {
  scene = new Scene();
  scene.answers.set('e2', 'EHOSTUNREACH');
  scene.next = [release('e1', 9), { kind: 'stop', reason: 'enough' }];
  await scene.do(
    release('e1', 1),
    release('e2', 2),
    { kind: 'log', level: 'info', event: 'seen', fields: {} },
    reply('c1', 3),
  );
  expect(scene.sent).toEqual(['e1 1', 'c1 3', 'e1 9']);
  expect(scene.told).toEqual(['undelivered e2 2']);
  expect([scene.logged, scene.stopped]).toEqual([['seen'], ['enough']]);
  expect(scene.deliveries.counts).toMatchObject({ sent: 3, undelivered: 1 });
});

test('nothing goes out before it is asked for, and closing does what is left', async () => {
  scene = new Scene();
  scene.deliveries.add([release('e1', 1)]);
  await new Promise((resolve) => setImmediate(resolve));
  expect(scene.sent).toEqual([]);
  await scene.deliveries.close();
  expect(scene.sent).toEqual(['e1 1']);
  scene.deliveries.perform([release('e1', 2)]);
  await scene.deliveries.flush();
  expect(scene.sent).toEqual(['e1 1']);
});

test('what cannot be written counts as undelivered, and the rest goes on', async () => {
  scene = new Scene();
  const wrong = { kind: 'send', peer: 'c1', message: { header: 'ENGINE_REPLY', requestId: -1, body } } as const;
  await scene.do(wrong, reply('c1', 2));
  expect(scene.told).toEqual(['undelivered c1 -1']);
  expect(scene.logged).toEqual(['message cannot be written']);
  expect(scene.sent).toEqual(['c1 2']);
});

test('what waits for a slow peer keeps its order, holds up nobody else, and goes when it can', async () => {
  scene = new Scene();
  scene.answers.set('e1', 'EAGAIN');
  await scene.do(release('e1', 1), release('e2', 2), release('e1', 3));
  expect(scene.sent).toEqual(['e2 2']);
  expect(scene.deliveries.waitingBytes).toBeGreaterThan(100);
  scene.answers.delete('e1');
  await scene.do(release('e1', 4));
  await until('all is sent', () => scene.sent.length === 4);
  expect(scene.sent).toEqual(['e2 2', 'e1 1', 'e1 3', 'e1 4']);
  expect(scene.deliveries.waitingBytes).toBe(0);
});

test('of a peer that is gone while messages wait for it, each comes back', async () => {
  scene = new Scene();
  scene.answers.set('e1', 'EAGAIN');
  await scene.do(release('e1', 1), release('e1', 2));
  scene.answers.set('e1', 'EHOSTUNREACH');
  await until('the core is told', () => scene.told.length === 2);
  expect(scene.told).toEqual(['undelivered e1 1', 'undelivered e1 2']);
  expect(scene.deliveries.waitingBytes).toBe(0);
});

test('an engine that takes no more gets nothing more, and the core knows of what', async () => {
  scene = new Scene({ ...defaultOutboxLimits, messagesMax: 2 });
  scene.answers.set('e1', 'EAGAIN');
  await scene.do(...[1, 2, 3].map((id) => submit('e1', id)));
  expect(scene.told).toEqual(['undelivered e1 3: its engine reads its requests too slowly']);
  expect(scene.logged).toEqual(['engine does not read']);
  // What stops requests still goes in; where even that does not, the engine is as good as gone.
  await scene.do(...[4, 5, 6].map((id) => release('e1', id)));
  expect(scene.told.slice(1)).toEqual(['undelivered e1 6']);
});

test('a request that cannot be written is not sent, and its engine is none the worse', async () => {
  scene = new Scene();
  const deep = Array.from({ length: 40 }).reduce<Wire>((inner) => [inner], 1);
  await scene.do(submit('e1', 1, { deep }), submit('e1', 2));
  expect(scene.told).toEqual([expect.stringMatching(/^undelivered e1 1: sampling\.deep.*expected at most 32 levels/)]);
  expect(scene.sent).toEqual(['e1 2']);
});

test('a client that takes no more loses what waits: what still runs is ended, and each request told in a few bytes', async () => {
  scene = new Scene({ ...defaultOutboxLimits, messagesMax: 4 });
  scene.answers.set('c1', 'EAGAIN');
  await scene.do(partial('c1', 1), partial('c1', 2), reply('c1', 3), reply('c1', 4));
  expect(scene.told).toEqual([]);
  await scene.do(partial('c1', 2));
  // Of the others the last word was lost: nothing of them runs any more.
  expect(scene.told).toEqual([1, 2].map((id) => `c1 ABORT_REQUEST ${id}`));
  expect(scene.deliveries.counts.overflowed).toBe(4);
  scene.answers.delete('c1');
  await until('it is told', () => scene.sent.length === 4);
  expect(scene.sent).toEqual([1, 2, 3, 4].map((id) => `c1 ${id}`));
});
