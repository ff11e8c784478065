/**
 * One rank of an engine without a model: what the SDK needs of an engine (`EngineContext`), over plain memory and the
 * model allocators, with everything in the open.
 *
 * It computes nothing. Prefill fills blocks with marks that follow from the prompt; decode looks whether they arrived,
 * runs a request for as many steps as it has tokens, and looks again before it gives the memory back. What it finds
 * wrong goes to `onViolation`. All ranks of an instance that make the same calls stay equal.
 */
import type { EngineContext, Fence, PrefilledRequest, RequestId, SamplingParams } from '../engine-context.js';
import { argumentError, HandoffError } from '../errors.js';
import { modelBlockHashes } from './model-block-hash.js';
import { ModelBlockPool, type EvictionPolicy } from './model-block-pool.js';
import { ModelSlotPool } from './model-slot-pool.js';
import type { SimulatedClock } from './simulated-clock.js';
import { TestBatch, tokenAt, type EngineEnd } from './test-batch.js';
import {
  promptMarks,
  smallShape,
  TestMemory,
  wholeModel,
  type KvAxisName,
  type TestModelShape,
  type TestRankPosition,
} from './test-memory.js';

/** How a `TestEngine` is made. */
export interface TestEngineOptions {
  readonly role: 'prefill' | 'decode';
  readonly clock: SimulatedClock;
  readonly shape?: TestModelShape;
  readonly position?: TestRankPosition;
  /** Blocks, the dummy block included. Default 32. */
  readonly poolSize?: number;
  /** Default 4. */
  readonly maxRequests?: number;
  /** Default 64 tokens. */
  readonly maxSequenceLength?: number;
  readonly numSpeculativeTokens?: number;
  readonly policy?: EvictionPolicy;
  readonly kvAxes?: readonly KvAxisName[];
  readonly model?: string;
  /** How long earlier work of the engine may still touch memory that it gives to an import; 0 or absent: it does not. */
  readonly quiescentAfterMs?: () => number;
  /** Prefill: how long after `prefill` returns the state is really there; 0 or absent: at once. */
  readonly readyAfterMs?: () => number;
  /** What the engine finds wrong. Default: throws it. */
  readonly onViolation?: (message: string) => void;
}

/** A prompt whose state is (or will be) in place on a prefill engine. One reference to each block is the engine's. */
export interface PrefillRun {
  readonly requestId: RequestId;
  readonly prompt: Int32Array;
  readonly samplingParams: SamplingParams;
  readonly cacheSalt: string | null;
  readonly blocks: Int32Array;
  readonly slot: number | null;
  readonly resumeTokens: readonly number[];
  readonly resumeLogProbs: readonly number[] | null;
  readonly blockHashes: BigInt64Array;
  /** When the state is there; null: it is. */
  readonly ready: Fence | null;
}

/** One rank of an engine without a model, for tests. */
export class TestEngine implements EngineContext {
  readonly role: 'prefill' | 'decode';
  readonly model: string;
  readonly dtype: string;
  readonly blockSize: number;
  readonly maxRequests: number;
  readonly maxSequenceLength: number;
  readonly numSpeculativeTokens: number;
  readonly memory: TestMemory;
  readonly blocks: ModelBlockPool;
  readonly slots: ModelSlotPool | null;
  readonly hasSsmSnapshotCache = false;
  /** Decode: what runs. */
  readonly batch: TestBatch;
  /** Prefill: prompts that the engine still holds. */
  readonly prefills = new Set<PrefillRun>();
  /** Blocks that the test took out of the pool by `hog`. */
  readonly hogged: Int32Array[] = [];
  /** Set by the test around its scheduling point; a request that is admitted outside is a violation (I6). */
  isScheduling = false;
  /** Called by `step` for each request that ends; the test tells the SDK. */
  onEnd: ((end: EngineEnd) => void) | null = null;
  /** Called for each request that is given to this engine, before anything else. */
  onAdmit: ((request: PrefilledRequest) => void) | null = null;
  /** Prompt tokens that this engine computed; a decode engine computes none (I10). */
  promptTokensComputed = 0;
  readonly #clock: SimulatedClock;
  readonly #options: TestEngineOptions;
  /** Until when earlier work of the engine may touch a block. */
  readonly #busyUntilMs = new Map<number, number>();
  readonly #busySlotsUntilMs = new Map<number, number>();
  /** Prefill: when the device is through with what it was given. */
  #deviceMs = 0;

