/** Where the imports of one rank stand: every list that the log moves an import between, and what they hold together. */
import type { RequestId } from '../engine-context.js';
import { HashOwners } from './hash-owners.js';
import type { InFlight } from './in-flight.js';
import type { PendingImport } from './pending-import.js';

export class ImportBook {
  readonly imports = new Map<number, PendingImport>();
  /** First in, first out; insertion order is the order. */
  readonly queue = new Map<number, PendingImport>();
  /** Agreed imports in the order of their decisions. */
  readonly admittable = new Map<number, PendingImport>();
  readonly quarantine = new Map<number, PendingImport>();
  /** Requests whose caller still waits, by label. */
  readonly labels = new Map<RequestId, PendingImport>();
  readonly hashOwners = new HashOwners();
  /** Growth that reserved and agreed imports may still need. */
  growthPending = 0;

  /** @param inFlight - reserved imports without a decision */
  constructor(readonly inFlight: InFlight) {}

  add(pending: PendingImport): void {
    this.imports.set(pending.attemptId, pending);
    this.labels.set(pending.requestId, pending);
    this.queue.set(pending.attemptId, pending);
  }

  /** Not yet admitted: queued, on the way, or waiting for room. */
  get pendingCount(): number {
    return this.queue.size + this.inFlight.size + this.admittable.size;
  }
}
