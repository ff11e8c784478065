/** What several ranks do together, made of messages between two. Every rank named calls it, at the same place. */
import { bytesIn, numbersOf, receive, type Peers, type Steps } from './peers.js';

/**
 * Every rank of `ranks` gives something and gets what the others gave.
 *
 * @param give - of this rank, for the others
 * @param take - called for each other rank, in order
 */
export function* exchange(
  peers: Peers,
  ranks: readonly number[],
  give: (to: number) => Uint8Array,
  take: (from: number, bytes: Uint8Array) => void,
): Steps<void> {
  const others = ranks.filter((rank) => rank !== peers.rank);
  for (const rank of others) peers.send(rank, give(rank));
  for (const rank of others) take(rank, yield* receive(peers, rank));
}

/** The largest of what the ranks say, number by number. */
export function* consensus(peers: Peers, ranks: readonly number[], own: readonly number[]): Steps<number[]> {
  const largest = [...own];
  yield* exchange(
    peers,
    ranks,
    () => bytesIn(Int32Array.from(own)),
    (from, given) => {
      for (const [index, value] of numbersOf('int32', given, from, own.length).entries()) {
        if (value > largest[index]!) largest[index] = value;
      }
    },
  );
  return largest;
}
