/** All ranks of a world in one thread: for tests, and to watch several ranks in one debugger. */
import { HandoffError } from 'state-handoff';
import type { Peers, Steps } from './peers.js';

export class InProcessPeers implements Peers {
  onArrival: (() => void) | null = null;

  private constructor(
    readonly rank: number,
    readonly size: number,
    /** `[to][from]`: messages that were not taken yet. */
    private readonly mail: readonly (readonly Uint8Array[][])[],
    private readonly all: InProcessPeers[],
  ) {}

  /** All ranks of a new world, by rank. */
  static create(size: number): readonly InProcessPeers[] {
    const mail = Array.from({ length: size }, () => Array.from({ length: size }, (): Uint8Array[] => []));
    const all: InProcessPeers[] = [];
    for (let rank = 0; rank < size; rank++) all.push(new InProcessPeers(rank, size, mail, all));
    return all;
  }

  get hasMail(): boolean {
    return this.mail[this.rank]!.some((messages) => messages.length > 0);
  }

  send(to: number, bytes: Uint8Array): void {
    this.mail[to]![this.rank]!.push(bytes);
    this.all[to]!.onArrival?.();
  }

  take(from: number): Uint8Array | null {
    return this.mail[this.rank]![from]!.shift() ?? null;
  }
}

/**
 * Runs the ranks' steps to their ends, each as far as it gets, round by round. Results by rank.
 *
 * @param roundsMax - without an end by then, ranks wait for one another in a circle, or for what nobody sends
 * @throws `DIVERGENCE`, and whatever a rank throws
 */
export function runTogether<Result>(ranks: readonly Steps<Result>[], roundsMax = 100_000): Result[] {
  const results = new Array<Result>(ranks.length);
  let open = ranks.map((steps, rank) => ({ steps, rank }));
  for (let round = 0; open.length > 0; round++) {
    if (round === roundsMax) {
      const message = `rank ${open.map(({ rank }) => rank).join(' and rank ')} wait for what nobody sends`;
      throw new HandoffError('DIVERGENCE', message);
    }
    open = open.filter(({ steps, rank }) => {
      const { done, value } = steps.next();
      if (done === true) results[rank] = value;
      return done !== true;
    });
  }
  return results;
}
