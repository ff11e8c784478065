/** Who is told that a transport's rings may hold something, and whether a wake-up came while nobody listened. */
import { onNativeWake } from '../../native/wake.js';

export class WakeListener {
  private current: (() => void) | null = null;
  /** There is no other wake-up before the rings are looked at. */
  private missed = false;
  private readonly stop: () => void;

  /**
   * @param owner - what lives until `end`, whether anybody holds it or not: peers read its memory
   * @param first - what the transport itself does at every wake-up, before it tells
   */
  constructor(
    private readonly owner: object,
    private readonly first: () => void = () => undefined,
  ) {
    this.stop = onNativeWake(() => this.wake());
  }

  get listener(): (() => void) | null {
    return this.current;
  }

  set listener(listener: (() => void) | null) {
    this.current = listener;
    if (listener !== null && this.missed) queueMicrotask(() => this.wake());
  }

  wake(): void {
    this.first();
    this.missed = this.current === null;
    this.current?.();
  }

  /** Native wake-ups are heard no more. */
  end(): void {
    this.stop();
  }
}
