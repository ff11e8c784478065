/**
 * llama.cpp as a decode engine. It takes handoffs over into its own memory: what landed in registered blocks is copied into
 * a lane in a few steps, and the blocks are given back at once, those with a name staying as prefix cache. It evaluates no
 * prompt token: every evaluation is one token a running request.
 */
import {
  BlockPool,
  Generations,
  HandoffError,
  type EngineContext,
  type PrefilledRequest,
  type StateHandoff,
} from 'state-handoff';
import type { EngineOptions } from './engine-options.js';
import { greedy, Lanes, sharedLength, type Lane } from './lanes.js';
import { StateMemory } from './state-memory.js';

/** What the engine did to llama.cpp's memory, in order; enough to do it again. */
export type Operation =
  | { readonly kind: 'keep'; readonly lane: number; readonly tokens: number }
  | {
      readonly kind: 'load';
      readonly lane: number;
      readonly requestId: string;
      readonly from: number;
      readonly to: number;
    }
  | { readonly kind: 'evaluate'; readonly rows: readonly OperationRow[] };

/** One token of one evaluation, and the token that was drawn behind it. */
export interface OperationRow {
  readonly lane: number;
  readonly requestId: string;
  readonly token: number;
  readonly position: number;
  readonly drawn: number;
}

/** Beside the tokens, in `Finished.extra`. */
export interface DecodeFigures {
  /** Prompt tokens that the lane still held. */
  readonly keptTokens: number;
  /** Copies from blocks into llama.cpp's memory. */
  readonly loads: number;
  readonly loadMs: number;
}

export interface DecodeOptions extends EngineOptions {
  /** Blocks copied into llama.cpp a step and request, so that no step is long. */
  readonly loadBlocksMax: number;
  /** Told of each token and the logits it was drawn from. */
  readonly onToken: (requestId: string, index: number, token: number, logits: Float32Array) => void;
  /** Told of each operation, when somebody records them. */
  readonly onOperation: ((operation: Operation) => void) | null;
}

interface Running {
  readonly request: PrefilledRequest;
  readonly requestId: string;
  readonly lane: Lane<BigInt64Array>;
  readonly keptTokens: number;
  readonly limit: number;
  readonly out: number[];
  /** Prompt tokens that are in the lane. */
  loaded: number;
  loads: number;
  loadMs: number;
  /** Until its state is in the lane. */
  holdsBlocks: boolean;
  aborted: boolean;
}

export class LlamaDecodeEngine implements EngineContext {
  readonly model: string;
  readonly dtype: string;
  readonly blockSize: number;
  readonly maxRequests: number;
  readonly maxSequenceLength: number;
  readonly numSpeculativeTokens = 0;
  readonly growsInBlocks = false;
  readonly hasSsmSnapshotCache = false;
  readonly ssm = null;
  readonly slots = null;
  readonly blocks: BlockPool;
  readonly memory: StateMemory;
  readonly regions: StateMemory['regions'];
  readonly kv: StateMemory['kv'];
  /** Tokens evaluated so far. */
  evaluatedTokens = 0;
  /** Of them, those at a position of their request's prompt. */
  evaluatedPromptTokens = 0;
  private readonly lanes: Lanes<BigInt64Array>;
  private running: Running[] = [];
  private handoff: StateHandoff | null = null;

  constructor(private readonly options: DecodeOptions) {
    const { llama, model, dtype, blockTokens, blocks, lanes, maxSequenceLength } = options;
    this.model = model;
    this.dtype = dtype;
    this.blockSize = blockTokens;
    this.maxRequests = lanes;
    this.maxSequenceLength = maxSequenceLength;
    this.memory = new StateMemory(llama, dtype, blockTokens, blocks);
    this.regions = this.memory.regions;
    this.kv = this.memory.kv;
    this.blocks = new BlockPool({ poolSize: blocks, generations: new Generations(blocks) });
    this.lanes = new Lanes<BigInt64Array>(llama, new BigInt64Array(0), options);
  }

  attachHandoff(handoff: StateHandoff): void {
    this.handoff = handoff;
  }

  get hasWork(): boolean {
    return this.running.length > 0;
  }

  close(): void {
    this.lanes.close();
  }

  canAdmitPrefilledDecode(): boolean {
    return this.lanes.freeCount > 0;
  }

  admitPrefilledDecode(request: PrefilledRequest): void {
    const lane = this.lanes.take(request.blockHashes)!;
    const kept = sharedLength(lane.held, request.blockHashes);
    const keptTokens = kept * this.blockSize;
    this.lanes.keep(lane, kept, keptTokens);
    this.record({ kind: 'keep', lane: lane.index, tokens: keptTokens });
    const { num_tokens_to_generate: asked } = request.samplingParams;
    this.running.push({
      request,
      requestId: String(request.requestId),
      lane,
      keptTokens,
      limit: Math.min(asked ?? Infinity, this.maxSequenceLength - request.prompt.length),
      out: [...request.resumeTokens],
      loaded: keptTokens,
      loads: 0,
      loadMs: 0,
      holdsBlocks: true,
      aborted: false,
    });
  }

