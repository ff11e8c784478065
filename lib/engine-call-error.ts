/** Errors that the host engine's own methods throw, in our words. */
import { HandoffError, isHandoffError } from './errors.js';

/** What somebody threw, or gave for an error, in a word or a sentence. */
export function messageOf(thrown: unknown): string {
  return String((thrown as { message?: unknown } | null | undefined)?.message ?? thrown);
}

/** What came out of a call as an error of ours: anything else comes from the host engine's own methods. */
export function engineCallError(thrown: unknown): HandoffError {
  if (isHandoffError(thrown)) return thrown;
  return new HandoffError(
    'ENGINE_CALL_FAILED',
    `a call into the engine failed because ${messageOf(thrown)}; its methods must not throw`,
    {
      cause: thrown,
    },
  );
}
