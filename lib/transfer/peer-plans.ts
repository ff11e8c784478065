/**
 * From a peer's rank descriptors to the legs of a transfer: which of its ranks this rank reads, over which transport,
 * with which rectangles. What does not depend on the request is computed once for a peer and kept.
 */
import { HandoffError } from '../errors.js';
import type { JsonValue } from '../json.js';
import type { TransferLeg } from '../decode/local-transfer.js';
import type { CopyProgram } from './copy-program.js';
import {
  planPull,
  planPush,
  type Balance,
  type OwnState,
  type Part,
  type PeerRank,
  type PushDuties,
  type RankPlan,
} from './peer-pairing.js';
import { pairBlocks, programOver, type RowShare } from './program-table.js';
import type { Peer, SourceGenerations, Transport } from './transport.js';
import type { TransportChoice } from './transport-choice.js';

/** A peer rank's part of one request. */
export interface PeerShare {
  readonly blockIds: Int32Array;
  readonly slot: number | null;
}

/** What one request moves between two ranks, seen from the target. */
export interface MoveRequest {
  /** The peer's ranks; the same array for the same peer, since what is derived from it is kept. */
  readonly ranks: readonly PeerRank[];
  /** By rank. */
  readonly shares: readonly PeerShare[];
  /** Leading blocks that the target has already. */
  readonly skipBlocks: number;
  /** All blocks of the prompt on this side. */
  readonly localBlocks: Int32Array;
  readonly localSlot: number | null;
  readonly blockGenerations: BigUint64Array | null;
  readonly slotGeneration: bigint | null;
  readonly tag: string;
}

interface Connection {
  readonly transport: Transport;
  /** Another one after a connection that never came up; legs that wait for it wait for the new one then. */
  peer: Peer;
  openedAt: number;
  /** Legs that were given out and not let go of: while there is one, the connection is not closed to make room. */
  users: number;
}

/** How long a connection may take to come up. */
export interface ConnectPatience {
  /** In milliseconds. */
  readonly now: () => number;
  readonly connectMs: number;
}

export class PeerPlans {
  /** By the peer's rank array: plans of the ranks that matter to this rank. */
  private readonly plans = new WeakMap<readonly PeerRank[], readonly (RankPlan | null)[]>();
  /** Least recently used first. */
  private readonly connections = new Map<string, Connection>();

  constructor(
    private readonly own: OwnState,
    readonly transports: TransportChoice,
    private readonly direction: 'pull' | 'push-source' = 'pull',
    private readonly maxConnections = 1024,
    /** A push: what this rank sends; a replica that another rank stands for sends nothing. */
    private readonly duties: PushDuties = { kv: true, ssm: true },
    /** A transport need not give up on its own: what does not come up for so long is connected again. */
    private readonly patience: ConnectPatience = { now: () => 0, connectMs: Infinity },
    /** A pull: whether replicas of the source share the reading load. */
    private readonly balance: Balance = 'first',
  ) {}

  /**
   * The legs of one request, one for each peer rank that has something for this rank.
   *
   * @throws `INCOMPATIBLE` when the peer's ranks do not cover this rank's state, `NO_TRANSPORT`
   */
  legs(move: MoveRequest): TransferLeg[] {
    const legs: TransferLeg[] = [];
    for (const [index, plan] of this.plansFor(move.ranks).entries()) {
      if (plan === null) continue;
      const share = move.shares[index] as PeerShare;
      const programs = [...this.kvProgram(plan, share, move), ...this.ssmProgram(plan, share, move)];
      if (programs.length === 0) continue;
      const connection = this.connectFor(plan.rank, move.ranks, legs);
      connection.users += 1;
      legs.push({
        transport: connection.transport,
        get peer() {
          return connection.peer;
        },
        release: () => (connection.users -= 1),
        request: { programs, generations: generationsOf(share, move, plan), tag: this.tag(move.tag, plan.rank) },
      });
    }
    return legs;
  }

  /** The same text on both ends of one (source rank, target rank) pair. */
  private tag(handoff: string, rank: PeerRank): string {
    const [own, other] = [this.own.kv.layout.globalRank, rank.kv.layout.globalRank];
    return this.direction === 'pull' ? `${handoff}:${other}>${own}` : `${handoff}:${own}>${other}`;
  }

  /** Drops connections; nothing may be in flight on them. */
  close(): void {
    for (const { peer } of this.connections.values()) peer.close();
    this.connections.clear();
  }

  get connectionCount(): number {
    return this.connections.size;
  }

  /** A connection, or the error with what the legs before hold let go of. */
  private connectFor(rank: PeerRank, ranks: readonly PeerRank[], legs: readonly TransferLeg[]): Connection {
    try {
      return this.connect(rank, ranks);
    } catch (error) {
      for (const leg of legs) leg.release?.();
      throw error;
    }
  }

