/**
 * Prefills between their last token and the moment the engine lets go of them. In between the handoff SDK pins their
 * blocks and takes their slots over.
 */
import type { Fence, RequestId, SamplingParams } from 'state-handoff';
import type { EngineMemory } from './engine-memory.js';
import type { LateWork } from './late-work.js';
import type { PrefixCache } from './prefix-cache.js';
import type { Request } from './request.js';
import type { Scheduler } from './scheduler.js';

/** What the SDK needs to make a ticket of a finished prefill. */
export interface FinishedPrefill {
  readonly requestId: RequestId;
  readonly prompt: Int32Array;
  readonly samplingParams: SamplingParams;
  /** All blocks of the prompt in sequence order, a partial last one included. */
  readonly blocks: Int32Array;
  /** The caller's to free; null for attention-only models. */
  readonly slot: number | null;
  /** The sampled token, then the proposals. */
  readonly resumeTokens: readonly number[];
  /** Of the sampled token, when it was asked for. */
  readonly resumeLogProbs: readonly number[] | null;
  /** Names of the complete blocks; empty without prefix caching. */
  readonly blockHashes: BigInt64Array;
  /** Prompt tokens that were not computed for this request. */
  readonly cachedTokens: number;
  /** The state is in place once it completes; null when it is already. */
  readonly ready: Fence | null;
  /** Logits that the sampled token was drawn from, when logits are kept. */
  readonly logits: Float32Array | null;
}

interface Entry {
  readonly request: Request;
  readonly finished: FinishedPrefill;
  isTaken: boolean;
  /** Set with a late result: the blocks may be let go of. */
  isReady: boolean;
}

export class FinishedPrefills {
  private entries: Entry[] = [];
  /** Let go of by the host, but their results are not in place. */
  private readonly late = new Set<Entry>();

  constructor(
    private readonly scheduler: Scheduler,
    private readonly memory: EngineMemory,
    private readonly prefixes: PrefixCache,
    private readonly lateWork: LateWork | null,
  ) {}

  get size(): number {
    return this.entries.length + this.late.size;
  }

  /** The request leaves the batch and keeps its memory. */
  add(request: Request, resumeTokens: readonly number[], logits: Float32Array | null): void {
    this.scheduler.forget(request);
    const slot = request.slot < 0 ? null : request.slot;
    const blocks = request.heldBlocks();
    let entry: Entry | null = null;
    const ready =
      this.lateWork?.holdBack(blocks.slice(request.registered), slot, () => {
        this.prefixes.offer(request);
        entry!.isReady = true;
        if (this.late.delete(entry!)) this.scheduler.release(request, true);
      }) ?? null;
    const finished: FinishedPrefill = {
      requestId: request.requestId,
      prompt: request.prompt,
      samplingParams: request.samplingParams,
      blocks,
      slot,
      resumeTokens,
      resumeLogProbs: request.sampling.returnLogProbs ? request.logProbs.slice(0, 1) : null,
      blockHashes: request.hashes,
      cachedTokens: request.cachedTokens,
      ready,
      logits,
    };
    entry = { request, finished, isTaken: false, isReady: ready === null };
    this.entries.push(entry);
  }

  take(): readonly FinishedPrefill[] {
    const taken = this.entries.filter((entry) => !entry.isTaken);
    for (const entry of taken) entry.isTaken = true;
    return taken.map(({ finished }) => finished);
  }

  /** Drops the engine's references; a slot that nobody took goes back too. */
  cleanup(done: (request: Request) => void): void {
    for (const entry of this.entries.splice(0)) {
      const { request, isTaken, isReady } = entry;
      if (!isTaken && request.slot >= 0) this.memory.slots!.free(request.slot);
      if (isReady) this.scheduler.release(request, true);
      else this.late.add(entry);
      done(request);
    }
  }
}
