/** Decode instances of several ranks of which one diverges or is lost, and what each rank says of it. */
import type { RankGroup } from '../../lib/control/rank-group.js';
import type { HandoffError } from '../../lib/errors.js';
import { LostRankGroup } from './altered-rank-groups.js';
import { createWorld, poolState, type Instance, type InstanceOptions } from './lifecycle-fixture.js';

/** A decode instance of two ranks whose engines say what failed them. */
export async function twoRanks(options: InstanceOptions = {}, both: InstanceOptions = {}) {
  const world = await createWorld({ tpSize: 2, ...options }, {}, both);
  const failures: HandoffError[][] = [[], []];
  world.decode.ranks.forEach(({ handoff }, rank) => handoff.on('engineFailed', (error) => failures[rank]!.push(error)));
  return { ...world, failures };
}

/** The scheduling point of every rank; what each threw. */
export function scheduleAll(decode: Instance): (HandoffError | null)[] {
  return decode.ranks.map(({ engine, handoff }) => {
    engine.isScheduling = true;
    try {
      handoff.scheduleWaitingRequests(0);
      return null;
    } catch (error) {
      return error as HandoffError;
    } finally {
      engine.isScheduling = false;
    }
  });
}

/** Ranks whose groups can lose a rank, in the order of the ranks. */
export function losable() {
  const groups: LostRankGroup[] = [];
  const group = (inner: RankGroup): LostRankGroup => {
    const around = new LostRankGroup(inner);
    groups.push(around);
    return around;
  };
  return { groups, group };
}

export const pools = (decode: Instance) => decode.ranks.map(({ engine }) => poolState(engine.blocks));
