/** Errors that the host engine's own methods throw, in our words. */
import { HandoffError, isHandoffError } from './errors.js';

/** What came out of a call as an error of ours: anything else comes from the host engine's own methods. */
export function engineCallError(thrown: unknown): HandoffError {
  if (isHandoffError(thrown)) return thrown;
  const why = String((thrown as { message?: unknown } | null)?.message ?? thrown);
  return new HandoffError(
    'ENGINE_CALL_FAILED',
    `a call into the engine failed because ${why}; its methods must not throw`,
    {
      cause: thrown,
    },
  );
}
