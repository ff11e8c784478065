/**
 * One-line faults of the library, each of which the simulation must find: a guard dropped, a comparison swapped, a release
 * too early. They are applied to the source text in memory; `npm run simulate:planted` tries them all.
 */

export interface PlantedFault {
  /** What the fault is, in words. */
  readonly name: string;
  /** Relative to the project. */
  readonly file: string;
  /** Text that occurs exactly once in the file, and what takes its place. */
  readonly from: string;
  readonly to: string;
}

export const plantedFaults: readonly PlantedFault[] = [
  {
    name: 'two imports may bring the same hash',
    file: 'lib/decode/reservation.ts',
    from: 'if (hashOwners.anyOwned(hashes, cached.length)) return null;',
    to: '',
  },
  {
    name: 'a cached prefix is used without a reference',
    file: 'lib/decode/reservation.ts',
    from: 'blocks.retain(cached);',
    to: '',
  },
  {
    name: 'the growth of running requests is not left alone',
    file: 'lib/decode/reservation.ts',
    from: 'wanted + request.growthBlocks + reserve',
    to: 'wanted + request.growthBlocks',
  },
  {
    name: 'cached blocks about to be pinned count as evictable too',
    file: 'lib/decode/reservation.ts',
    from: 'cached.length === 0 ? 0 : blocks.unreferencedCount(cached)',
    to: '0',
  },
  {
    name: 'a missing slot does not defer',
    file: 'lib/decode/reservation.ts',
    from: 'if (request.needsSlot && (slots === null || slots.freeCount < 1)) return null;',
    to: '',
  },
  {
    name: 'a later handoff overtakes one that waits',
    file: 'lib/decode/decode-role.ts',
    from: 'if (!this.tryStart(pending)) return;',
    to: 'this.tryStart(pending);',
  },
  {
    name: 'a failed import gives its memory back while it may still be written',
    file: 'lib/decode/kv-import.ts',
    from: "failUnsafe: to('quarantined', 'dropHashes', 'cancelTransfer', 'holdMemory', 'settleError', 'noticeErrorUnsafe')",
    to: "failUnsafe: to('reclaimed', 'dropHashes', 'cancelTransfer', 'releaseMemory', 'settleError', 'noticeErrorUnsafe')",
  },
  {
    name: 'an import that was aborted in transfer keeps its memory',
    file: 'lib/decode/kv-import.ts',
    from: "succeed: to('reclaimed', 'dropHashes', 'releaseMemory', 'settleAborted', 'noticeAbortedSafe', 'noticeReadDone')",
    to: "succeed: to('reclaimed', 'dropHashes', 'settleAborted', 'noticeAbortedSafe', 'noticeReadDone')",
  },
  {
    name: 'an import that failed keeps its hashes',
    file: 'lib/decode/kv-import.ts',
    from: "failSafe: to('reclaimed', 'dropHashes', 'releaseMemory', 'settleError', 'noticeErrorSafe', 'noticeReadDone')",
    to: "failSafe: to('reclaimed', 'releaseMemory', 'settleError', 'noticeErrorSafe', 'noticeReadDone')",
  },
  {
    name: 'the source is let go as the transfer starts',
    file: 'lib/decode/kv-import.ts',
    from: "start: to('reserved', 'leaveQueue', 'beginTransfer')",
    to: "start: to('reserved', 'leaveQueue', 'beginTransfer', 'noticeReadDone')",
  },
  {
    name: 'a failure counts as quiet',
    file: 'lib/decode/local-transfer.ts',
    from: "if (status === 'active' || status === 'failed-active') quiet = false;",
    to: "if (status === 'active') quiet = false;",
  },
  {
    name: 'a start that threw without proof counts as quiet',
    file: 'lib/decode/local-transfer.ts',
    from: 'if (cleanup.length === 0) this.unprovable = true;',
    to: '',
  },
  {
    name: 'memory in doubt is reported safe',
    file: 'lib/decode/local-transfer.ts',
    from: 'return { failed: true, safe: false };',
    to: 'return { failed: true, safe: true };',
  },
  {
    name: 'a transfer starts before earlier work on its target is over',
    file: 'lib/decode/local-transfer.ts',
    from: 'if (!this.gates.every((gate) => gate.isComplete())) return this.pollHandshakeDeadline(now);',
    to: '',
  },
  {
    name: 'the first rank to report decides for all',
    file: 'lib/decode/completion-tracker.ts',
    from: 'return entry.safeCount === this.#worldSize;',
    to: 'return entry.safeCount > 0;',
  },
  {
    name: 'the transfer deadline is swapped',
    file: 'lib/decode/decode-side.ts',
    from: 'if (now - pending.startedAt < transferMs) break;',
    to: 'if (now - pending.startedAt > transferMs) break;',
  },
  {
    name: 'rank 0 applies a record before its frame',
    file: 'lib/schedule-log.ts',
    from: 'this.unpublished.push(record);',
    to: 'this.unpublished.push(record); this.hooks.apply(record, this.index);',
  },
  {
    name: 'a pin ends while its push may still read it',
    file: 'lib/prefill/pin-ledger.ts',
    from: "if (pushing && transition === ends && event !== 'pushSafe') return to('draining');",
    to: '',
  },
  {
    name: 'a released pin keeps its blocks',
    file: 'lib/prefill/pin-ledger.ts',
    from: 'this.blocks.release(pin.blocks);',
    to: '',
  },
  {
    name: 'pins expire while they are young',
    file: 'lib/prefill/prefill-role.ts',
    from: 'if (age < limit) return;',
    to: 'if (age > limit) return;',
  },
  {
    name: 'pins expire under readers that would not notice',
    file: 'lib/prefill/prefill-role.ts',
    from: 'if (this.deps.lateReadsAreNoticed()) {',
    to: 'if (true) {',
  },
  {
    name: 'a permit is given beyond the bound',
    file: 'lib/prefill/pin-ledger.ts',
    from: 'if (!this.hasRoom(blockCount)) return false;',
    to: '',
  },
  {
    name: 'what is cached is moved again, into the wrong places',
    file: 'lib/transfer/peer-plans.ts',
    from: 'skipTargetBlocks: move.skipBlocks });',
    to: 'skipTargetBlocks: 0 });',
  },
  {
    name: 'an attested death leaves what began without a handle in doubt',
    file: 'lib/decode/local-transfer.ts',
    from: 'this.unprovable = false;',
    to: '',
  },
  {
    name: 'a request is given to the engine without its landing fence',
    file: 'lib/decode/pending-import.ts',
    from: 'landed: pending.local?.landed ?? null,',
    to: 'landed: null,',
  },
  {
    name: 'nobody is told that a rank is lost',
    file: 'lib/decode/decode-side.ts',
    from: 'if (conflict === undefined && loss === null) return;',
    to: 'if (conflict === undefined) return;',
  },
];
