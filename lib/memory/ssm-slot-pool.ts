/**
 * Live SSM state slots (spec 5), native underneath: a LIFO stack of slots and the request rows they are bound to.
 *
 * A slot is free, bound to one row, or held by whoever allocated or detached it; held slots survive a reset. A slot is
 * never in two of these places, whatever the caller does.
 */
import { requireObject } from '../argument-shape.js';
import { native } from '../native/addon-errors.js';
import { addon } from '../native/addon.js';
import type { NativeSsmSlotPool } from '../native/memory-types.js';
import type { SlotAllocator } from './allocators.js';
import type { Generations } from './generations.js';

/** How an `SsmSlotPool` is made. */
export interface SsmSlotPoolOptions {
  /** Slots that can be handed out, and request rows; from 1 to 2^20. */
  readonly maxRequests: number;
  /** One more slot, of index `maxRequests`, for dummy forwards under expert parallelism. Defaults to false. */
  readonly dummySlot?: boolean;
  /** At least `maxRequests` counters, moved by this pool alone. */
  readonly generations?: Generations | null;
}

/** The whole state under the names of the reference (vectors `ssm_slot_pool`). */
export interface SsmSlotPoolSnapshot {
  /** Bottom first; allocation takes from the end. */
  readonly free_stack: readonly number[];
  /** Slot of each request row, or -1. */
  readonly bound: readonly number[];
  readonly dummy: number | null;
}

/** See {@link SlotAllocator} for what the SDK calls; the rest is for the engine. One thread. */
export class SsmSlotPool implements SlotAllocator {
  readonly size: number;
  readonly dummySlot: number | null;
  readonly generations: Generations | null;
  readonly #native: NativeSsmSlotPool;

  /** @throws `ARGUMENT_INVALID` */
  constructor(options: SsmSlotPoolOptions) {
    requireObject('options', options);
    const { maxRequests, dummySlot = false, generations = null } = options;
    this.#native = native(
      () => new (addon().NativeSsmSlotPool)(maxRequests, dummySlot, generations === null ? null : generations.native),
    );
    this.size = maxRequests;
    this.dummySlot = dummySlot ? maxRequests : null;
    this.generations = generations;
  }

  /** Slots that exist in memory, the dummy slot included: what buffers are sized by. */
  get physicalSlots(): number {
    return this.size + (this.dummySlot === null ? 0 : 1);
  }

  get freeCount(): number {
    return native(() => this.#native.freeCount);
  }

  /** The top slot, or -1. */
  allocate(): number {
    return native(() => this.#native.allocate());
  }

  /** The top `count` slots in stack order, or null with nothing changed. @throws `ARGUMENT_INVALID` */
  batchAllocate(count: number): Int32Array | null {
    return native(() => this.#native.allocateBatch(count));
  }

  /**
   * Returns one held slot.
   *
   * @throws `SLOT_OUT_OF_RANGE` (the dummy slot too), `SLOT_POOL_OVERFLOW` when it is free already, `ARGUMENT_INVALID`
   * when a row holds it
   */
  free(slot: number): void {
    native(() => this.#native.free(slot));
  }

  /**
   * Binds a held slot to a row that has none; again is fine.
   *
   * @throws `SLOT_OUT_OF_RANGE`, `ARGUMENT_INVALID`
   */
  bind(row: number, slot: number): void {
    native(() => this.#native.bind(row, slot));
  }

  /** Binds row 0 to the dummy slot, for a forward with one synthetic request; again is fine. @throws `SLOT_NOT_BOUND` */
  bindDummy(): void {
    native(() => this.#native.bindDummy());
  }

  /** Slot of each request row, or -1. */
  rows(): Int32Array {
    return native(() => this.#native.rows());
  }

  /** Unbinds a row; its slot is now the caller's, and its content lives on. @throws `SLOT_NOT_BOUND` */
  detach(row: number): number {
    return native(() => this.#native.detach(row));
  }

  /** Unbinds rows and frees their slots in this order; rows without a slot are passed over. @throws `ARGUMENT_INVALID` */
  freeRequests(rows: Int32Array): void {
    native(() => this.#native.freeRequests(rows));
  }

  /** Frees what rows still hold, in row order. Held and detached slots stay out. */
  reset(): void {
    native(() => this.#native.reset());
  }

  /** Current generations of `slots`; null without a table. */
  generationsOf(slots: Int32Array): BigUint64Array | null {
    if (this.generations === null) return null;
    const out = new BigUint64Array(ArrayBuffer.isView(slots) ? slots.length : 0);
    native(() => this.#native.generationsOf(slots, out));
    return out;
  }

  /** The whole state, for tests and diagnosis. */
  snapshot(): SsmSlotPoolSnapshot {
    return {
      free_stack: [...native(() => this.#native.freeStack())],
      bound: [...this.rows()],
      dummy: this.dummySlot,
    };
  }

  /** Idempotent. Every later call throws `CLOSED`. */
  close(): void {
    this.#native.close();
  }
}
