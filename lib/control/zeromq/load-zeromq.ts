/** The only door to the `zeromq` package, which only the control plane's process and its peers need. */
import type * as zeromq from 'zeromq';
import { HandoffError } from '../../errors.js';

/** What the package exports. */
export type Zeromq = typeof zeromq;

let loaded: Zeromq | undefined;

/** @throws `ZEROMQ_UNAVAILABLE` when the package is not installed or does not load here */
export function loadZeromq(): Zeromq {
  try {
    // eslint-disable-next-line @typescript-eslint/no-require-imports -- an optional package: its absence is told
    loaded ??= require('zeromq') as Zeromq;
    return loaded;
  } catch (cause) {
    throw new HandoffError(
      'ZEROMQ_UNAVAILABLE',
      `zeromq does not load because ${(cause as Error).message}; install it beside state-handoff`,
      { cause },
    );
  }
}
