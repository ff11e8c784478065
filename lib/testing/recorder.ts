/**
 * Records what emitters say, in order and with times, and prints a short trace of it.
 *
 * It keeps references, not copies, and formats nothing until asked, so that a simulation can afford it. Bounded: the
 * oldest entries go when `capacity` is reached.
 */
import type { Clock } from '../clock.js';
import { argumentError, describeValue, isHandoffError } from '../errors.js';

/** The part of an event emitter that a recorder needs; `StateHandoff` has it. */
export interface RecordedEmitter {
  /** Listens. */
  on(event: string, listener: (...args: unknown[]) => void): unknown;
  /** Stops listening. */
  off(event: string, listener: (...args: unknown[]) => void): unknown;
}

/** One event with its time and arguments. */
export interface RecordedEvent {
  /** Counts all events ever recorded, dropped ones included; from 0. */
  readonly index: number;
  readonly atMs: number;
  /** Who said it, as named in `watch` or `record`. */
  readonly source: string;
  readonly event: string;
  readonly args: readonly unknown[];
}

const traceLinesDefault = 40;
const fieldsMax = 8;

/** An ordered, timed record of events. */
export class Recorder {
  readonly #clock: Clock;
  readonly #capacity: number;
  #entries: RecordedEvent[] = [];
  #index = 0;

  constructor(clock: Clock, capacity = 100_000) {
    if (!Number.isSafeInteger(capacity) || capacity < 1)
      throw argumentError('capacity', 'a positive integer', capacity);
    this.#clock = clock;
    this.#capacity = capacity;
  }

  /** Records `events` of `emitter` as said by `source`, until the returned function is called. */
  watch(source: string, emitter: RecordedEmitter, events: readonly string[]): () => void {
    const listeners = events.map((event) => {
      const listener = (...args: unknown[]): void => this.record(source, event, ...args);
      emitter.on(event, listener);
      return { event, listener };
    });
    return () => {
      for (const { event, listener } of listeners) emitter.off(event, listener);
    };
  }

  /** Adds an entry of one's own. */
  record(source: string, event: string, ...args: unknown[]): void {
    // Dropping half at once keeps the cost of a full recorder constant.
    if (this.#entries.length >= this.#capacity) this.#entries = this.#entries.slice(-Math.floor(this.#capacity / 2));
    this.#entries.push({ index: this.#index++, atMs: this.#clock.now(), source, event, args });
  }

  /** What is kept, oldest first. */
  get entries(): readonly RecordedEvent[] {
    return this.#entries;
  }

  /** All events ever recorded, dropped ones included. */
  get count(): number {
    return this.#index;
  }

  /** Entries of one event, oldest first; of one source when given. */
  of(event: string, source?: string): readonly RecordedEvent[] {
    return this.#entries.filter((entry) => entry.event === event && (source === undefined || entry.source === source));
  }

  /**
   * The last entries, a line each: time, source, event, and the arguments shortened.
   *
   * @param last - how many lines; 40 when left out
   * @param matching - only entries that satisfy it
   */
  trace(last = traceLinesDefault, matching: (entry: RecordedEvent) => boolean = () => true): string {
    return this.#entries
      .filter(matching)
      .slice(-last)
      .map((entry) => {
        const args = entry.args.map(describeArgument).join(' ');
        return `${entry.atMs.toFixed(3).padStart(10)}  ${entry.source.padEnd(12)} ${entry.event} ${args}`.trimEnd();
      })
      .join('\n');
  }

  /** Forgets what was recorded. */
  clear(): void {
    this.#entries = [];
  }
}

function describeArgument(value: unknown): string {
  if (isHandoffError(value)) return `${value.code} "${value.message.slice(0, 120)}"`;
  if (ArrayBuffer.isView(value) && !(value instanceof DataView))
    return describeList(value as unknown as ArrayLike<unknown>);
  if (Array.isArray(value)) return describeList(value);
  if (typeof value !== 'object' || value === null) return describeValue(value);
  const fields = Object.entries(value).slice(0, fieldsMax);
  return `{${fields.map(([key, field]) => `${key}: ${isFlat(field) ? describeFlat(field) : describeValue(field)}`).join(', ')}}`;
}

function isFlat(value: unknown): boolean {
  return isHandoffError(value) || Array.isArray(value) || ArrayBuffer.isView(value);
}

function describeFlat(value: unknown): string {
  return isHandoffError(value) ? value.code : describeList(value as ArrayLike<unknown>);
}

function describeList(list: ArrayLike<unknown>): string {
  const shown = Array.from({ length: Math.min(list.length, fieldsMax) }, (_, i) => describeValue(list[i]));
  return `[${shown.join(', ')}${list.length > fieldsMax ? `, … ${list.length} in all` : ''}]`;
}
