/**
 * A clock that moves only when told to, and the timers that fire as it moves.
 *
 * Timers fire in order of time, and in order of setting within one instant, each exactly at its own time. So a
 * simulation is a pure function of its seed, and a deadline of minutes is tested in microseconds.
 */
import { argumentError } from '../errors.js';
import type { Clock } from '../clock.js';

/** A timer that has not fired. */
export interface SimulatedTimer {
  readonly atMs: number;
  /** Idempotent; no effect once the timer has fired. */
  cancel(): void;
}

class Timer implements SimulatedTimer {
  callback: (() => void) | null;

  constructor(
    readonly atMs: number,
    readonly sequence: number,
    callback: () => void,
    readonly clock: { pending: number },
  ) {
    this.callback = callback;
  }

  cancel(): void {
    if (this.callback === null) return;
    this.callback = null;
    this.clock.pending--;
  }
}

/** A {@link Clock} under test control, in milliseconds from 0. */
export class SimulatedClock implements Clock {
  #nowMs: number;
  #sequence = 0;
  readonly #heap: Timer[] = [];
  readonly #count = { pending: 0 };

  constructor(startMs = 0) {
    if (!Number.isFinite(startMs)) throw argumentError('startMs', 'a finite number of milliseconds', startMs);
    this.#nowMs = startMs;
  }

  now(): number {
    return this.#nowMs;
  }

  /** Timers that would still fire. */
  get pendingCount(): number {
    return this.#count.pending;
  }

  /** When the next timer fires, or null. */
  get nextMs(): number | null {
    this.#dropCancelled();
    return this.#heap[0]?.atMs ?? null;
  }

  /** Calls `callback` once, when the clock reaches `delayMs` from now. */
  after(delayMs: number, callback: () => void): SimulatedTimer {
    if (!(delayMs >= 0) || delayMs === Infinity)
      throw argumentError('delayMs', 'a finite number of at least 0', delayMs);
    const timer = new Timer(this.#nowMs + delayMs, this.#sequence++, callback, this.#count);
    this.#count.pending++;
    this.#push(timer);
    return timer;
  }

  /** Moves on by `ms`, firing every timer that falls due, those set meanwhile included. Returns how many fired. */
  advance(ms: number): number {
    if (!(ms >= 0) || ms === Infinity) throw argumentError('ms', 'a finite number of at least 0', ms);
    const endMs = this.#nowMs + ms;
    let fired = 0;
    for (let next = this.nextMs; next !== null && next <= endMs; next = this.nextMs) {
      this.#fire();
      fired++;
    }
    this.#nowMs = endMs;
    return fired;
  }

  /** Moves to the next timer and fires it. Returns false when there is none. */
  step(): boolean {
    if (this.nextMs === null) return false;
    this.#fire();
    return true;
  }

  #fire(): void {
    const timer = this.#pop();
    this.#nowMs = Math.max(this.#nowMs, timer.atMs);
    const callback = timer.callback!;
    timer.cancel();
    callback();
  }

  #dropCancelled(): void {
    while (this.#heap.length > 0 && this.#heap[0]!.callback === null) this.#pop();
  }

  #push(timer: Timer): void {
    const heap = this.#heap;
    let index = heap.length;
    heap.push(timer);
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (!isBefore(timer, heap[parent]!)) break;
      heap[index] = heap[parent]!;
      index = parent;
    }
    heap[index] = timer;
  }

  #pop(): Timer {
    const heap = this.#heap;
    const first = heap[0]!;
    const last = heap.pop()!;
    if (heap.length === 0) return first;
    let index = 0;
    for (;;) {
      let child = 2 * index + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child++;
      if (!isBefore(heap[child]!, last)) break;
      heap[index] = heap[child]!;
      index = child;
    }
    heap[index] = last;
    return first;
  }
}

function isBefore(a: Timer, b: Timer): boolean {
  return a.atMs !== b.atMs ? a.atMs < b.atMs : a.sequence < b.sequence;
}
