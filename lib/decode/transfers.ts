/**
 * This rank's transfers: which need a look, and which reports they owe. Visits only what may have changed.
 */
import type { TransferHandle, Transport } from '../transfer/transport.js';
import type { LocalReport, LocalTransfer } from './local-transfer.js';

export class Transfers {
  private readonly all = new Map<number, LocalTransfer>();
  private readonly byHandle = new Map<TransferHandle, LocalTransfer>();
  /** Waiting for a connection or a fence. */
  private readonly gated = new Set<LocalTransfer>();
  /** Failed with memory in doubt, or with a poll that threw: looked at every time. */
  private readonly watched = new Set<LocalTransfer>();
  /** May owe a report. */
  private readonly touched = new Set<LocalTransfer>();

  constructor(private readonly transports: () => Iterable<Transport>) {}

  get size(): number {
    return this.all.size;
  }

  get(attemptId: number): LocalTransfer | undefined {
    return this.all.get(attemptId);
  }

  add(transfer: LocalTransfer, now: number): void {
    this.all.set(transfer.attemptId, transfer);
    this.visit(transfer, now);
  }

  cancel(attemptId: number, now: number): void {
    const transfer = this.all.get(attemptId);
    if (transfer === undefined) return;
    transfer.cancel();
    this.visit(transfer, now);
  }

  attestDead(attemptId: number, now: number): void {
    const transfer = this.all.get(attemptId);
    if (transfer === undefined) return;
    transfer.peerAttestedDead();
    this.visit(transfer, now);
  }

  /** Forgets a transfer whose memory was given back or handed over. */
  forget(attemptId: number): void {
    const transfer = this.all.get(attemptId);
    if (transfer === undefined) return;
    this.all.delete(attemptId);
    this.gated.delete(transfer);
    this.watched.delete(transfer);
    this.touched.delete(transfer);
    for (const handle of transfer.activeHandles) this.byHandle.delete(handle);
    transfer.releaseLegs();
  }

  /** Progress, then every report that became due, each once. */
  poll(now: number, report: (attemptId: number, report: LocalReport) => void): void {
    for (const transfer of this.gated) this.visit(transfer, now);
    for (const transport of this.transports()) {
      for (const handle of transport.takeChanged()) {
        const transfer = this.byHandle.get(handle);
        if (transfer !== undefined) this.visit(transfer, now);
      }
    }
    for (const transfer of this.watched) this.visit(transfer, now);
    if (this.touched.size === 0) return;
    const due = [...this.touched];
    this.touched.clear();
    for (const transfer of due) {
      const owed = transfer.takeReport();
      if (owed !== null) report(transfer.attemptId, owed);
    }
  }

  private visit(transfer: LocalTransfer, now: number): void {
    const wasGated = transfer.state === 'gated';
    const errorsBefore = transfer.pollErrors;
    transfer.poll(now);
    if (transfer.state === 'gated') {
      this.gated.add(transfer);
      return;
    }
    if (wasGated) {
      this.gated.delete(transfer);
      for (const handle of transfer.activeHandles) this.byHandle.set(handle, transfer);
    }
    if (transfer.state === 'failedActive' || transfer.pollErrors > errorsBefore) this.watched.add(transfer);
    else this.watched.delete(transfer);
    if (transfer.state !== 'active') this.touched.add(transfer);
  }
}
