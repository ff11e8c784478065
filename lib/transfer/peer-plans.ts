/**
 * From a peer's rank descriptors to the legs of a transfer: which of its ranks this rank reads, over which transport,
 * with which rectangles. What does not depend on the request is computed once for a peer and kept.
 */
import { HandoffError } from '../errors.js';
import type { JsonValue } from '../json.js';
import type { TransferLeg } from '../decode/local-transfer.js';
import type { CopyProgram, Rectangle, Table } from './copy-program.js';
import { planKv, representativeSources, uncoveredKvCells, type KvEndpoint } from './plan-kv.js';
import { planSsm, representativeSsmSources, uncoveredSsmCells, type SsmEndpoint } from './plan-ssm.js';
import type { RectangleTemplate } from './rectangle.js';
import type { Peer, SourceGenerations, Transport } from './transport.js';

/** One rank of a peer, as its descriptors tell it; the same object for the same descriptors. */
export interface PeerRank {
  /** Unique for (instance, incarnation, rank). */
  readonly key: string;
  readonly kv: KvEndpoint;
  readonly ssm: SsmEndpoint | null;
  /** Opaque grants by transport name. */
  readonly transports: Readonly<Record<string, JsonValue>>;
}

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

/** What one of the peer's ranks and this rank exchange, whatever the request. */
interface RankPlan {
  readonly rank: PeerRank;
  readonly kv: readonly RectangleTemplate[];
  readonly ssm: readonly RectangleTemplate[];
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

/** Which of its states a source rank pushes. */
export interface PushDuties {
  readonly kv: boolean;
  readonly ssm: boolean;
}

/** The receiver expects each shard once, from the replica that stands for it; the source follows the same rule. */
export function pushDuties(instance: readonly PeerRank[], globalRank: number): PushDuties {
  const standsFor = (representatives: readonly number[]): boolean =>
    representatives.some((index) => instance[index]?.kv.layout.globalRank === globalRank);
  const ssm = instance.flatMap((rank) => (rank.ssm === null ? [] : [rank.ssm.layout]));
  return {
    kv: standsFor(representativeSources(instance.map((rank) => rank.kv.layout))),
    ssm: ssm.length === instance.length && standsFor(representativeSsmSources(ssm)),
  };
}

export class PeerPlans {
  /** By the peer's rank array: plans of the ranks that matter to this rank. */
  private readonly plans = new WeakMap<readonly PeerRank[], readonly (RankPlan | null)[]>();
  /** Least recently used first. */
  private readonly connections = new Map<string, Connection>();

  constructor(
    private readonly own: { readonly kv: KvEndpoint; readonly ssm: SsmEndpoint | null },
    private readonly transports: readonly Transport[],
    private readonly direction: 'pull' | 'push-source' = 'pull',
    private readonly maxConnections = 1024,
    /** A push: what this rank sends; a replica that another rank stands for sends nothing. */
    private readonly duties: PushDuties = { kv: true, ssm: true },
    /** A transport need not give up on its own: what does not come up for so long is connected again. */
    private readonly patience: ConnectPatience = { now: () => 0, connectMs: Infinity },
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
      const connection = this.connectFor(plan.rank, legs);
      connection.users += 1;
      legs.push({
        transport: connection.transport,
        get peer() {
          return connection.peer;
        },
        release: () => (connection.users -= 1),
        request: { programs, generations: generationsOf(share, move), tag: this.tag(move.tag, plan.rank) },
      });
    }
    return legs;
  }

  /** The same text on both ends of one (source rank, target rank) pair. */
  private tag(handoff: string, rank: PeerRank): string {
    const [own, other] = [this.own.kv.layout.globalRank, rank.kv.layout.globalRank];
    return this.direction === 'pull' ? `${handoff}:${other}>${own}` : `${handoff}:${own}>${other}`;
  }

  /** The first transport that this side has and the peer offers, or null. */
  findTransport(rank: PeerRank): Transport | null {
    return this.transports.find(({ name }) => Object.hasOwn(rank.transports, name)) ?? null;
  }

  private requireTransport(rank: PeerRank): Transport {
    const transport = this.findTransport(rank);
    if (transport !== null) return transport;
    const ours = this.transports.map(({ name }) => name);
    const theirs = Object.keys(rank.transports);
    throw new HandoffError(
      'NO_TRANSPORT',
      `no transport that both ends can use: this side has ${ours.join(', ') || 'none'}, the peer offers ${theirs.join(', ') || 'none'}`,
      { details: { ours, theirs } },
    );
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
  private connectFor(rank: PeerRank, legs: readonly TransferLeg[]): Connection {
    try {
      return this.connect(rank);
    } catch (error) {
      for (const leg of legs) leg.release?.();
      throw error;
    }
  }

  private connect(rank: PeerRank): Connection {
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
    const transport = this.requireTransport(rank);
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
          ? this.planPull(ranks)
          : ranks.map((rank) => this.planRank(rank, this.duties.kv, this.duties.ssm));
      this.plans.set(ranks, plans);
    }
    return plans;
  }