  /** @throws `ARGUMENT_INVALID` */
  constructor(options: TestEngineOptions) {
    const shape = options.shape ?? smallShape;
    this.#options = options;
    this.#clock = options.clock;
    this.role = options.role;
    this.model = options.model ?? 'test-model';
    this.dtype = `uint${8 * shape.elementBytes}`;
    this.blockSize = shape.blockSize;
    this.maxRequests = options.maxRequests ?? 4;
    this.maxSequenceLength = options.maxSequenceLength ?? 64;
    this.numSpeculativeTokens = options.numSpeculativeTokens ?? 0;
    this.blocks = new ModelBlockPool({ poolSize: options.poolSize ?? 32, policy: options.policy ?? 'lru' });
    this.slots = shape.ssm === null ? null : new ModelSlotPool({ maxRequests: this.maxRequests });
    this.memory = new TestMemory(
      shape,
      options.position ?? wholeModel,
      this.blocks.poolSize,
      this.maxRequests,
      options.kvAxes,
    );
    this.batch = new TestBatch(
      this.memory,
      this.blocks,
      this.slots,
      this.maxSequenceLength,
      (block) => this.#busyUntilMs.delete(block),
      (message) => this.#violation(message),
    );
  }

  get regions(): TestMemory['regions'] {
    return this.memory.regions;
  }

  get kv(): TestMemory['kv'] {
    return this.memory.kv;
  }

  get ssm(): TestMemory['ssm'] {
    return this.memory.ssm;
  }

  // --- prefill ---------------------------------------------------------------------------------------------------------

  /**
   * Computes a prompt: reuses what is cached, fills the rest, names complete blocks. Null, with nothing changed, when
   * blocks or a slot are short.
   *
   * @param hashes - of the prompt's complete blocks, when the caller has them
   * @throws `ARGUMENT_INVALID` for an empty prompt or one that is too long
   */
  prefill(
    requestId: RequestId,
    prompt: Int32Array,
    samplingParams: SamplingParams = {},
    cacheSalt: string | null = null,
    hashes: BigInt64Array = modelBlockHashes(prompt, this.blockSize, cacheSalt),
  ): PrefillRun | null {
    if (prompt.length === 0 || prompt.length > this.maxSequenceLength) {
      throw argumentError('prompt', `1 to ${this.maxSequenceLength} tokens`, prompt.length);
    }
    const { blocks, slots, blockSize } = this;
    const cached = blocks.matchPrefix(hashes);
    const missing = Math.ceil(prompt.length / blockSize) - cached.length;
    if (!blocks.isMemoryAvailable(missing, blocks.unreferencedCount(cached))) return null;
    if (slots !== null && slots.freeCount === 0) return null;
    blocks.retain(cached);
    const fresh = blocks.allocate(missing);
    if (fresh === null) {
      blocks.release(cached);
      return null;
    }
    this.promptTokensComputed += prompt.length - cached.length * blockSize;
    const all = Int32Array.of(...cached, ...fresh);
    const complete = all.subarray(0, hashes.length);
    blocks.register(
      complete,
      hashes,
      BigInt64Array.from(hashes, (_, i) => (i === 0 ? 0n : hashes[i - 1]!)),
    );
    const slot = slots?.allocate() ?? null;
    const run: PrefillRun = {
      requestId,
      prompt,
      samplingParams,
      cacheSalt,
      blocks: all,
      slot,
      resumeTokens: Array.from({ length: 1 + this.numSpeculativeTokens }, (_, i) =>
        tokenAt(prompt, cacheSalt, blockSize, i),
      ),
      resumeLogProbs: samplingParams.return_log_probs === true ? [-0.25] : null,
      blockHashes: hashes,
      ready: this.#write(all, cached.length, slot, promptMarks(prompt, blockSize, cacheSalt)),
    };
    this.prefills.add(run);
    return run;
  }

  /**
   * The engine's normal cleanup of a finished prompt: drops its references. Blocks that were pinned stay.
   *
   * @param slotPinned - the slot went to a pin; false: it is freed here
   */
  endPrefill(run: PrefillRun, slotPinned: boolean): void {
    if (!this.prefills.delete(run)) throw argumentError('run', 'a prompt that this engine holds', run.requestId);
    this.blocks.release(run.blocks);
    if (run.slot !== null && !slotPinned) this.slots!.free(run.slot);
  }

  // --- decode: what the SDK calls ------------------------------------------------------------------------------------------

  canAdmitPrefilledDecode(_request: PrefilledRequest): boolean {
    return this.batch.running.size < this.maxRequests;
  }

  admitPrefilledDecode(request: PrefilledRequest): void {
    this.onAdmit?.(request);
    const { running } = this.batch;
    const blame = (what: string): void => this.#violation(`attempt ${request.attemptId} ${what}`);
    if (this.role !== 'decode') blame('was given to a prefill engine');
    if (!this.isScheduling)
      blame('was admitted outside the scheduling point; set isScheduling around scheduleWaitingRequests');
    if (running.size >= this.maxRequests) blame('was admitted into a full batch');
    if (running.has(request.attemptId)) blame('was admitted twice');
    const promptBlocks = Math.ceil(request.prompt.length / this.blockSize);
    if (request.blocks.length !== promptBlocks) blame(`came with ${request.blocks.length} blocks for ${promptBlocks}`);
    if ((request.slot === null) !== (this.slots === null)) blame('came with a slot too many or too few');
    this.batch.admit(request);
  }

