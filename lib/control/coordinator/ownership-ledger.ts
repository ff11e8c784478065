/**
 * Who may release a handoff that an outside router holds (spec 1.7). A record begins before the handle is published, so
 * that no release can come too early; claims and releases are fenced by the coordinator's name, and an owner that was
 * attested dead can claim nothing more. Records outlive the connection of the source's engine.
 */
import type { EngineRecord } from './engine-record.js';
import { Remembered } from './remembered.js';

/** `offered`: nobody owns it. `claimed`: `owner` does. */
export type OwnershipState = 'offered' | 'claimed';

export interface OwnershipRecord {
  readonly requestId: number;
  engine: EngineRecord;
  state: OwnershipState;
  owner: string | null;
  readonly since: number;
}

export class OwnershipLedger {
  readonly #records = new Map<number, OwnershipRecord>();
  /** So that a late claim is refused, and a repeated release acknowledged. */
  readonly #released = new Remembered<number>();
  readonly #dead = new Remembered<string>();

  /** Living records. */
  get records(): ReadonlyMap<number, OwnershipRecord> {
    return this.#records;
  }

  /** The source offers a handoff. @returns false when it did before, or it is released already */
  offer(requestId: number, engine: EngineRecord, nowMs: number): boolean {
    if (this.#records.has(requestId) || this.#released.has(requestId)) return false;
    this.#records.set(requestId, { requestId, engine, state: 'offered', owner: null, since: nowMs });
    return true;
  }

  /** The first to claim a handoff owns it, and may say so again. */
  claim(requestId: number, owner: string): boolean {
    const record = this.#records.get(requestId);
    if (record === undefined || owner === '' || this.#dead.has(owner)) return false;
    if (record.state === 'claimed') return record.owner === owner;
    record.state = 'claimed';
    record.owner = owner;
    return true;
  }

  /** The engine is being told. */
  release(requestId: number): void {
    if (this.#records.delete(requestId)) this.#released.add(requestId);
  }

  wasReleased(requestId: number): boolean {
    return this.#released.has(requestId);
  }

  /** Every process of the owner is dead: all it owns can be released, and it claims nothing more. */
  terminate(owner: string): OwnershipRecord[] {
    this.#dead.add(owner);
    return [...this.#records.values()].filter((record) => record.owner === owner);
  }

  /** The engine came back: the same process goes on, another one's memory holds nothing of before. */
  rebind(before: EngineRecord, now: EngineRecord): void {
    for (const record of this.#records.values()) {
      if (record.engine === before) record.engine = now;
    }
  }

  /** The memory of this engine is no more. */
  drop(engine: EngineRecord): void {
    for (const record of [...this.#records.values()]) if (record.engine === engine) this.release(record.requestId);
  }
}
