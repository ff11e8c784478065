/**
 * What the import table's effects do to the engine, its allocators, the transfers and the caller, one by one. When they
 * happen is the role's matter: at a place of the ordered log.
 */
import type { Finished } from '../engine-context.js';
import { HandoffError } from '../errors.js';
import { invariant } from '../invariant.js';
import { nameImportedBlocks } from './block-names.js';
import type { DecodeDependencies } from './decode-dependencies.js';
import type { ImportBook } from './import-book.js';
import type { ImportEffect } from './kv-import.js';
import { LandingFences } from './landing-fences.js';
import { LocalTransfer } from './local-transfer.js';
import { prefilledRequest, type PendingImport } from './pending-import.js';
import { releaseReservation, type Reservation } from './reservation.js';

export class ImportEffects {
  /** What the request ends with whose effects come next. */
  finished: Finished | null = null;
  private readonly landing = new LandingFences();

  constructor(
    private readonly deps: DecodeDependencies,
    private readonly book: ImportBook,
  ) {}

  carryOut(effect: ImportEffect, pending: PendingImport): void {
    const { context, notices, options } = this.deps;
    switch (effect) {
      case 'leaveQueue':
        this.book.queue.delete(pending.attemptId);
        return;
      case 'beginTransfer':
        return this.beginTransfer(pending);
      case 'cancelTransfer':
        return this.deps.transfers.cancel(pending.attemptId, options.clock.now());
      case 'registerHashes':
        return this.nameBlocks(pending);
      case 'dropHashes':
        return this.dropHashes(pending);
      case 'queueAdmission':
        this.book.admittable.set(pending.attemptId, pending);
        return;
      case 'leaveAdmission':
        this.book.admittable.delete(pending.attemptId);
        this.book.growthPending -= pending.growthBlocks;
        return;
      case 'engineAdmit':
        return this.engineAdmit(pending);
      case 'engineAbort':
        return context.abortRequest(pending.attemptId);
      case 'releaseMemory':
        return this.releaseMemory(pending);
      case 'holdMemory':
        this.book.quarantine.set(pending.attemptId, pending);
        this.deps.metrics.count('imports_quarantined_total');
        return notices.quarantined(pending);
      case 'settleFinished':
        this.deps.metrics.importOutcome('completed');
        return this.settle(pending, this.takeFinished());
      case 'settleAborted':
        this.deps.metrics.importOutcome('aborted');
        return this.settle(
          pending,
          new HandoffError('ABORTED', 'the request was aborted', { details: { requestId: pending.requestId } }),
        );
      case 'settleError':
        this.deps.metrics.importOutcome('failed');
        return this.settle(pending, this.errorOf(pending));
      case 'noticeErrorSafe':
        return notices.failed(pending, this.errorOf(pending), true);
      case 'noticeErrorUnsafe':
        return notices.failed(pending, this.errorOf(pending), false);
      case 'noticeAbortedSafe':
        return notices.aborted(pending, true);
      case 'noticeAbortedUnsafe':
        return notices.aborted(pending, false);
      case 'noticeReadDone':
        return notices.readDone(pending);
    }
  }

  private beginTransfer(pending: PendingImport): void {
    const reservation = pending.reservation as Reservation;
    const local =
      pending.error === null
        ? this.deps.startTransfer(pending, reservation)
        : LocalTransfer.failed(pending.attemptId, pending.error);
    pending.local = local;
    if (local.state === 'gated' && this.deps.transportTraits(pending).twoSided) {
      this.deps.notices.transferReady(pending, reservation.cachedPrefixBlocks);
    }
    this.deps.transfers.add(local, this.deps.options.clock.now());
  }

  /** A name is for later requests only: an allocator that refuses one costs a cache hit and no request. */
  private nameBlocks(pending: PendingImport): void {
    this.dropHashes(pending);
    this.noteTransfer(pending);
    const reservation = pending.reservation as Reservation;
    this.landing.note(reservation.blocks.subarray(reservation.cachedPrefixBlocks), pending.local?.landed ?? null);
    try {
      nameImportedBlocks(this.deps.context.blocks, pending.hashes, reservation);
    } catch (error) {
      this.deps.notices.engineCallFailed(error);
    }
  }

  private noteTransfer(pending: PendingImport): void {
    const { local } = pending;
    if (local === null) return;
    const seconds = (this.deps.options.clock.now() - pending.startedAt) / 1000;
    for (const name of local.transportNames) this.deps.metrics.transfer(name, seconds, local.bytesDone);
  }

  private dropHashes(pending: PendingImport): void {
    this.book.hashOwners.drop(
      pending.hashes,
      (pending.reservation as Reservation).cachedPrefixBlocks,
      pending.attemptId,
    );
  }

  private engineAdmit(pending: PendingImport): void {
    const reservation = pending.reservation as Reservation;
    const request = prefilledRequest(pending, reservation);
    pending.reservation = null;
    this.deps.transfers.forget(pending.attemptId);
    this.deps.context.admitPrefilledDecode(this.landing.applyTo(request));
    this.deps.notices.admitted(pending);
  }

  private releaseMemory(pending: PendingImport): void {
    const reservation = pending.reservation;
    invariant(reservation !== null, 'memory is given back once', { attemptId: pending.attemptId });
    const wasQuarantined = this.book.quarantine.delete(pending.attemptId);
    this.deps.transfers.forget(pending.attemptId);
    releaseReservation(reservation, this.deps.context.blocks, this.deps.context.slots);
    if (wasQuarantined) this.deps.notices.reclaimed(pending);
    pending.reservation = null;
  }

  private settle(pending: PendingImport, outcome: Finished | HandoffError): void {
    this.book.labels.delete(pending.requestId);
    this.deps.notices.settled(pending, outcome);
  }

  private takeFinished(): Finished {
    const finished = this.finished;
    invariant(finished !== null, 'a finished request has a result');
    this.finished = null;
    return finished;
  }

  private errorOf(pending: PendingImport): HandoffError {
    return pending.error ?? new HandoffError('TRANSFER_FAILED', 'the handoff failed without a reason');
  }
}
