/**
 * Goal: legs cover what this rank needs, once, over a transport that both ends have; what a peer leaves out or repeats is
 * refused. Method: described instances of test memories and a transport that only remembers.
 */
import type { HandoffError } from '../../lib/errors.js';
import type { JsonValue } from '../../lib/json.js';
import { rankPositions, smallShape, TestMemory } from '../../lib/testing/test-memory.js';
import { programBytes } from '../../lib/transfer/copy-program.js';
import type { PeerRank } from '../../lib/transfer/peer-pairing.js';
import { PeerPlans, type MoveRequest } from '../../lib/transfer/peer-plans.js';
import type { Peer, PeerStatus, Transport } from '../../lib/transfer/transport.js';
import { choiceOf } from '../support/transport-choice.js';

class RememberedPeer implements Peer {
  now: PeerStatus = 'ready';
  readonly error = null;
  closed = 0;

  constructor(readonly grant: JsonValue) {}

  status(): PeerStatus {
    return this.now;
  }

  close(): void {
    this.closed += 1;
  }
}

function transport(name: string): Transport & { readonly peers: RememberedPeer[] } {
  const peers: RememberedPeer[] = [];
  const connect = (grant: JsonValue): Peer => {
    const peer = new RememberedPeer(grant);
    peers.push(peer);
    return peer;
  };
  const capabilities = { direction: 'pull' };
  return { name, capabilities, peers, connect } as unknown as Transport & { readonly peers: RememberedPeer[] };
}

function ranks(
  tp: number,
  pp: number,
  offers: PeerRank['transports'] = { fake: 1 },
  name = 'peer',
  heads = 4,
): PeerRank[] {
  return rankPositions(tp, pp).map((position) => {
    const { kv } = new TestMemory({ ...smallShape, kvHeads: heads }, position, 9, 1);
    const transports = Object.fromEntries(Object.keys(offers).map((key) => [key, `${name}/${position.globalRank}`]));
    return { key: `${name}/${position.globalRank}`, kv, ssm: null, transports };
  });
}

const own = (tp = 1, rank = 0, heads = 4) => {
  const { kv } = new TestMemory({ ...smallShape, kvHeads: heads }, rankPositions(tp, 1)[rank]!, 9, 1);
  return { kv, ssm: null };
};

const move = (peers: readonly PeerRank[], changes: Partial<MoveRequest> = {}): MoveRequest => ({
  ranks: peers,
  shares: peers.map(() => ({ blockIds: Int32Array.of(5, 6, 7), slot: null })),
  skipBlocks: 0,
  localBlocks: Int32Array.of(0, 1, 2),
  localSlot: null,
  blockGenerations: BigUint64Array.of(10n, 11n, 12n),
  slotGeneration: null,
  tag: 'h',
  ...changes,
});

const blockBytes = 2 * 2 * 4 * 4 * 4;

function codeOf(call: () => unknown): string | null {
  try {
    call();
    return null;
  } catch (error) {
    return (error as HandoffError).code;
  }
}

test.each([
  [1, 1],
  [2, 1],
  [4, 2],
  [1, 2],
])('a peer of TP %p PP %p: all bytes once, one leg a rank', (tp, pp) => {
  const fake = transport('fake');
  const legs = new PeerPlans(own(), choiceOf(fake)).legs(move(ranks(tp, pp)));
  expect(legs).toHaveLength(tp * pp);
  const bytes = legs
    .flatMap(({ request }) => request.programs)
    .reduce((sum, program) => sum + programBytes(program), 0);
  expect(bytes).toBe(3 * blockBytes);
  expect(new Set(legs.map(({ request }) => request.tag)).size).toBe(legs.length);
  expect(legs[0]!.request.tag).toBe('h:0>0');
});

test('of replicas one is read; a rank that shares nothing gets no leg and no connection', () => {
  const fake = transport('fake');
  const legs = new PeerPlans(own(4, 3, 2), choiceOf(fake)).legs(move(ranks(4, 1, { fake: 1 }, 'peer', 2)));
  expect(legs.map(({ request }) => request.tag)).toEqual(['h:2>3']);
  expect(fake.peers.map(({ grant }) => grant)).toEqual(['peer/2']);
});

test('blocks that are here already are left out, generations with them', () => {
  const plans = new PeerPlans(own(), choiceOf(transport('fake')));
  const [leg] = plans.legs(move(ranks(1, 1), { skipBlocks: 2 }));
  expect(programBytes(leg!.request.programs[0]!)).toBe(blockBytes);
  expect(leg!.request.programs[0]!.tables[0]).toMatchObject({ source: Int32Array.of(7), target: Int32Array.of(2) });
  expect(leg!.request.generations).toMatchObject({
    blocks: Int32Array.of(7),
    blockGenerations: BigUint64Array.of(12n),
  });
  expect(plans.legs(move(ranks(1, 1), { skipBlocks: 3 }))).toEqual([]);
});

