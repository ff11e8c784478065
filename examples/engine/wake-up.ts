/** Waiting without asking again and again: whoever brings something pokes, and nothing poked for is ever missed. */
export class WakeUp {
  private isPoked = false;
  private resume: (() => void) | null = null;

  /** Something has come. */
  poke(): void {
    this.isPoked = true;
    this.resume?.();
  }

  /**
   * Resolves when something has come since the last wait, or after a while. One waits at a time.
   *
   * @param milliseconds - at most; left out: for ever
   */
  async wait(milliseconds = Infinity): Promise<void> {
    if (!this.isPoked) {
      await new Promise<void>((resolve) => {
        this.resume = resolve;
        if (milliseconds !== Infinity) {
          const timer = setTimeout(resolve, milliseconds);
          this.resume = () => {
            clearTimeout(timer);
            resolve();
          };
        }
      });
      this.resume = null;
    }
    this.isPoked = false;
  }
}
