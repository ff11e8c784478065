/**
 * How a demo ends before its time: by a signal, or quietly because nobody reads its output any more (`npm run demo | head`).
 * Either way its processes end first, and its status is what a shell makes of the signal.
 */

const signals = { SIGINT: 130, SIGTERM: 143 } as const;
/** As of a program that SIGPIPE ends. */
const unread = 141;

/** Ends what is under way; null where nothing is that has to be waited for. */
type Stop = () => Promise<void> | null;

export class EarlyEnd {
  private asked: number | null = null;
  private stop: Stop = () => null;
  private say: (line: string) => void = () => undefined;
  private stopping: Promise<void> | null = null;

  constructor() {
    for (const [signal, status] of Object.entries(signals)) {
      process.on(signal, () => {
        if (this.asked !== null) return;
        this.say(`\n${signal}: ending all processes`);
        this.end(status);
      });
    }
    for (const stream of [process.stdout, process.stderr]) {
      stream.on('error', (error: NodeJS.ErrnoException) => {
        if (error.code !== 'EPIPE') throw error;
        if (this.asked === null) this.end(unread);
      });
    }
  }

  /** The status that the process was asked to end with; null while it was not. */
  get status(): number | null {
    return this.asked;
  }

  /** @param say - told of signals */
  onAsked(say: (line: string) => void, stop: Stop): void {
    this.say = say;
    this.stop = stop;
  }

  /** Comes back only where nothing was asked for: an end that is on its way ends this process itself. */
  async over(): Promise<void> {
    await this.stopping;
  }

  private end(status: number): void {
    this.asked = status;
    const stopped = this.stop();
    if (stopped !== null) this.stopping = stopped.then(() => process.exit(status));
  }
}
