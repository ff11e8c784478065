/** Lets a worker that computes for long say so now and then, and not at every step. */

const everyMs = 1_000;

export class SignOfLife {
  private saidAt = performance.now();

  constructor(private readonly say: (tokens: number) => void) {}

  /** @param tokens - that have run through the model so far */
  pass(tokens: number): void {
    const now = performance.now();
    if (now - this.saidAt < everyMs) return;
    this.saidAt = now;
    this.say(tokens);
  }
}