test.each<[string, (peers: PeerRank[]) => PeerRank[]]>([
  ['leaves a rank out', (peers) => peers.slice(1)],
  ['leaves all ranks out', () => []],
  [
    'has SSM state that this side has not',
    (peers) => peers.map((each) => ({ ...each, ssm: { layout: { dims: {} } } as never })),
  ],
  [
    'holds state twice under two layouts',
    (peers) => [...peers, ...ranks(1, 1, { fake: 1 }, 'more').map((each) => ({ ...each, key: 'x' }))],
  ],
])('a peer that %s is INCOMPATIBLE and is not connected', (_name, change) => {
  const fake = transport('fake');
  expect(codeOf(() => new PeerPlans(own(), choiceOf(fake)).legs(move(change(ranks(2, 1)))))).toBe('INCOMPATIBLE');
  expect(fake.peers).toEqual([]);
});

test('no common transport says what each side has; inherited names are none', () => {
  const plans = new PeerPlans(own(), choiceOf(transport('fake'), transport('toString')));
  expect(() => plans.legs(move(ranks(1, 1, { other: 1 })))).toThrow(
    'no transport that both ends can use: fake (the peer does not have it), toString (the peer does not have it), ' +
      'other (only the peer has it)',
  );
  expect(codeOf(() => plans.legs(move(ranks(1, 1, {}))))).toBe('NO_TRANSPORT');
});

test('the first of our transports that the peer offers is used', () => {
  const [first, second] = [transport('first'), transport('second')];
  const plans = new PeerPlans(own(), choiceOf(first, second));
  expect(plans.legs(move(ranks(1, 1, { second: 1, first: 1 })))[0]!.transport).toBe(first);
  expect(plans.legs(move(ranks(1, 1, { second: 1 }, 'b')))[0]!.transport).toBe(second);
});

test('a connection is kept, a failed one is replaced, the oldest idle one goes when there are too many, close ends all', () => {
  const fake = transport('fake');
  const plans = new PeerPlans(own(), choiceOf(fake), 'pull', 2);
  const use = (peers: readonly PeerRank[]): void => plans.legs(move(peers)).forEach((leg) => leg.release!());
  const [a, b, c] = ['a', 'b', 'c'].map((name) => ranks(1, 1, { fake: 1 }, name));
  use(a!);
  use(a!);
  expect(fake.peers).toHaveLength(1);
  fake.peers[0]!.now = 'failed';
  use(a!);
  expect(fake.peers.map(({ closed }) => closed)).toEqual([1, 0]);
  use(b!);
  use(a!);
  use(c!);
  expect(fake.peers.map(({ grant, closed }) => [grant, closed])).toEqual([
    ['a/0', 1],
    ['a/0', 0],
    ['b/0', 1],
    ['c/0', 0],
  ]);
  plans.close();
  expect([plans.connectionCount, fake.peers.map(({ closed }) => closed)]).toEqual([0, [1, 1, 1, 1]]);
});

test('a connection that a transfer uses is never closed to make room', () => {
  const fake = transport('fake');
  const plans = new PeerPlans(own(), choiceOf(fake), 'pull', 1);
  const [held] = plans.legs(move(ranks(1, 1, { fake: 1 }, 'a')));
  const [other] = plans.legs(move(ranks(1, 1, { fake: 1 }, 'b')));
  expect([plans.connectionCount, fake.peers.map(({ closed }) => closed)]).toEqual([2, [0, 0]]);
  held!.release!();
  plans.legs(move(ranks(1, 1, { fake: 1 }, 'c')));
  expect(fake.peers.map(({ closed }) => closed)).toEqual([1, 0, 0]);
  other!.release!();
});

test('a connection that never comes up is connected again once it is late, also for those who wait for it', () => {
  const fake = transport('fake');
  let now = 1000;
  const plans = new PeerPlans(own(), choiceOf(fake), 'pull', 2, undefined, { now: () => now, connectMs: 10 });
  const peers = ranks(1, 1);
  const [waiting] = plans.legs(move(peers));
  fake.peers[0]!.now = 'connecting';
  now += 9;
  plans.legs(move(peers));
  expect([fake.peers.length, waiting!.peer]).toEqual([1, fake.peers[0]]);
  now += 1;
  const [next] = plans.legs(move(peers));
  expect(fake.peers.map(({ grant, closed }) => [grant, closed])).toEqual([
    ['peer/0', 1],
    ['peer/0', 0],
  ]);
  expect([waiting!.peer, next!.peer]).toEqual([fake.peers[1], fake.peers[1]]);
  fake.peers[1]!.now = 'connecting';
  now += 9; // the new connection has a time of its own
  plans.legs(move(peers));
  expect(fake.peers).toHaveLength(2);
  fake.peers[1]!.now = 'ready';
  now += 1000;
  plans.legs(move(peers));
  expect([fake.peers.length, fake.peers[1]!.closed]).toEqual([2, 0]);
});

test('a push goes to every rank that needs something, with the tag that the other end uses', () => {
  const pushed = new PeerPlans(own(2, 1), choiceOf(transport('fake')), 'push-source').legs(move(ranks(4, 1)));
  expect(pushed.map(({ request }) => request.tag)).toEqual(['h:1>2', 'h:1>3']);
});
