/**
 * llama.cpp as a prefill engine. It keeps its keys and values in its own memory: a computed prompt is copied into blocks of
 * registered memory, where its pin holds it until decode has read it. Prompts are computed one at a time, in order; one
 * that begins like what a lane still holds computes only the rest.
 */
import {
  computeBlockHashes,
  HandoffError,
  type PrefillContext,
  type RequestId,
  type StateHandoff,
  type Ticket,
} from 'state-handoff';
import { ExportBlocks } from './export-blocks.js';
import type { EngineOptions } from './engine-options.js';
import { greedy, Lanes, sharedLength, type Lane } from './lanes.js';
import { evaluatePrompt } from './prompt-evaluation.js';
import { StateMemory } from './state-memory.js';

export interface PrefilledPrompt {
  readonly ticket: Ticket;
  readonly firstToken: number;
  /** Of the first token, which is drawn here and travels in the ticket. */
  readonly logits: Float32Array;
  /** Tokens that were evaluated; the rest was in a lane. */
  readonly computedTokens: number;
  /** Blocks that were copied out of llama.cpp; the rest lay in registered memory from an earlier prompt. */
  readonly savedBlocks: number;
  readonly evaluateMs: number;
  readonly saveMs: number;
}

export class LlamaPrefillEngine implements PrefillContext {
  readonly model: string;
  readonly dtype: string;
  readonly blockSize: number;
  readonly maxRequests: number;
  readonly maxSequenceLength: number;
  readonly numSpeculativeTokens = 0;
  readonly hasSsmSnapshotCache = false;
  readonly ssm = null;
  readonly slots = null;
  readonly blocks: ExportBlocks;
  readonly memory: StateMemory;
  readonly regions: StateMemory['regions'];
  readonly kv: StateMemory['kv'];
  /** Tokens evaluated so far. */
  evaluatedTokens = 0;
  private readonly lanes: Lanes<Int32Array>;
  private handoff: StateHandoff | null = null;
  private last: Promise<unknown> = Promise.resolve();
  /** By request that waits or is being computed: whether somebody gave up. */
  private readonly aborted = new Map<RequestId, boolean>();
  private retry: (() => void) | null = null;

  constructor(private readonly options: EngineOptions) {
    const { llama, model, dtype, blockTokens, blocks, lanes, maxSequenceLength } = options;
    this.model = model;
    this.dtype = dtype;
    this.blockSize = blockTokens;
    this.maxRequests = lanes;
    this.maxSequenceLength = maxSequenceLength;
    this.memory = new StateMemory(llama, dtype, blockTokens, blocks);
    this.regions = this.memory.regions;
    this.kv = this.memory.kv;
    this.blocks = new ExportBlocks(blocks);
    this.lanes = new Lanes<Int32Array>(llama, new Int32Array(0), options);
  }

  attachHandoff(handoff: StateHandoff): void {
    this.handoff = handoff;
    handoff.on('released', () => this.retry?.());
  }

  /** Waits for its turn and for room. @throws (rejects) `CAPACITY_NEVER_FITS`, `ABORTED`, what the SDK refuses it with */
  prefill(requestId: RequestId, prompt: Int32Array): Promise<PrefilledPrompt> {
    this.aborted.set(requestId, false);
    const result = this.last.then(() => this.run(requestId, prompt));
    this.last = result.catch(() => undefined);
    return result;
  }

  /** A prompt that waits or is being computed ends at its next chunk. */
  abort(requestId: RequestId): void {
    if (!this.aborted.has(requestId)) return;
    this.aborted.set(requestId, true);
    this.retry?.();
  }

  close(): void {
    this.lanes.close();
  }

  private async run(requestId: RequestId, prompt: Int32Array): Promise<PrefilledPrompt> {
    const handoff = this.handoff!;
    const count = Math.ceil(prompt.length / this.blockSize);
    try {
      this.checkAbort(requestId);
      this.checkLength(prompt);
      while (!handoff.tryPinPermit(requestId, count)) await this.room(requestId);
      const lane = this.lanes.take(prompt)!;
      try {
        return await this.compute(requestId, prompt, lane);
      } finally {
        lane.busy = false;
      }
    } finally {
      handoff.dropPinPermit(requestId);
      this.aborted.delete(requestId);
    }
  }

