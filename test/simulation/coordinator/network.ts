/**
 * Time and connections of a simulated control plane: messages of one connection and direction stay in order, those of
 * different peers do not; a connection can break with what is on its way, and some messages come twice or are lost.
 */
import type { SeededRandom } from '../../../lib/testing/index.js';

/** Things to do at a time; equal times in the order in which they were planned. */
export class Agenda {
  now = 0;
  #next = 0;
  readonly #heap: { readonly at: number; readonly order: number; readonly run: () => void }[] = [];

  after(ms: number, run: () => void): void {
    const heap = this.#heap;
    let index = heap.push({ at: this.now + ms, order: this.#next++, run }) - 1;
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (!this.#isBefore(index, parent)) break;
      [heap[index], heap[parent]] = [heap[parent]!, heap[index]!];
      index = parent;
    }
  }

  /** Does the next thing that is due by `until`. @returns false when there is none */
  step(until: number): boolean {
    const heap = this.#heap;
    const first = heap[0];
    if (first === undefined || first.at > until) {
      this.now = until;
      return false;
    }
    const last = heap.pop()!;
    if (heap.length > 0) {
      heap[0] = last;
      for (let index = 0; ;) {
        let least = index;
        for (const child of [2 * index + 1, 2 * index + 2]) {
          if (child < heap.length && this.#isBefore(child, least)) least = child;
        }
        if (least === index) break;
        [heap[index], heap[least]] = [heap[least]!, heap[index]!];
        index = least;
      }
    }
    this.now = first.at;
    first.run();
    return true;
  }

  #isBefore(a: number, b: number): boolean {
    const [one, other] = [this.#heap[a]!, this.#heap[b]!];
    return one.at < other.at || (one.at === other.at && one.order < other.order);
  }
}

export interface NetworkRates {
  readonly delayMsMax: number;
  readonly duplicate: number;
  /** Of messages that vanish although their connection holds. */
  readonly loss: number;
}

/** One direction of one connection. */
export class Line<M> {
  #lastAt = 0;
  #isUp = true;

  constructor(
    private readonly agenda: Agenda,
    private readonly random: SeededRandom,
    private readonly rates: () => NetworkRates,
    /** Whether a message may come twice, or never, on a connection that holds. */
    private readonly mayFail: (message: M) => boolean,
    private readonly arrive: (message: M) => void,
  ) {}

  /** What is on its way never arrives. */
  cut(): void {
    this.#isUp = false;
  }

  send(message: M): void {
    const { agenda, random } = this;
    const rates = this.rates();
    const fails = this.mayFail(message);
    if (fails && random.chance(rates.loss)) return;
    const times = fails && random.chance(rates.duplicate) ? 2 : 1;
    for (let time = 0; time < times; time++) {
      this.#lastAt = Math.max(this.#lastAt, agenda.now + random.float() * rates.delayMsMax);
      agenda.after(this.#lastAt - agenda.now, () => {
        if (this.#isUp) this.arrive(message);
      });
    }
  }
}
