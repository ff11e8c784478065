/**
 * One registered engine as the coordinator counts it: what it can take, what it has, and who waits for it. First come,
 * first served: nothing overtakes what waits.
 */
import type { EngineExtension, HeldHandoff } from '../protocol/messages.js';
import { EngineSilence } from './engine-silence.js';
import { IdTable } from './id-table.js';
import type { PeerId } from './interface.js';
import type { EngineCard } from './registration.js';
import type { RequestRecord } from './request-record.js';

/** Counts and the queue of one engine, from its registration until it is removed. */
export class EngineRecord {
  /** Requests that hold a reservation. */
  active = 0;
  slotsUsed = 0;
  isRegistered = true;
  load: Readonly<Record<string, number>> = {};
  /** In the order in which they came; those that leave early are taken out. */
  readonly queue = new IdTable<RequestRecord>();
  /** Every request that is routed through it, whether it waits, holds a reservation or is in doubt. */
  readonly requests = new IdTable<RequestRecord>();
  /** Handoffs of before its registration that it still holds, by request id. */
  readonly held: Map<number, HeldHandoff>;
  /** Those of them that it has said it is done with. */
  readonly readBefore = new Map<number, HeldHandoff>();
  readonly silence: EngineSilence;

  /**
   * @param card - null for an engine without a role
   * @param column - its place in the affinity table
   * @param nowMs - when it registered
   */
  constructor(
    readonly peer: PeerId,
    readonly card: EngineCard | null,
    readonly column: number,
    readonly requestCapacity: number,
    nowMs: number,
  ) {
    this.silence = new EngineSilence(nowMs);
    this.held = new Map((this.extension?.held ?? []).map((held) => [held.requestId, held]));
  }

  get role(): 'prefill' | 'decode' | 'aggregated' {
    return this.card?.role ?? 'aggregated';
  }

  /** Null of a Megatron engine. */
  get extension(): EngineExtension | null {
    return this.card?.extension ?? null;
  }

  get slotCapacity(): number {
    return this.card?.slotCapacity ?? 0;
  }

  /** Under which name others hold claims for it, and its death is attested: `instance/incarnation`, else its identity. */
  get owner(): string {
    const { extension } = this;
    return extension === null ? this.peer : `${extension.instance}/${extension.incarnation}`;
  }

  /** Whether `other` is this very process after a new connection; without an incarnation nobody can tell. */
  isSameProcess(other: EngineRecord): boolean {
    return this.extension !== null && other.extension !== null && this.owner === other.owner;
  }

  /** Requests that wait here. */
  get queued(): number {
    return this.queue.size;
  }

  /** Of requests and of slots, whichever is scarcer (spec 1.6). */
  get freeFraction(): number {
    const requests = Math.max(0, this.requestCapacity - this.active - this.queue.size) / this.requestCapacity;
    if (this.slotCapacity === 0) return requests;
    return Math.min(requests, Math.max(0, this.slotCapacity - this.slotsUsed) / this.slotCapacity);
  }

  canEverFit(slots: number): boolean {
    return slots <= this.slotCapacity;
  }

  hasRoom(slots: number): boolean {
    return this.active < this.requestCapacity && this.slotsUsed + slots <= this.slotCapacity;
  }

  reserve(slots: number): void {
    this.active++;
    this.slotsUsed += slots;
  }

  release(slots: number): void {
    this.active--;
    this.slotsUsed -= slots;
  }

  /** The first that waits, if there is room for it. */
  next(): RequestRecord | null {
    const first = this.queue.first();
    return first !== null && this.hasRoom(first.slots) ? first : null;
  }
}
