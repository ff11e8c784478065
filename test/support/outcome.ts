/** What becomes of a request's promise, for tests that step engines by hand and look at it in between. */
import type { Finished } from '../../lib/engine-context.js';
import { isHandoffError, type HandoffError } from '../../lib/errors.js';

/** How a caller's promise stands. */
export interface Outcome {
  finished: Finished | null;
  error: HandoffError | null;
  /** Each promise settles once; this counts. */
  settled: number;
}

/** What is no `HandoffError` fails the test that it comes up in. */
export function outcomeOf(promise: Promise<Finished>): Outcome {
  const outcome: Outcome = { finished: null, error: null, settled: 0 };
  promise.then(
    (finished) => {
      outcome.finished = finished;
      outcome.settled += 1;
    },
    (error: unknown) => {
      if (!isHandoffError(error)) throw error;
      outcome.error = error;
      outcome.settled += 1;
    },
  );
  return outcome;
}

/** Lets promises settle. */
export function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
