/**
 * Who runs in the next step and with which memory. Decoding requests always run; prompts share what is left, in the
 * order they came. A prompt is admitted only when everything that running requests may still need stays available, so
 * nobody is ever preempted and nobody waits for memory for ever.
 */
import { HandoffError } from 'state-handoff';
import type { Batch } from './batch.js';
import type { EngineMemory } from './engine-memory.js';
import type { LateWork } from './late-work.js';
import type { PrefixCache } from './prefix-cache.js';
import type { Request } from './request.js';

export interface SchedulerLimits {
  /** Requests with memory at once. */
  readonly maxRequests: number;
  /** Tokens of one forward pass. */
  readonly maxTokensPerStep: number;
  /** Prompt tokens of one forward pass. */
  readonly prefillChunk: number;
  /** Tokens that one decoding request runs at most: the sampled one and the proposals. */
  readonly decodeTokens: number;
}

export class Scheduler {
  /** Prompts without memory yet, first come first. */
  readonly waiting: Request[] = [];
  /** Requests with memory, in order of admission. */
  readonly running: Request[] = [];

  /** @param mayStart - asked last before a prompt takes memory; false leaves it at the head of the queue */
  constructor(
    private readonly memory: EngineMemory,
    private readonly limits: SchedulerLimits,
    private readonly prefixes: PrefixCache,
    private readonly lateWork: LateWork | null,
    private readonly mayStart: (request: Request, promptBlocks: number) => boolean,
  ) {}

  /** Whether one more request fits beside those that run, memory aside. */
  get hasRoom(): boolean {
    const count = this.running.length + 1;
    return count <= this.limits.maxRequests && count * this.limits.decodeTokens <= this.limits.maxTokensPerStep;
  }

  /** Blocks that running requests may still need before they end. */
  growthReserve(): number {
    let blocks = 0;
    for (const request of this.running) {
      blocks += Math.max(0, request.finalBlocks(this.memory.blockSize) - request.blockCount);
    }
    return blocks;
  }

  /** Fills `batch`; returns the request of each piece. */
  plan(batch: Batch): Request[] {
    const planned: Request[] = [];
    for (const request of this.running) {
      if (request.isPrefilling || request.landed !== null || !this.grow(request)) continue;
      this.addDecode(batch, request);
      planned.push(request);
    }
    let budget = Math.min(this.limits.prefillChunk, this.limits.maxTokensPerStep - batch.rows);
    for (const request of this.running) {
      if (budget === 0) break;
      if (!request.isPrefilling) continue;
      budget -= this.addPrefill(batch, request, budget);
      planned.push(request);
    }
    while (budget > 0 && this.waiting.length > 0 && this.admit(this.waiting[0]!)) {
      const request = this.waiting.shift()!;
      this.running.push(request);
      budget -= this.addPrefill(batch, request, budget);
      planned.push(request);
    }
    return planned;
  }

  /** Gives back what a request holds, except the slot when it goes elsewhere. */
  release(request: Request, keepSlot = false): void {
    this.forget(request);
    if (request.blockCount > 0) this.memory.blocks.release(request.heldBlocks());
    request.blockCount = 0;
    if (!keepSlot && request.slot >= 0) this.memory.slots!.free(request.slot);
    request.slot = -1;
  }

  /** Takes a request out of the batch or the queue; it keeps what it holds. */
  forget(request: Request): void {
    for (const list of [this.running, this.waiting]) {
      const index = list.indexOf(request);
      if (index >= 0) list.splice(index, 1);
    }
  }

  private addDecode(batch: Batch, request: Request): void {
    batch.add({
      tokens: request.pending,
      from: 0,
      count: request.pendingCount,
      position: request.position,
      blocks: request.blocks,
      slot: request.slot,
      logitsFrom: 0,
      snapshots: request.pendingCount > 1 ? request.snapshots : null,
    });
  }

  private addPrefill(batch: Batch, request: Request, budget: number): number {
    const left = request.prompt.length - request.computed;
    const count = Math.min(budget, left);
    batch.add({
      tokens: request.prompt,
      from: request.computed,
      count,
      position: request.computed,
      blocks: request.blocks,
      slot: request.slot,
      logitsFrom: count === left ? count - 1 : count,
      snapshots: null,
    });
    return count;
  }

  /** Memory for all tokens that `request` runs next, or false: it sits out this step. */
  private grow(request: Request): boolean {
    const needed = Math.ceil((request.position + request.pendingCount) / this.memory.blockSize);
    if (needed <= request.blockCount) return true;
    const fresh = this.memory.blocks.allocate(needed - request.blockCount);
    if (fresh === null) return false;
    this.lateWork?.forget(fresh, null);
    request.addBlocks(fresh);
    return true;
  }

  /** Memory for the whole prompt at once, or false with nothing changed. */
  private admit(request: Request): boolean {
    if (!this.hasRoom) return false;
    const { blocks, slots, blockSize } = this.memory;
    const cached = this.prefixes.find(request);
    const promptBlocks = Math.ceil(request.prompt.length / blockSize);
    const missing = promptBlocks - cached.length;
    const growth = request.finalBlocks(blockSize) - promptBlocks + this.growthReserve();
    const matched = cached.length === 0 ? 0 : blocks.unreferencedCount(cached);
    if (!blocks.isMemoryAvailable(missing + growth, matched)) return false;
    if (slots !== null && slots.freeCount < 1) return false;
    if (!this.mayStart(request, promptBlocks)) return false;
    if (cached.length > 0) blocks.retain(cached);
    const fresh = blocks.allocate(missing);
    const slot = slots === null ? -1 : slots.allocate();
    if (fresh === null || (slots !== null && slot < 0)) {
      throw new HandoffError('INVARIANT', 'an allocator refused what it had just said was available');
    }
    this.lateWork?.forget(fresh, slot);
    request.addBlocks(cached);
    request.addBlocks(fresh);
    request.slot = slot;
    if (slot >= 0) this.memory.ssmMemory!.zero(slot);
    request.cachedTokens = cached.length * blockSize;
    request.computed = request.cachedTokens;
    request.registered = cached.length;
    return true;
  }
}
