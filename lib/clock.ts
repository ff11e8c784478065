/** Time handed in: policy never reads a clock of its own. */
export interface Clock {
  /** Monotonic milliseconds. */
  now(): number;
}

/** The monotonic clock of this process. */
export const systemClock: Clock = { now: () => performance.now() };
