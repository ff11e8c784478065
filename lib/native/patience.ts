/**
 * Waits for native threads by asking now and then: unlike a wake-up, a timer keeps a process alive that waits for nothing
 * else.
 */
import { fromNative, native } from './addon-errors.js';
import type { NativeFailure, NativeLinkStatus } from './transfer-types.js';

const pause = (milliseconds: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, milliseconds));

/**
 * Resolves when a native transport is ready, or when `givenUp` says that nobody waits for it any more.
 *
 * @throws (rejects) what `failure` says once it has failed
 */
export async function untilReady(
  readiness: () => NativeLinkStatus,
  failure: () => NativeFailure | null,
  givenUp: () => boolean,
): Promise<void> {
  let now = native(readiness);
  while (now === 0 && !givenUp()) {
    await pause(5);
    now = native(readiness);
  }
  if (now === 2 && !givenUp()) throw fromNative(native(failure));
}

/** Resolves when the threads of a closing native transport have left. */
export async function untilQuiet(isQuiet: () => boolean): Promise<void> {
  while (!isQuiet()) await pause(1);
}
