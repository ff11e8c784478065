/**
 * The running batch of a {@link TestEngine}: requests whose state was handed over, growing a token a step until they end.
 *
 * It looks at all of a request's memory when it starts and when it ends, so bytes that are missing, of another request,
 * or written after their time are found.
 */
import type { PrefilledRequest, SamplingParams } from '../engine-context.js';
import type { ModelBlockPool } from './model-block-pool.js';
import type { ModelSlotPool } from './model-slot-pool.js';
import { promptMarks, type TestMemory } from './test-memory.js';

/** How a running request ended on this rank. */
export interface EngineEnd {
  readonly attemptId: number;
  readonly generatedTokens: readonly number[];
  readonly generatedLogProbs: readonly number[] | null;
  readonly finishReason: 'length' | 'stop';
  readonly aborted: boolean;
}

/** One request of the batch. */
export interface RunningRequest {
  readonly request: PrefilledRequest;
  /** Blocks of the prompt, of the resume tokens and of its growth, in sequence order. */
  readonly blocks: number[];
  readonly generated: number[];
  /** Tokens that end it, by limit or length. */
  readonly limit: number;
  aborted: boolean;
  /** @internal */
  readonly marks: Uint32Array;
  /** @internal marks of the blocks behind the prompt, which the engine wrote itself */
  readonly ownMarks: Map<number, number>;
  /** @internal */
  verified: boolean;
}

/** The running requests of a `TestEngine`. */
export class TestBatch {
  /** In order of admission. */
  readonly running = new Map<number, RunningRequest>();

  constructor(
    readonly memory: TestMemory,
    readonly blocks: ModelBlockPool,
    readonly slots: ModelSlotPool | null,
    readonly maxSequenceLength: number,
    /** Called before the engine writes a block that it allocated itself. */
    readonly willWrite: (block: number) => void,
    /** Called with what is found wrong. */
    readonly violation: (message: string) => void,
  ) {}

  /** Takes a request into the batch. */
  admit(request: PrefilledRequest): void {
    const running: RunningRequest = {
      request,
      blocks: [...request.blocks],
      generated: [request.resumeTokens[0]!],
      limit: this.tokenLimit(request.prompt.length, request.samplingParams),
      aborted: false,
      marks: promptMarks(request.prompt, this.#blockSize, saltOf(request.samplingParams)),
      ownMarks: new Map(),
      verified: false,
    };
    for (const block of request.continuationBlocks) this.#grow(running, block);
    this.running.set(request.attemptId, running);
  }

  /** Every request gets a token or ends. */
  step(): EngineEnd[] {
    const ended: RunningRequest[] = [];
    for (const running of this.running.values()) {
      if (running.aborted) ended.push(running);
      else if (this.#generate(running)) ended.push(running);
    }
    return ended.map((running) => this.#end(running));
  }

  /** Blocks that running requests may still need before they end. */
  growthReserve(): number {
    let blocks = 0;
    for (const running of this.running.values()) {
      blocks += Math.max(0, Math.ceil(this.#endTokens(running) / this.#blockSize) - running.blocks.length);
    }
    return blocks;
  }

  /** Tokens that may be generated after a prompt. */
  tokenLimit(promptTokens: number, params: SamplingParams): number {
    const total = params.num_tokens_total ?? null;
    const limit = params.num_tokens_to_generate ?? (total === null ? Infinity : total - promptTokens);
    return Math.max(0, Math.min(limit, this.maxSequenceLength - promptTokens));
  }

  get #blockSize(): number {
    return this.memory.shape.blockSize;
  }

  /** Returns whether the request is at its end. */
  #generate(running: RunningRequest): boolean {
    // Steps are launched alike on all ranks; the device makes each wait for its own landing fence.
    if (!running.verified && mayRead(running)) {
      this.#verify(running, 'as it starts');
      running.verified = true;
    }
    const { request, generated, blocks } = running;
    if (generated.length >= running.limit) return true;
    const tokens = Math.min(request.prompt.length + generated.length + 1, this.#endTokens(running));
    while (blocks.length * this.#blockSize < tokens) {
      const grown = this.blocks.allocate(1);
      if (grown === null) {
        this.violation(`attempt ${request.attemptId} found no block to grow into: admission left no reserve`);
        return true;
      }
      this.#grow(running, grown[0]!);
    }
    const token = tokenAt(request.prompt, saltOf(request.samplingParams), this.#blockSize, generated.length);
    generated.push(token);
    return generated.length >= running.limit || token === request.samplingParams.termination_id;
  }

  #grow(running: RunningRequest, block: number): void {
    const mark = Math.imul(running.request.attemptId + 1, 0x9e3779b1) ^ running.blocks.length;
    running.blocks.push(block);
    running.ownMarks.set(block, mark);
    this.willWrite(block);
    this.memory.fillBlock(block, mark);
  }

  #end(running: RunningRequest): EngineEnd {
    const { request, aborted, limit } = running;
    if (mayRead(running)) this.#verify(running, 'as it ends');
    this.running.delete(request.attemptId);
    this.blocks.release(Int32Array.from(running.blocks));
    if (request.slot !== null) this.slots!.free(request.slot);
    const generatedTokens = running.generated.slice(0, limit);
    const logProbs = request.resumeLogProbs;
    return {
      attemptId: request.attemptId,
      generatedTokens,
      generatedLogProbs: logProbs === null ? null : generatedTokens.map((_, index) => logProbs[index] ?? -0.5),
      finishReason: running.generated.length >= limit ? 'length' : 'stop',
      aborted,
    };
  }

  #verify({ request, marks, ownMarks }: RunningRequest, when: string): void {
    const blame = (what: string, fault: string | null): void => {
      if (fault !== null) this.violation(`attempt ${request.attemptId} ${when}: ${what}: ${fault}`);
    };
    for (const [index, block] of request.blocks.entries()) {
      blame(`block ${block} (prompt block ${index}) is wrong`, this.memory.blockFault(block, marks[index]!));
    }
    for (const [block, mark] of ownMarks) {
      blame(`block ${block} (its own) was overwritten`, this.memory.blockFault(block, mark));
    }
    if (request.slot !== null)
      blame(`slot ${request.slot} is wrong`, this.memory.slotFault(request.slot, marks.at(-1)!));
  }

  #endTokens({ request, limit }: RunningRequest): number {
    return Math.min(request.prompt.length + limit, this.maxSequenceLength);
  }
}

/** The token that every engine generates at `index` after this prompt. */
export function tokenAt(prompt: Int32Array, salt: string | null, blockSize: number, index: number): number {
  const mark = promptMarks(prompt, blockSize, salt).at(-1) ?? 0;
  return 1 + ((Math.imul(mark ^ (index + 1), 0x9e3779b1) >>> 0) % 50_000);
}

export function saltOf(params: SamplingParams): string | null {
  return typeof params['cache_salt'] === 'string' ? params['cache_salt'] : null;
}

/** The state is looked at once its landing fence has fired. */
function mayRead({ request }: RunningRequest): boolean {
  return request.landed === null || request.landed.isComplete();
}
