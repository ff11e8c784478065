/**
 * Which of the transports that this end opened each pair of ranks uses: the first that both ends have and that reaches from
 * one to the other. Pairs of one handoff may use several, but it is read or pushed as a whole: its source is told of
 * a push once, for all ranks.
 *
 * All ranks of an instance come to the same answer: they know what each of them granted, and what each of the peer's did.
 */
import type { PeerRank } from './peer-pairing.js';
import type { Transport, TransportCapabilities, TransportGrant } from './transport.js';
import { noTransport, type Grants, type OpenTransport } from './transport-registry.js';

/** Two ranks that exchange something, by what each granted. */
export interface RankPair {
  /** Of this instance; null where this rank stands for all. */
  readonly own: Grants | null;
  readonly peer: Grants;
}

/** The pairs of ranks of a whole handoff from, or to, these ranks. */
export type PairsOf = (ranks: readonly PeerRank[]) => readonly RankPair[];

type Direction = TransportCapabilities['direction'];

const counted = (): null => null;
const thisRankForAll: PairsOf = (ranks) => ranks.map(({ transports }) => ({ own: null, peer: transports }));

export class TransportChoice {
  /** By what the peer granted; the same object for the same peer. */
  private readonly chosen = new WeakMap<Grants, OpenTransport | null>();
  /** By the peer's ranks; the same array for the same peer. */
  private readonly choices = new WeakMap<readonly PeerRank[], TransportChoice>();
  private readonly pairs = new WeakMap<readonly PeerRank[], readonly (readonly Transport[])[]>();

  constructor(
    private readonly open: readonly OpenTransport[],
    /** By name, why a transport that was wanted is not among them. */
    private readonly missing: Readonly<Record<string, string>> = {},
    /** Why one of them does not count; null when it does. */
    private readonly excluded: (transport: Transport) => string | null = counted,
    /** By default this rank, with all of the peer's. */
    private readonly rankPairs: PairsOf = thisRankForAll,
  ) {}

  /** The first that both ends can use, or null. */
  find(peerGrants: Grants): Transport | null {
    const known = this.chosen.get(peerGrants);
    if (known !== undefined) return known?.transport ?? null;
    const found = this.open.find((each) => this.whyNot(each, peerGrants) === null) ?? null;
    this.chosen.set(peerGrants, found);
    return found?.transport ?? null;
  }

  /** @throws `NO_TRANSPORT`, whose message and `details.reasons` say for each transport why not */
  require(peerGrants: Grants): Transport {
    const found = this.find(peerGrants);
    if (found !== null) return found;
    const reasons: Record<string, string> = { ...this.missing };
    for (const each of this.open) reasons[each.transport.name] = this.whyNot(each, peerGrants) ?? '';
    for (const name of Object.keys(peerGrants)) {
      if (!Object.hasOwn(reasons, name)) reasons[name] = 'only the peer has it';
    }
    throw noTransport(reasons);
  }

  /**
   * The choice for handoffs from these ranks. Where pairs of ranks by themselves would take both directions, it has the
   * transports of one that reaches all of them; where there is none, it has no transport.
   */
  towards(ranks: readonly PeerRank[]): TransportChoice {
    let choice = this.choices.get(ranks);
    if (choice === undefined) {
      choice = this.oneWay(ranks);
      this.choices.set(ranks, choice);
    }
    return choice;
  }

  /** Whether the source has to start too. Never throws: pairs that no transport reaches do not count. */
  isPushed(ranks: readonly PeerRank[]): boolean {
    return this.anyPair(ranks, ({ direction }) => direction === 'push');
  }

  /** Whether a failure that leaves memory in doubt ends the engine, whichever rank's it is. Never throws. */
  isFatalWhenUnsafe(ranks: readonly PeerRank[]): boolean {
    return this.anyPair(ranks, ({ unsafeFailureIsFatal }) => unsafeFailureIsFatal === true);
  }

  private anyPair(ranks: readonly PeerRank[], holds: (capabilities: TransportCapabilities) => boolean): boolean {
    if (!this.open.some(({ transport }) => holds(transport.capabilities))) return false;
    return this.towards(ranks)
      .pairsOf(ranks)
      .some(([first]) => holds((first as Transport).capabilities));
  }

  private oneWay(ranks: readonly PeerRank[]): TransportChoice {
    if (this.open.length < 2) return this;
    const directions = new Set(this.open.map(({ transport }) => transport.capabilities.direction));
    if (directions.size < 2) return this;
    const pairs = this.pairsOf(ranks);
    if (new Set(pairs.map(([first]) => (first as Transport).capabilities.direction)).size < 2) return this;
    const goes = (way: Direction, { capabilities }: Transport): boolean => capabilities.direction === way;
    const way = [...directions].find((each) => pairs.every((pair) => pair.some((transport) => goes(each, transport))));
    return this.without((transport) => {
      if (way !== undefined) return goes(way, transport) ? null : `this handoff is one ${way} for all ranks`;
      const reached = pairs.filter((pair) => pair.includes(transport)).length;
      return `it reaches ${reached} of ${pairs.length} pairs of ranks, and one handoff is pulled or pushed as a whole`;
    });
  }

  private without(excluded: (transport: Transport) => string | null): TransportChoice {
    const why = (transport: Transport): string | null => this.excluded(transport) ?? excluded(transport);
    return new TransportChoice(this.open, this.missing, why, this.rankPairs);
  }

  /** For each pair that any reaches, the transports that do, preferred first. */
  private pairsOf(ranks: readonly PeerRank[]): readonly (readonly Transport[])[] {
    let pairs = this.pairs.get(ranks);
    if (pairs === undefined) {
      pairs = this.rankPairs(ranks)
        .map((pair) => this.reaching(pair))
        .filter((reaching) => reaching.length > 0);
      this.pairs.set(ranks, pairs);
    }
    return pairs;
  }

  private reaching({ own, peer }: RankPair): Transport[] {
    const open = this.open.filter((each) => this.whyNot(each, peer, own) === null);
    return open.map(({ transport }) => transport);
  }

  /** @param ownGrants - of another rank of this instance; null for this one's */
  private whyNot(
    { transport, grant, whyNot: judge }: OpenTransport,
    peerGrants: Grants,
    ownGrants: Grants | null = null,
  ): string | null {
    const { name } = transport;
    if (!Object.hasOwn(peerGrants, name)) return 'the peer does not have it';
    const exclusion = this.excluded(transport);
    if (exclusion !== null) return exclusion;
    const own = ownGrants === null ? grant : (ownGrants[name] ?? null);
    // Moves nothing itself, and still has to know what the instance's other ranks use.
    if (own === null) return null;
    return judge(own, peerGrants[name] as TransportGrant);
  }
}
