/** Runs the turns of one rank in a process of its own, for as long as there are any; sleeps while nothing is to be done. */
import type { StateHandoff } from 'state-handoff';
import type { Steps } from './peers.js';
import type { RankLoop, TurnOutcome } from './rank-loop.js';
import type { WakeUp } from './wake-up.js';

/** How long after a look at imports or pushes that are under way the next comes, unless something arrives before. */
const lookAgainMs = 1;

/** @param wakeUp - poked when something arrives that the steps may wait for */
export async function runSteps<Result>(steps: Steps<Result>, wakeUp: WakeUp): Promise<Result> {
  for (;;) {
    const { done, value } = steps.next();
    if (done === true) return value;
    await wakeUp.wait();
  }
}

/**
 * Turn after turn, until the last one.
 *
 * @param wakeUp - poked when a message arrives, and after each `loop.wake`, `submit`, `abort` and `end`
 * @param isLeader - the others begin a turn when the leader does
 * @param afterTurn - told of each turn
 * @throws `PEER_RANK_FAILED` when another rank is gone, and whatever a turn throws
 */
export async function runTurns(
  loop: RankLoop,
  handoff: StateHandoff | null,
  wakeUp: WakeUp,
  isLeader: boolean,
  afterTurn: (outcome: TurnOutcome) => void = () => undefined,
): Promise<void> {
  for (;;) {
    const outcome = await runSteps(loop.turn(), wakeUp);
    afterTurn(outcome);
    if (outcome.hasEnded) return;
    // Lets in what has arrived meanwhile.
    await new Promise((resolve) => setImmediate(resolve));
    if (!isLeader || outcome.isBusy || loop.hasInput) continue;
    const isMoving = handoff !== null && handoff.pendingKvImportCount + handoff.pendingKvPushCount > 0;
    await wakeUp.wait(isMoving ? lookAgainMs : Infinity);
  }
}