  abortRequest(attemptId: number): void {
    for (const each of this.running) if (each.request.attemptId === attemptId) each.aborted = true;
  }

  isComplete(request: PrefilledRequest, firstToken: number): 'no' | 'length' | 'stop' {
    if (this.options.llama.endsText(firstToken)) return 'stop';
    return request.samplingParams.num_tokens_to_generate === 1 ? 'length' : 'no';
  }

  /** Running requests grow in llama.cpp's memory. */
  growthReserve(): number {
    return 0;
  }

  targetQuiescent(): null {
    return null;
  }

  /** One step: state that landed goes into its lane, and every request that is all there gets a token. */
  async step(): Promise<void> {
    for (const each of [...this.running]) {
      if (each.aborted) this.fail(each, new HandoffError('ABORTED', `request ${each.requestId} was aborted`));
      else if (each.holdsBlocks) this.load(each);
    }
    const ready = this.running.filter(({ holdsBlocks }) => !holdsBlocks);
    if (ready.length === 0) return;
    if (this.options.shared) return this.evaluate(ready);
    for (const each of ready) await this.evaluate([each]);
  }

  private load(each: Running): void {
    const { request, lane } = each;
    const from = each.loaded;
    // A lane may still hold all of it.
    if (from === request.prompt.length) return this.giveBlocksBack(each);
    const to = Math.min(request.prompt.length, from + this.options.loadBlocksMax * this.blockSize);
    const blocks = request.blocks.slice(from / this.blockSize, Math.ceil(to / this.blockSize));
    const started = performance.now();
    try {
      this.memory.load(lane.cache, lane.sequence, from, to, blocks);
    } catch (error) {
      return this.fail(each, error as Error);
    }
    each.loadMs += performance.now() - started;
    each.loads += 1;
    each.loaded = to;
    lane.held = request.blockHashes.slice(0, Math.floor(to / this.blockSize));
    this.record({ kind: 'load', lane: lane.index, requestId: each.requestId, from, to });
    if (to === request.prompt.length) this.giveBlocksBack(each);
  }

  /** The state is in llama.cpp's memory now. Blocks that have a name stay cached until somebody needs the room. */
  private giveBlocksBack(each: Running): void {
    const { blocks, continuationBlocks } = each.request;
    each.holdsBlocks = false;
    if (blocks.length > 0) this.blocks.release(blocks);
    if (continuationBlocks.length > 0) this.blocks.release(continuationBlocks);
  }

  private async evaluate(rows: readonly Running[]): Promise<void> {
    const tokens = Int32Array.from(rows, ({ out }) => out.at(-1)!);
    const positions = Int32Array.from(rows, ({ request, out }) => request.prompt.length + out.length - 1);
    const sequences = Int32Array.from(rows, ({ lane }) => lane.sequence);
    const outputs = new Uint8Array(rows.length).fill(1);
    let logits: Float32Array;
    try {
      logits = await rows[0]!.lane.cache.evaluate(tokens, positions, sequences, outputs);
    } catch (error) {
      for (const each of rows) this.fail(each, error as Error);
      return;
    }
    this.evaluatedTokens += rows.length;
    this.evaluatedPromptTokens += rows.filter(({ request }, index) => positions[index]! < request.prompt.length).length;
    const size = logits.length / rows.length;
    const drawn = rows.map((_, index) => greedy(logits.subarray(index * size, (index + 1) * size)));
    this.record({
      kind: 'evaluate',
      rows: rows.map(({ lane, requestId }, index) => ({
        lane: lane.index,
        requestId,
        token: tokens[index]!,
        position: positions[index]!,
        drawn: drawn[index]!,
      })),
    });
    for (const [index, each] of rows.entries()) {
      const token = drawn[index]!;
      each.out.push(token);
      const row = logits.subarray(index * size, (index + 1) * size);
      this.options.onToken(each.requestId, each.out.length - 1, token, row);
      if (this.options.llama.endsText(token)) this.finish(each, 'stop');
      else if (each.out.length >= each.limit) this.finish(each, 'length');
    }
  }

  private finish(each: Running, finishReason: 'length' | 'stop'): void {
    this.remove(each);
    const { request, out, keptTokens, loads, loadMs } = each;
    const extra: DecodeFigures = { keptTokens, loads, loadMs };
    this.handoff!.finishRequest(request.attemptId, {
      generatedTokens: out,
      generatedLogProbs: null,
      finishReason,
      cachedTokens: request.prompt.length,
      extra,
    });
  }

  private fail(each: Running, error: Error): void {
    if (each.holdsBlocks) this.giveBlocksBack(each);
    this.remove(each);
    this.handoff!.failRequest(each.request.attemptId, error);
  }

  private remove(each: Running): void {
    this.running = this.running.filter((other) => other !== each);
    const { lane } = each;
    lane.busy = false;
    // What was generated, and a block that is not complete, is of no use to the next one.
    const tokens = lane.held.length * this.blockSize;
    this.lanes.keep(lane, lane.held.length, tokens);
    this.record({ kind: 'keep', lane: lane.index, tokens });
  }

  private record(operation: Operation): void {
    this.options.onOperation?.(operation);
  }
}
