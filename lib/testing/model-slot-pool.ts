/**
 * A pool of live SSM state slots in plain TypeScript that follows spec 5: an independent model of `SsmSlotPool`.
 *
 * A LIFO stack of slots, and the request rows they are bound to. Detached slots belong to whoever detached them and
 * survive a reset.
 */
import { argumentError, HandoffError } from '../errors.js';
import type { SlotAllocator } from '../memory/allocators.js';

/** How a `ModelSlotPool` is made. */
export interface ModelSlotPoolOptions {
  /** Slots that can be handed out, and request rows. */
  readonly maxRequests: number;
}

/** A copy of everything a {@link ModelSlotPool} knows. */
export interface ModelSlotPoolState {
  readonly freeStack: readonly number[];
  /** Slot of each request row, or -1. */
  readonly bound: readonly number[];
  readonly generations: readonly number[];
}

/** What a slot pool tells its observers, after the change is complete. */
export interface ModelSlotObserver {
  /** A slot was handed out. */
  allocated?(slot: number): void;
  /** A slot came back. */
  freed?(slot: number): void;
}

/** See the file's comment; {@link SlotAllocator} documents the interface. */
export class ModelSlotPool implements SlotAllocator {
  readonly size: number;
  readonly observers = new Set<ModelSlotObserver>();
  /** How often each slot got a new owner, from 1; read only. */
  readonly generations: Float64Array;
  readonly #freeStack: number[] = [];
  readonly #isFree: Uint8Array;
  readonly #bound: Int32Array;

  /** @throws `ARGUMENT_INVALID` */
  constructor(options: ModelSlotPoolOptions) {
    const { maxRequests } = options;
    if (!Number.isSafeInteger(maxRequests) || maxRequests < 1) {
      throw argumentError('options.maxRequests', 'a positive integer', maxRequests);
    }
    this.size = maxRequests;
    this.generations = new Float64Array(maxRequests).fill(1);
    this.#isFree = new Uint8Array(maxRequests);
    this.#bound = new Int32Array(maxRequests).fill(-1);
    for (let slot = 0; slot < maxRequests; slot++) this.#push(slot);
  }

  get freeCount(): number {
    return this.#freeStack.length;
  }

  allocate(): number {
    return this.allocateBatch(1)?.[0] ?? -1;
  }

  /** The top `count` slots in stack order, or null (nothing changed). */
  allocateBatch(count: number): number[] | null {
    if (count > this.#freeStack.length) return null;
    const slots = this.#freeStack.splice(this.#freeStack.length - count, count);
    for (const slot of slots) {
      this.#isFree[slot] = 0;
      this.generations[slot]!++;
    }
    for (const observer of this.observers) for (const slot of slots) observer.allocated?.(slot);
    return slots;
  }

  free(slot: number): void {
    if (!Number.isSafeInteger(slot) || slot < 0 || slot >= this.size) {
      throw argumentError('slot', `a slot in [0, ${this.size - 1}]`, slot, 'SLOT_OUT_OF_RANGE');
    }
    if (this.#isFree[slot] === 1 || this.#freeStack.length >= this.size) {
      throw new HandoffError('SLOT_POOL_OVERFLOW', `free failed because slot ${slot} is free already`, {
        details: { slot },
      });
    }
    this.#push(slot);
    for (const observer of this.observers) observer.freed?.(slot);
  }

  /** Binds an allocated slot to a request row. */
  bind(row: number, slot: number): void {
    this.#requireRow(row);
    if (slot < 0 || slot >= this.size)
      throw argumentError('slot', `a slot in [0, ${this.size - 1}]`, slot, 'SLOT_OUT_OF_RANGE');
    this.#bound[row] = slot;
  }

  /** Unbinds the slot of a row without freeing it: its content lives on. @throws `SLOT_NOT_BOUND` */
  detach(row: number): number {
    this.#requireRow(row);
    const slot = this.#bound[row]!;
    if (slot < 0)
      throw new HandoffError('SLOT_NOT_BOUND', `detach failed because row ${row} has no slot`, { details: { row } });
    this.#bound[row] = -1;
    return slot;
  }

  /** Frees and unbinds the slots of these rows. Rows without one are skipped. */
  freeRows(rows: readonly number[]): void {
    for (const row of rows) {
      this.#requireRow(row);
      const slot = this.#bound[row]!;
      this.#bound[row] = -1;
      if (slot >= 0) this.free(slot);
    }
  }

  /** Frees what is still bound to a row; detached slots stay out. */
  reset(): void {
    this.freeRows(Array.from({ length: this.size }, (_, row) => row));
  }

  /** Current generations of `slots`. */
  generationsOf(slots: Int32Array): BigUint64Array {
    return BigUint64Array.from(slots, (slot) => {
      if (slot < 0 || slot >= this.size)
        throw argumentError('slots', `slots in [0, ${this.size - 1}]`, slot, 'SLOT_OUT_OF_RANGE');
      return BigInt(this.generations[slot]!);
    });
  }

  /** Whether a slot is free. */
  isFree(slot: number): boolean {
    return this.#isFree[slot] === 1;
  }

  /** The whole state, in the form of the reference's traces. */
  state(): ModelSlotPoolState {
    return { freeStack: [...this.#freeStack], bound: [...this.#bound], generations: [...this.generations] };
  }

  /** A 32-bit digest of the whole state: equal pools give equal digests. */
  digest(): number {
    let digest = 0x811c9dc5;
    for (const value of [...this.#freeStack, -1, ...this.#bound, ...this.generations]) {
      digest = Math.imul(digest ^ value, 0x01000193);
    }
    return digest >>> 0;
  }

  #push(slot: number): void {
    this.#freeStack.push(slot);
    this.#isFree[slot] = 1;
  }

  #requireRow(row: number): void {
    if (!Number.isSafeInteger(row) || row < 0 || row >= this.size) {
      throw argumentError('row', `a row in [0, ${this.size - 1}]`, row);
    }
  }
}
