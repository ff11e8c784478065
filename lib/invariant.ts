/** Programmer errors inside the library: never caused by a peer or a caller, never recovered from. */
import { HandoffError } from './errors.js';

/**
 * Throws `INVARIANT` when `condition` is false. What it guards is a law of this library; whoever sees it fail should
 * treat the engine as broken and its memory as in doubt.
 */
export function invariant(
  condition: boolean,
  message: string,
  details: Record<string, unknown> = {},
): asserts condition {
  if (!condition) {
    throw new HandoffError('INVARIANT', `broken invariant: ${message}`, {
      sourceSafe: false,
      targetSafe: false,
      details,
    });
  }
}