  private connect(rank: PeerRank, ranks: readonly PeerRank[]): Connection {
    const known = this.connections.get(rank.key);
    const status = known?.peer.status() ?? 'failed';
    if (known !== undefined && status !== 'failed') {
      if (status === 'connecting') this.reconnectLate(known, rank);
      // Most recently used last.
      this.connections.delete(rank.key);
      this.connections.set(rank.key, known);
      return known;
    }
    known?.peer.close();
    const transport = this.transports.towards(ranks).require(rank.transports);
    this.makeRoom();
    const connection = { transport, peer: connectTo(transport, rank), openedAt: this.patience.now(), users: 0 };
    this.connections.set(rank.key, connection);
    return connection;
  }

  /** Nothing has started on a connection that is not up, so a new one may take its place under those who wait for it. */
  private reconnectLate(connection: Connection, rank: PeerRank): void {
    const now = this.patience.now();
    if (now - connection.openedAt < this.patience.connectMs) return;
    connection.peer.close();
    connection.peer = connectTo(connection.transport, rank);
    connection.openedAt = now;
  }

  /** Closes the connection that was idle longest, when there are as many as may be; those in use stay. */
  private makeRoom(): void {
    if (this.connections.size < this.maxConnections) return;
    for (const [key, { peer, users }] of this.connections) {
      if (users > 0) continue;
      this.connections.delete(key);
      peer.close();
      return;
    }
  }

  private plansFor(ranks: readonly PeerRank[]): readonly (RankPlan | null)[] {
    let plans = this.plans.get(ranks);
    if (plans === undefined) {
      plans =
        this.direction === 'pull'
          ? planPull(this.own, ranks, this.balanceFor(ranks))
          : planPush(this.own, ranks, this.duties);
      this.plans.set(ranks, plans);
    }
    return plans;
  }

  /** The source of a push follows the reference's rule, so its target does, too. */
  private balanceFor(ranks: readonly PeerRank[]): Balance {
    if (this.balance === 'first') return 'first';
    return this.transports.isPushed(ranks) ? 'first' : this.balance;
  }

  private kvProgram(plan: RankPlan, share: PeerShare, move: MoveRequest): CopyProgram[] {
    const { kv, kvPart, sourceTokens, targetTokens } = plan;
    if (kv.length === 0) return [];
    if (sourceTokens !== targetTokens) this.requirePull(plan, move.ranks);
    const isPull = this.direction === 'pull';
    const [source, target] = isPull ? [share.blockIds, move.localBlocks] : [move.localBlocks, share.blockIds];
    const rows = pairBlocks({ source, target, sourceTokens, targetTokens, skipTargetBlocks: move.skipBlocks });
    const program = programOver(kv, rows, rowsOf(kvPart, rows.source.length));
    return program.rectangles.length === 0 ? [] : [program];
  }

  /** The two ends of a push would count the last block's tokens differently. */
  private requirePull({ sourceTokens, targetTokens }: RankPlan, ranks: readonly PeerRank[]): void {
    if (this.direction === 'pull' && !this.transports.isPushed(ranks)) return;
    throw new HandoffError(
      'INCOMPATIBLE',
      `a push moves blocks of one size: the source has ${sourceTokens} tokens a block and the target ${targetTokens}`,
      { details: { sourceTokens, targetTokens } },
    );
  }

  private ssmProgram(plan: RankPlan, share: PeerShare, move: MoveRequest): CopyProgram[] {
    if (plan.ssm.length === 0) return [];
    if (share.slot === null || move.localSlot === null) {
      throw new HandoffError('SSM_METADATA_INVALID', 'the handoff of a hybrid model names no SSM slot');
    }
    const [theirs, ours] = [Int32Array.of(share.slot), Int32Array.of(move.localSlot)];
    const [source, target] = this.direction === 'pull' ? [theirs, ours] : [ours, theirs];
    return [programOver(plan.ssm, { source, target })];
  }
}

function connectTo(transport: Transport, rank: PeerRank): Peer {
  return transport.connect(rank.transports[transport.name] as JsonValue);
}

/** Replicas that share the load take neighbouring rows. */
function rowsOf({ index, count }: Part, rows: number): RowShare {
  const from = Math.floor((rows * index) / count);
  return { from, count: Math.floor((rows * (index + 1)) / count) - from };
}

function generationsOf(share: PeerShare, move: MoveRequest, plan: RankPlan): SourceGenerations | null {
  if (move.blockGenerations === null && move.slotGeneration === null) return null;
  const hasSlot = share.slot !== null && move.slotGeneration !== null;
  const first = Math.floor((move.skipBlocks * plan.targetTokens) / plan.sourceTokens);
  return {
    blocks: move.blockGenerations === null ? new Int32Array(0) : share.blockIds.subarray(first),
    blockGenerations: move.blockGenerations === null ? new BigUint64Array(0) : move.blockGenerations.subarray(first),
    slots: hasSlot ? Int32Array.of(share.slot) : new Int32Array(0),
    slotGenerations: hasSlot ? BigUint64Array.of(move.slotGeneration) : new BigUint64Array(0),
  };
}