  private checkLength(prompt: Int32Array): void {
    if (prompt.length < 1 || prompt.length >= this.maxSequenceLength) {
      throw new HandoffError(
        'CAPACITY_NEVER_FITS',
        `prompt: expected 1 to ${this.maxSequenceLength - 1} tokens, got ${prompt.length}`,
      );
    }
  }

  private async compute(requestId: RequestId, prompt: Int32Array, lane: Lane<Int32Array>): Promise<PrefilledPrompt> {
    const { chunk } = this.options;
    const shared = Math.min(sharedLength(lane.held, prompt), prompt.length - 1);
    const kept = Math.floor(shared / chunk) * chunk;
    this.lanes.keep(lane, kept, kept);
    const started = performance.now();
    const logits = await evaluatePrompt(lane, prompt, chunk, (tokens) => {
      this.evaluatedTokens += tokens;
      this.checkAbort(requestId);
    });
    const evaluated = performance.now();
    const { blocks, fresh } = await this.take(requestId, prompt);
    const saving = performance.now();
    const from = (blocks.length - fresh.length) * this.blockSize;
    try {
      if (fresh.length > 0) this.memory.save(lane.cache, lane.sequence, from, prompt.length, fresh);
      const hashes = computeBlockHashes(prompt, this.blockSize);
      this.blocks.register(blocks.slice(0, hashes.length), hashes);
    } catch (error) {
      this.blocks.release(blocks);
      throw error;
    }
    const saved = performance.now();
    const firstToken = greedy(logits);
    return {
      ticket: this.handOff(requestId, prompt, blocks, firstToken),
      firstToken,
      logits,
      computedTokens: prompt.length - kept,
      savedBlocks: fresh.length,
      evaluateMs: evaluated - started,
      saveMs: saved - saving,
    };
  }

  /** The prompt's blocks with a reference each; `fresh` are those that hold nothing yet, at the end. */
  private async take(requestId: RequestId, prompt: Int32Array): Promise<{ blocks: Int32Array; fresh: Int32Array }> {
    const count = Math.ceil(prompt.length / this.blockSize);
    for (;;) {
      const known = this.blocks.matchPrefix(computeBlockHashes(prompt, this.blockSize));
      this.blocks.retain(known);
      const fresh = this.blocks.allocate(count - known.length);
      if (fresh !== null) {
        // Before the first byte of the new owner: who still reads the old one finds out.
        this.handoff!.blocksReused(fresh);
        return { blocks: Int32Array.from([...known, ...fresh]), fresh };
      }
      this.blocks.release(known);
      await this.room(requestId);
    }
  }

  private handOff(requestId: RequestId, prompt: Int32Array, blocks: Int32Array, first: number): Ticket {
    const handoff = this.handoff!;
    // Gives the blocks back itself when it refuses.
    const prepared = handoff.prepareHandoffMetadataBatch([
      {
        requestId,
        promptTokens: prompt.length,
        prompt,
        blocks,
        slot: null,
        resumeTokens: [first],
        doKvHandoff: true,
        returnLogProbs: false,
        resumeLogProbs: null,
      },
    ]);
    try {
      return handoff.captureHandoffMeta(requestId, prepared);
    } finally {
      this.blocks.release(blocks);
    }
  }

  /** Resolves when a pin ended or somebody gave up. */
  private async room(requestId: RequestId): Promise<void> {
    this.checkAbort(requestId);
    await new Promise<void>((resolve) => (this.retry = resolve));
    this.retry = null;
    this.checkAbort(requestId);
  }

  private checkAbort(requestId: RequestId): void {
    if (this.aborted.get(requestId) === true) throw new HandoffError('ABORTED', `request ${requestId} was aborted`);
  }
}
