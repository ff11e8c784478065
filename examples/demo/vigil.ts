/**
 * Waiting for what processes say: until something is so, until something has failed, or until nothing at all was heard for
 * too long. The first failure counts; what is only the consequence of another gives that one time to be told.
 */

/** How long nothing at all may be heard while something is awaited. */
const silenceMs = 60_000;

/** How long the end of a process may be behind what others say because of it. */
const causeMs = 5_000;

export class Vigil {
  /** Why nothing goes on; null while all is well. */
  failure: Error | null = null;
  private heardAt = Date.now();
  private look: () => void = () => undefined;

  /** Something was heard, and what it means was noted: looks again whether what is awaited has come. */
  heard(): void {
    this.heardAt = Date.now();
    this.look();
  }

  /** @param isConsequence - what caused it may still come, and says more */
  fail(error: Error, isConsequence = false): void {
    if (isConsequence && this.failure === null) {
      // And then once around the loop: a process whose end is known already is told of first.
      setTimeout(() => setImmediate(() => setImmediate(() => this.fail(error))), causeMs).unref();
      return;
    }
    this.failure ??= error;
    this.look();
  }

  /** @throws (rejects) the failure */
  until(what: string, isSo: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      this.heardAt = Date.now();
      const watch = setInterval(() => this.look(), 1_000);
      this.look = () => {
        if (this.failure === null && Date.now() - this.heardAt > silenceMs) {
          this.failure = new Error(`nothing was heard for ${silenceMs / 1000} s while waiting for ${what}`);
        }
        if (this.failure === null && !isSo()) return;
        clearInterval(watch);
        this.look = () => undefined;
        if (this.failure === null) resolve();
        else reject(this.failure);
      };
      this.look();
    });
  }
}
