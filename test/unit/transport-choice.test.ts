/**
 * Promise: pairs of ranks take the transport that suits them, and one handoff goes one way: where pairs would differ in that,
 * all take what reaches every one of them, on every rank alike, or the refusal says which reaches how many.
 */
import type { PeerRank } from '../../lib/transfer/peer-pairing.js';
import { TransportChoice, type PairsOf } from '../../lib/transfer/transport-choice.js';
import type { Grants, OpenTransport } from '../../lib/transfer/transport-registry.js';
import type { Transport, TransportCapabilities } from '../../lib/transfer/transport.js';

type Direction = TransportCapabilities['direction'];

/** Its grants are places; it reaches within one, or everywhere. */
function opened(name: string, direction: Direction, here: string, everywhere = false, fatal = false): OpenTransport {
  const capabilities = { direction, unsafeFailureIsFatal: fatal } as TransportCapabilities;
  return {
    transport: { name, capabilities } as Transport,
    grant: here,
    whyNot: (own, peer) => (everywhere || own === peer ? null : 'too far'),
  };
}

function rank(place: string, ...names: string[]): PeerRank {
  const transports: Grants = Object.fromEntries(names.map((name) => [name, place]));
  return { key: place, transports } as unknown as PeerRank;
}

/** Rank `i` of an instance reads rank `i` of the peer. */
function oneToOne(instance: readonly PeerRank[]): PairsOf {
  return (ranks) => ranks.map(({ transports }, index) => ({ own: instance[index]!.transports, peer: transports }));
}

/** What each rank of an instance in these places takes, of transports that `open` opens there. */
function taken(places: readonly string[], peer: readonly PeerRank[], open: (here: string) => OpenTransport[]) {
  const names = open('').map(({ transport }) => transport.name);
  const instance = places.map((place) => rank(place, ...names));
  return places.map((place, index) => {
    const choice = new TransportChoice(open(place), {}, undefined, oneToOne(instance));
    return {
      name: choice.towards(peer).find(peer[index]!.transports)?.name ?? null,
      pushed: choice.isPushed(peer),
      fatal: choice.isFatalWhenUnsafe(peer),
      choice: choice.towards(peer),
    };
  });
}

const all = ['near', 'far', 'push'] as const;
const [here, elsewhere] = [rank('a', ...all), rank('b', ...all)];

test('of two that are read, each pair takes its own', () => {
  const open = (at: string): OpenTransport[] => [opened('near', 'pull', at), opened('far', 'pull', at, true)];
  expect(taken(['a', 'a'], [here, elsewhere], open)).toMatchObject([
    { name: 'near', pushed: false, fatal: false },
    { name: 'far', pushed: false, fatal: false },
  ]);
});

test('an unsafe failure is fatal on every rank when it would be on one', () => {
  const open = (at: string): OpenTransport[] => [
    opened('near', 'pull', at, false, true),
    opened('far', 'pull', at, true),
  ];
  expect(taken(['a', 'a'], [here, elsewhere], open)).toMatchObject([
    { name: 'near', fatal: true },
    { name: 'far', fatal: true },
  ]);
  expect(taken(['a', 'a'], [elsewhere, elsewhere], open)).toMatchObject([{ fatal: false }, { fatal: false }]);
});

test.each<[string, string[], string[], boolean]>([
  ['pairs that are both read are', ['a', 'b'], ['near', 'near'], false],
  ['pairs that are both pushed are', ['b', 'a'], ['push', 'push'], true],
  ['one that cannot be read makes all pushed', ['a', 'a'], ['push', 'push'], true],
])('%s', (_, places, names, pushed) => {
  const open = (at: string): OpenTransport[] => [opened('near', 'pull', at), opened('push', 'push', at, true)];
  const expected = names.map((name) => ({ name, pushed }));
  expect(taken(places, [here, elsewhere], open)).toMatchObject(expected);
});

test('the way is that of the transport preferred first, of those that reach all', () => {
  const open = (at: string): OpenTransport[] => [
    opened('near', 'pull', at),
    opened('push', 'push', at, true),
    opened('far', 'pull', at, true),
  ];
  const expected = [
    { name: 'near', pushed: false },
    { name: 'far', pushed: false },
  ];
  expect(taken(['a', 'a'], [here, elsewhere], open)).toMatchObject(expected);
});

test('a pair that nothing reaches changes nothing for the others', () => {
  const open = (at: string): OpenTransport[] => [opened('near', 'pull', at), opened('push', 'push', at, true)];
  const [first, second] = taken(['a', 'a'], [here, rank('b')], open);
  expect([first, second]).toMatchObject([
    { name: 'near', pushed: false },
    { name: null, pushed: false },
  ]);
});

test('no way that all can go is refused, and nobody waits for a push', () => {
  const open = (at: string): OpenTransport[] => [opened('near', 'pull', at), opened('push', 'push', at, true)];
  const peer = [rank('a', 'near'), rank('b', 'push')];
  for (const { name, pushed, choice } of taken(['a', 'a'], peer, open)) {
    expect({ name, pushed }).toEqual({ name: null, pushed: false });
    const why = 'it reaches 1 of 2 pairs of ranks, and one handoff is pulled or pushed as a whole';
    expect(() => choice.require(peer[0]!.transports)).toThrow(
      expect.objectContaining({
        code: 'NO_TRANSPORT',
        details: { reasons: { near: why, push: 'the peer does not have it' } },
      }),
    );
    expect(() => choice.require(peer[1]!.transports)).toThrow(
      expect.objectContaining({ details: { reasons: { near: 'the peer does not have it', push: why } } }),
    );
  }
});

test('ranks are asked about once', () => {
  let asked = 0;
  const pairs: PairsOf = (ranks) => {
    asked += 1;
    return oneToOne([here, here])(ranks);
  };
  const open = [opened('near', 'pull', 'a'), opened('push', 'push', 'a', true)];
  const choice = new TransportChoice(open, {}, undefined, pairs);
  const peer = [here, elsewhere];
  expect(choice.towards(peer)).toBe(choice.towards(peer));
  expect(choice.isPushed(peer)).toBe(true);
  const before = asked;
  expect(choice.isPushed(peer)).toBe(true);
  expect(asked).toBe(before);
});