  /** Replicas are read from one of them; what is left must cover this rank's state, each cell once. */
  private planPull(ranks: readonly PeerRank[]): readonly (RankPlan | null)[] {
    const kvLayouts = ranks.map((rank) => rank.kv.layout);
    const ssmLayouts = ranks.flatMap((rank) => (rank.ssm === null ? [] : [rank.ssm.layout]));
    if (ssmLayouts.length !== (this.own.ssm === null ? 0 : ranks.length)) {
      throw new HandoffError('INCOMPATIBLE', 'ssm: expected SSM state on both sides or on neither');
    }
    const kv = uncoveredKvCells(kvLayouts, this.own.kv.layout);
    const ssm = this.own.ssm === null ? 0 : uncoveredSsmCells(ssmLayouts, this.own.ssm.layout);
    if (kv !== 0 || ssm !== 0) {
      const fault =
        kv < 0 || ssm < 0
          ? 'hold some state twice'
          : `leave out ${kv} attention and ${ssm} SSM (layer, head) cells of this rank`;
      throw new HandoffError(
        'INCOMPATIBLE',
        `the peer's ${ranks.length} ranks ${fault}; all ranks of one instance must be described, each once`,
        { details: { uncoveredKv: kv, uncoveredSsm: ssm } },
      );
    }
    const kvSources = new Set(representativeSources(kvLayouts));
    const ssmSources = new Set(representativeSsmSources(ssmLayouts));
    return ranks.map((rank, index) => this.planRank(rank, kvSources.has(index), ssmSources.has(index)));
  }

  private planRank(rank: PeerRank, withKv: boolean, withSsm: boolean): RankPlan | null {
    const [source, target] = this.direction === 'pull' ? [rank, this.own] : [this.own, rank];
    const kv = withKv ? planKv(source.kv, target.kv) : [];
    const ssm = withSsm && source.ssm !== null && target.ssm !== null ? planSsm(source.ssm, target.ssm) : [];
    return kv.length === 0 && ssm.length === 0 ? null : { rank, kv, ssm };
  }

  private kvProgram(plan: RankPlan, share: PeerShare, move: MoveRequest): CopyProgram[] {
    if (plan.kv.length === 0 || move.localBlocks.length <= move.skipBlocks) return [];
    const theirs = share.blockIds.subarray(move.skipBlocks);
    const ours = move.localBlocks.subarray(move.skipBlocks);
    return [this.program(plan.kv, theirs, ours)];
  }

  private ssmProgram(plan: RankPlan, share: PeerShare, move: MoveRequest): CopyProgram[] {
    if (plan.ssm.length === 0) return [];
    if (share.slot === null || move.localSlot === null) {
      throw new HandoffError('SSM_METADATA_INVALID', 'the handoff of a hybrid model names no SSM slot');
    }
    return [this.program(plan.ssm, Int32Array.of(share.slot), Int32Array.of(move.localSlot))];
  }

  private program(templates: readonly RectangleTemplate[], theirs: Int32Array, ours: Int32Array): CopyProgram {
    const pull = this.direction === 'pull';
    const [source, target] = pull ? [theirs, ours] : [ours, theirs];
    const tables: Table[] = [];
    const rectangles: Rectangle[] = [];
    for (const template of templates) {
      const strides = template.tableStrides;
      let table = tables.findIndex(
        (known) => known.strides.sourceBlock === strides.source && known.strides.targetBlock === strides.target,
      );
      if (table < 0) {
        table = tables.length;
        tables.push({
          source,
          target,
          strides: { sourceBlock: strides.source, targetBlock: strides.target, sourceSub: 0, targetSub: 0 },
        });
      }
      rectangles.push({ ...template.rectangle, table, tableFrom: 0, tableCount: source.length });
    }
    return { rectangles, tables };
  }
}

function connectTo(transport: Transport, rank: PeerRank): Peer {
  return transport.connect(rank.transports[transport.name] as JsonValue);
}

function generationsOf(share: PeerShare, move: MoveRequest): SourceGenerations | null {
  if (move.blockGenerations === null && move.slotGeneration === null) return null;
  const hasSlot = share.slot !== null && move.slotGeneration !== null;
  return {
    blocks: move.blockGenerations === null ? new Int32Array(0) : share.blockIds.subarray(move.skipBlocks),
    blockGenerations:
      move.blockGenerations === null ? new BigUint64Array(0) : move.blockGenerations.subarray(move.skipBlocks),
    slots: hasSlot ? Int32Array.of(share.slot) : new Int32Array(0),
    slotGenerations: hasSlot ? BigUint64Array.of(move.slotGeneration) : new BigUint64Array(0),
  };
}