  abortRequest(attemptId: number): void {
    const running = this.batch.running.get(attemptId);
    if (running === undefined) this.#violation(`attempt ${attemptId} was aborted, but is not running`);
    else running.aborted = true;
  }

  isComplete(request: PrefilledRequest, firstToken: number): 'no' | 'length' | 'stop' {
    if (this.batch.tokenLimit(request.prompt.length, request.samplingParams) <= 1) return 'length';
    return request.samplingParams.termination_id === firstToken ? 'stop' : 'no';
  }

  growthReserve(): number {
    return this.batch.growthReserve();
  }

  targetQuiescent(blocks: Int32Array, slot: number | null): Fence | null {
    const delayMs = this.#options.quiescentAfterMs?.() ?? 0;
    const now = this.#clock.now();
    let untilMs = now + delayMs;
    for (const block of blocks) untilMs = Math.max(untilMs, this.#busyUntilMs.get(block) ?? 0);
    if (slot !== null) untilMs = Math.max(untilMs, this.#busySlotsUntilMs.get(slot) ?? 0);
    if (untilMs <= now) return null;
    const written = blocks.filter((block) => this.blocks.hashOf(block) === -1n);
    for (const block of written) this.#busyUntilMs.set(block, untilMs);
    if (slot !== null) this.#busySlotsUntilMs.set(slot, untilMs);
    // The earlier work really writes, at the last moment it may.
    this.#clock.after(untilMs - now, () => {
      for (const block of written) if (this.#busyUntilMs.get(block) === untilMs) this.#scribble(block);
      if (slot !== null && this.#busySlotsUntilMs.get(slot) === untilMs) this.#scribbleSlot(slot);
    });
    return { isComplete: () => this.#clock.now() >= untilMs };
  }

  /** Whether earlier work of the engine may still touch a block (or a slot): nothing else may. */
  isBusy(kind: 'block' | 'slot', id: number): boolean {
    return (kind === 'block' ? this.#busyUntilMs : this.#busySlotsUntilMs).has(id);
  }

  // --- decode: what the test calls -------------------------------------------------------------------------------------------

  /** One step of the batch: every running request gets a token or ends. Returns how many ended. */
  step(): number {
    const ends = this.batch.step();
    for (const end of ends) this.onEnd?.(end);
    return ends.length;
  }

  /** Takes up to `count` blocks out of the pool, as other work of the engine would; returns how many it got. */
  hog(count: number): number {
    const wanted = Math.min(count, this.blocks.freeCount + this.blocks.evictableCount - this.growthReserve());
    const blocks = wanted > 0 ? this.blocks.allocate(wanted) : null;
    if (blocks === null) return 0;
    this.hogged.push(blocks);
    return blocks.length;
  }

  /** Gives back all that was hogged. */
  unhog(): void {
    for (const blocks of this.hogged.splice(0)) this.blocks.release(blocks);
  }

  /** Everything of this engine's own that holds blocks and slots. */
  *holdings(): Generator<{ readonly owner: string; readonly blocks: ArrayLike<number>; readonly slot: number | null }> {
    for (const { request, blocks } of this.batch.running.values()) {
      yield { owner: `running ${request.attemptId}`, blocks, slot: request.slot };
    }
    for (const { requestId, blocks, slot } of this.prefills) yield { owner: `prefill ${requestId}`, blocks, slot };
    for (const blocks of this.hogged) yield { owner: 'hog', blocks, slot: null };
  }

  // ---------------------------------------------------------------------------------------------------------------------------

  /** Fills what is not cached, now or when the ready fence fires. */
  #write(blocks: Int32Array, cachedCount: number, slot: number | null, marks: Uint32Array): Fence | null {
    const fill = (): void => {
      for (let i = cachedCount; i < blocks.length; i++) this.memory.fillBlock(blocks[i]!, marks[i]!);
      if (slot !== null) this.memory.fillSlot(slot, marks.at(-1)!);
    };
    const delayMs = this.#options.readyAfterMs?.() ?? 0;
    // The device runs in order: what is written later is also in place later, whoever owned the memory before.
    const untilMs = Math.max(this.#clock.now() + delayMs, this.#deviceMs);
    if (untilMs <= this.#clock.now()) {
      fill();
      return null;
    }
    this.#deviceMs = untilMs;
    this.#clock.after(untilMs - this.#clock.now(), fill);
    return { isComplete: () => this.#clock.now() >= untilMs };
  }

  #scribble(block: number): void {
    this.#busyUntilMs.delete(block);
    this.memory.fillBlock(block, 0xdeadbeef);
  }

  #scribbleSlot(slot: number): void {
    this.#busySlotsUntilMs.delete(slot);
    this.memory.fillSlot(slot, 0xdeadbeef);
  }

  #violation(message: string): void {
    const { onViolation } = this.#options;
    if (onViolation === undefined) throw new HandoffError('INVARIANT', message);
    onViolation(message);
  }
}
