/**
 * Imports between reservation and decision, and the bytes they move. Counted over all ranks of the instance, from the
 * model's own figures, so that every rank comes to the same numbers.
 */
import type { PendingImport } from './pending-import.js';

export class InFlight {
  /** In the order they started. */
  private readonly imports = new Map<number, PendingImport>();
  private byteCount = 0;

  constructor(
    private readonly blockBytes: number,
    private readonly slotBytes: number,
    private readonly bytesMax: number,
  ) {}

  get size(): number {
    return this.imports.size;
  }

  get bytes(): number {
    return this.byteCount;
  }

  /** Oldest first. */
  values(): IterableIterator<PendingImport> {
    return this.imports.values();
  }

  /** Whether so many more blocks (and a slot) may be on their way. At least one import always may, however large. */
  fits(blocks: number, slot: boolean): boolean {
    return this.imports.size === 0 || this.byteCount + this.bytesOf(blocks, slot) <= this.bytesMax;
  }

  enter(pending: PendingImport, blocks: number): void {
    pending.inFlightBytes = this.bytesOf(blocks, pending.needsSlot);
    this.imports.set(pending.attemptId, pending);
    this.byteCount += pending.inFlightBytes;
  }

  leave(pending: PendingImport): void {
    this.imports.delete(pending.attemptId);
    this.byteCount -= pending.inFlightBytes;
  }

  private bytesOf(blocks: number, slot: boolean): number {
    return blocks * this.blockBytes + (slot ? this.slotBytes : 0);
  }
}
