/**
 * How one process of an engine reaches the others: sockets between all ranks of the world for what they compute, and the
 * handoff SDK's group over the ranks of one instance for its log.
 */
import { SocketRankGroup, type RankAddress, type RankGroup } from 'state-handoff';
import { InProcessPeers } from './in-process-peers.js';
import { receive, type Peers } from './peers.js';
import { RankPlace, type RankShape } from './rank-place.js';
import { SocketPeers } from './socket-peers.js';
import { runSteps } from './turn-runner.js';
import { WakeUp } from './wake-up.js';

export interface RankLinks {
  readonly place: RankPlace;
  readonly peers: Peers;
  /** Null for an instance of one rank. */
  readonly group: RankGroup | null;
  /** Poked when a message of another rank arrives. */
  readonly wakeUp: WakeUp;
  close(): void;
}

/**
 * Resolves when all ranks of the world are there.
 *
 * @param name - of the world, see `SocketPeersOptions`
 * @param secret - that only its ranks know
 * @throws (rejects) `ARGUMENT_INVALID`, `PEER_RANK_FAILED`, `RANK_SETUP_FAILED`
 */
export async function openRankLinks(shape: RankShape, rank: number, name: string, secret: string): Promise<RankLinks> {
  const place = new RankPlace(shape, rank);
  const wakeUp = new WakeUp();
  if (place.worldSize === 1) {
    return { place, peers: InProcessPeers.create(1)[0]!, group: null, wakeUp, close: () => undefined };
  }
  const peers = await SocketPeers.open({ rank, size: place.worldSize, name, secret });
  peers.onArrival = () => wakeUp.poke();
  try {
    const group = place.instanceRanks.length === 1 ? null : await openGroup(place, peers, secret, wakeUp);
    return { place, peers, group, wakeUp, close: () => peers.close() };
  } catch (error) {
    peers.close();
    throw error;
  }
}

/** The leader takes any free port and tells the others which. */
async function openGroup(place: RankPlace, peers: Peers, token: string, wakeUp: WakeUp): Promise<RankGroup> {
  const common = { rank: place.instanceRank, size: place.instanceRanks.length, token };
  if (!place.isLeader) {
    const bytes = await runSteps(receive(peers, place.instanceRanks[0]!), wakeUp);
    return SocketRankGroup.create({ ...common, address: JSON.parse(new TextDecoder().decode(bytes)) as RankAddress });
  }
  return SocketRankGroup.create({
    ...common,
    address: { port: 0 },
    onListening: (address) => {
      const bytes = new TextEncoder().encode(JSON.stringify(address));
      for (const other of place.instanceRanks) if (other !== place.rank) peers.send(other, bytes.slice());
    },
  });
}
