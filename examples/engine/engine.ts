/**
 * The reference engine: continuous batching over one model, on one rank, as prefill, as decode or as both.
 *
 * `step()` is the whole loop: schedule, forward, sample, finish. It is synchronous; the host calls it as long as
 * `hasWork` is true, and calls the handoff SDK between steps. Nothing here knows how state travels.
 */
import {
  HandoffError,
  isHandoffError,
  type EngineContext,
  type Fence,
  type Finished,
  type PrefilledRequest,
  type RequestId,
  type SamplingParams,
} from 'state-handoff';
import { Acceptance } from './acceptance.js';
import { badInput, requireInteger } from './bad-input.js';
import { Batch } from './batch.js';
import { checkModel, modelIdentity, type ModelConfig } from './config.js';
import { dummyPiece } from './dummy-work.js';
import type { EngineMemory } from './engine-memory.js';
import { FinishedPrefills, type FinishedPrefill } from './finished-prefills.js';
import { Intake, type PromptRequest } from './intake.js';
import { LateWork } from './late-work.js';
import { Model } from './model.js';
import { runAlone, type Peers, type Steps } from './peers.js';
import { PrefixCache } from './prefix-cache.js';
import { rankForward, type RankForward } from './rank-forward.js';
import type { RankPlace } from './rank-place.js';
import type { Request } from './request.js';
import { completion, type End } from './sampling.js';
import { Scheduler } from './scheduler.js';

export type EngineRole = 'prefill' | 'decode' | 'both';

export interface TokenEvent {
  readonly requestId: RequestId;
  readonly token: number;
  /** 0 for the first generated token. */
  readonly index: number;
  /** Null unless the request asked for log-probabilities. */
  readonly logProb: number | null;
}

/** What the engine calls of the handoff SDK. */
export interface HandoffSink {
  /** Decode: an admitted request ended well. */
  finishRequest(attemptId: number, result: Finished): void;
  /** Decode: an admitted request ended badly. */
  failRequest(attemptId: number, error: HandoffError): void;
  /** Prefill: whether a finished prefill of so many blocks could be pinned. False: not now. */
  tryPinPermit?(requestId: RequestId, blockCount: number): boolean;
  /** Prefill: a permit that will not be used. */
  dropPinPermit?(requestId: RequestId): void;
}

export interface EngineOptions {
  /** `prefill` takes prompts and hands them off, `decode` takes handoffs alone, `both` takes both. */
  readonly role: EngineRole;
  readonly model: ModelConfig;
  readonly memory: EngineMemory;
  readonly maxRequests: number;
  /** Prompt and generated tokens of one request. */
  readonly maxSequenceLength: number;
  /** Prompt tokens of one step. Default 64. */
  readonly prefillChunk?: number;
  /** Tokens of one step. Default: room for all decoding requests and one chunk. */
  readonly maxTokensPerStep?: number;
  /** Keep the logits of every generated token in `Finished.extra`. Default false. */
  readonly recordLogits?: boolean;
  readonly onToken?: (event: TokenEvent) => void;
  /** One rank of several: its place, and how it reaches the others. `memory` holds this rank's slice. */
  readonly ranks?: { readonly place: RankPlace; readonly peers: Peers };
  /** Test switch, see `late-work.ts`: fences complete so many steps late, and who ignores them is found out. */
  readonly fenceDelaySteps?: number;
}

export class Engine implements EngineContext {
  readonly role: EngineRole;
  readonly model: string;
  readonly dtype = 'float32';
  readonly blockSize: number;
  readonly maxRequests: number;
  readonly maxSequenceLength: number;
  readonly numSpeculativeTokens: number;
  readonly regions: EngineContext['regions'];
  readonly kv: EngineContext['kv'];
  readonly ssm: EngineContext['ssm'];
  readonly blocks: EngineContext['blocks'];
  readonly slots: EngineContext['slots'];
  readonly hasSsmSnapshotCache = false;

  /** Steps taken. */
  stepCount = 0;
  /** Tokens run through the model, prompt and others. */
  tokenCount = 0;
  private readonly memory: EngineMemory;
  private readonly intake: Intake;
  private readonly network: Model;
  /** Null for a rank that is alone. */
  private readonly rankForward: RankForward | null;
  private readonly batch: Batch;
  private readonly scheduler: Scheduler;
  private readonly prefixes: PrefixCache;
  private readonly acceptance: Acceptance;
  private readonly finishedPrefills: FinishedPrefills;
  private readonly lateWork: LateWork | null;
  private readonly recordsLogits: boolean;
  private readonly byAttempt = new Map<number, Request>();
  /** Requests with a prompt of their own, by label. */
  private readonly byLabel = new Map<RequestId, Request>();
  /** Admitted requests that could not be taken in earnest, to be failed at the next step. */
  private readonly refused: { readonly request: PrefilledRequest; readonly error: HandoffError }[] = [];
  private sink: HandoffSink | null = null;

  /** @throws `ARGUMENT_INVALID` naming the option */
  constructor(options: EngineOptions) {
    const { model, memory, role } = options;
    this.memory = memory;
    checkModel(model);
    if (!['prefill', 'decode', 'both'].includes(role)) throw badInput('role', "'prefill', 'decode' or 'both'", role);
    const decodeTokens = 1 + model.numSpeculativeTokens;
    this.role = role;
    this.maxRequests = requireInteger('maxRequests', options.maxRequests, 1);
    this.maxSequenceLength = requireInteger('maxSequenceLength', options.maxSequenceLength, 1);
    const prefillChunk = requireInteger('prefillChunk', options.prefillChunk ?? 64, 1);
    const maxTokensPerStep = options.maxTokensPerStep ?? this.maxRequests * decodeTokens + prefillChunk;
    requireInteger('maxTokensPerStep', maxTokensPerStep, decodeTokens);
    const delay = requireInteger('fenceDelaySteps', options.fenceDelaySteps ?? 0, 0);
    this.model = modelIdentity(model);
    this.blockSize = memory.blockSize;
    this.numSpeculativeTokens = model.numSpeculativeTokens;
    this.regions = memory.regions;
    this.kv = memory.kv;
    this.ssm = memory.ssm;
    this.blocks = memory.blocks;
    this.slots = memory.slots;
    this.recordsLogits = options.recordLogits ?? false;
    this.network = new Model(model, memory.slice, memory.kvMemory, memory.ssmMemory);
    this.rankForward = rankForward(model, memory, this.network, options.ranks);
    this.batch = new Batch(model, maxTokensPerStep, Math.min(this.maxRequests * decodeTokens, maxTokensPerStep));
    this.lateWork = delay === 0 ? null : new LateWork(memory, delay);
    this.prefixes = new PrefixCache(memory);
    this.intake = new Intake(model, memory, this.prefixes, this.maxSequenceLength);
    const limits = { maxRequests: this.maxRequests, maxTokensPerStep, prefillChunk, decodeTokens };
    this.scheduler = new Scheduler(memory, limits, this.prefixes, this.lateWork, (request, promptBlocks) =>
      this.mayStart(request, promptBlocks),
    );
    this.acceptance = new Acceptance(
      model,
      this.network.proposer,
      memory.ssmMemory,
      this.recordsLogits,
      ({ requestId, generated }, token, logProb) =>
        options.onToken?.({ requestId, token, index: generated.length - 1, logProb }),
    );
    this.finishedPrefills = new FinishedPrefills(this.scheduler, memory, this.prefixes, this.lateWork);
  }

  /** Connects the handoff SDK; without it `decode` admits nothing. */
  attachHandoff(sink: HandoffSink): void {
    this.sink = sink;
  }

  /** Whether a step would do anything, now or after a fence. */
  get hasWork(): boolean {
    const { scheduler, finishedPrefills, lateWork, refused } = this;
    const queued = scheduler.waiting.length + scheduler.running.length + finishedPrefills.size + refused.length;
    return queued > 0 || lateWork?.isPending === true;
  }

  /** Prompts that wait for memory. */
  get waitingCount(): number {
    return this.scheduler.waiting.length;
  }

  get runningCount(): number {
    return this.scheduler.running.length;
  }

  /** With `fenceDelaySteps`: how often memory was written before its fence completed. */
  get fenceViolations(): number {
    return this.lateWork?.violations ?? 0;
  }

  /**
   * Prefill, both. Queues a prompt. With `do_kv_handoff` the promise resolves with the first token once the prefill has
   * been cleaned up; otherwise with the whole output.
   *
   * @throws (rejects) `ARGUMENT_INVALID`, `PROMPT_ON_DECODE`, `DUPLICATE_REQUEST`, `CAPACITY_NEVER_FITS`; later `ABORTED`
   */
  addRequest(input: PromptRequest): Promise<Finished> {
    return new Promise((resolve, reject) => {
      if (this.role === 'decode') {
        const message = 'a decode engine takes handoffs; send the prompt to a prefill engine';
        throw new HandoffError('PROMPT_ON_DECODE', message);
      }
      if (this.byLabel.has(input.requestId)) {
        throw new HandoffError('DUPLICATE_REQUEST', `request ${String(input.requestId)} is already here`);
      }
      const request = this.intake.fromPrompt(input, { finish: resolve, fail: reject });
      this.byLabel.set(request.requestId, request);
      this.scheduler.waiting.push(request);
    });
  }

  /** Ends a request of `addRequest` at the next step; its promise rejects with `ABORTED`. Unknown labels are ignored. */
  abort(requestId: RequestId): void {
    const request = this.byLabel.get(requestId);
    if (request !== undefined) request.isAborted = true;
  }

  /** One turn of an engine of one rank. Returns how many tokens ran through the model. */
  step(): number {
    return runAlone(this.stepping(), 'an engine of several ranks');
  }

  /**
   * One turn of one rank; all ranks of an instance take it with the same requests.
   *
   * @param accompanies - other instances need this one's experts: a token of no request runs when nothing else does
   */
  *stepping(accompanies = false): Steps<number> {
    this.cleanupFinished();
    this.stepCount += 1;
    // Under the SDK the clock is the index of its log.
    if (this.sink === null) this.blocks.setClock(this.stepCount);
    this.lateWork?.advance();
    this.endWithoutForward();
    const { batch } = this;
    batch.clear();
    const planned = this.scheduler.plan(batch);
    if (batch.rows === 0 && !accompanies) return 0;
    const isDummy = batch.rows === 0;
    if (isDummy) batch.add(dummyPiece(this.memory));
    if (this.rankForward === null) this.network.forward(batch);
    else yield* this.rankForward.run(batch);
    if (isDummy) return 0;
    this.tokenCount += batch.rows;
    let logitRow = 0;
    for (const [index, request] of planned.entries()) {
      const piece = batch.pieces[index]!;
      if (request.isPrefilling) this.afterPrefill(request, piece.count, logitRow);
      else this.endIf(this.acceptance.verify(batch, logitRow, request), request);
      logitRow += piece.count - piece.logitsFrom;
    }
    return batch.rows;
  }

  // --- prefill ---------------------------------------------------------------------------------------------------------

  /**
   * Finished prefills with `do_kv_handoff` since the last call, for the SDK to pin. Their slots are the caller's from
   * now on; their blocks stay referenced by the engine until {@link cleanupFinished}, so pin them before.
   */
  takeFinishedPrefills(): readonly FinishedPrefill[] {
    return this.finishedPrefills.take();
  }

  /** Drops the engine's hold on finished prefills and resolves their promises. `step` begins with it. */
  cleanupFinished(): void {
    this.finishedPrefills.cleanup((request) => {
      this.byLabel.delete(request.requestId);
      request.owner.finish(request.result('length', this.recordsLogits));
    });
  }

  // --- decode: what the SDK asks ---------------------------------------------------------------------------------------

  canAdmitPrefilledDecode(_request: PrefilledRequest): boolean {
    return this.sink !== null && this.role !== 'prefill' && this.scheduler.hasRoom;
  }

  admitPrefilledDecode(prefilled: PrefilledRequest): void {
    const { attemptId } = prefilled;
    const request = this.intake.fromHandoff(prefilled, {
      finish: (result) => this.sink?.finishRequest(attemptId, result),
      fail: (error) => this.sink?.failRequest(attemptId, error),
    });
    if (isHandoffError(request)) {
      this.refused.push({ request: prefilled, error: request });
      return;
    }
    this.byAttempt.set(attemptId, request);
    this.scheduler.running.push(request);
    request.end = this.acceptance.append(request, request.pending[0]!, prefilled.resumeLogProbs?.[0] ?? null, null);
  }

  abortRequest(attemptId: number): void {
    const request = this.byAttempt.get(attemptId);
    if (request !== undefined) request.isAborted = true;
  }

  isComplete({ samplingParams, prompt }: PrefilledRequest, firstToken: number): End {
    const sampling = this.intake.samplingOf(samplingParams, prompt.length);
    // Parameters that mean nothing are refused when the request is admitted.
    return isHandoffError(sampling)
      ? 'no'
      : completion(sampling, [firstToken], this.intake.limitOf(sampling, prompt.length));
  }

  growthReserve(): number {
    return this.scheduler.growthReserve();
  }

  growthBlocks(promptTokens: number, samplingParams: SamplingParams): number {
    const sampling = this.intake.samplingOf(samplingParams, promptTokens);
    if (isHandoffError(sampling)) return 0;
    const fed = Math.max(0, this.intake.limitOf(sampling, promptTokens) - 1);
    const held = Math.ceil((promptTokens + 1 + this.numSpeculativeTokens) / this.blockSize);
    return Math.max(0, Math.ceil((promptTokens + fed) / this.blockSize) - held);
  }

  targetQuiescent(blocks: Int32Array, slot: number | null): Fence | null {
    return this.lateWork?.scribble(blocks, slot) ?? null;
  }

  // --- the loop's parts ------------------------------------------------------------------------------------------------

  private afterPrefill(request: Request, count: number, logitRow: number): void {
    const { batch, acceptance } = this;
    request.computed += count;
    const handsOff = request.sampling.handsOff;
    // What is not ready yet must not be found by others.
    if (!(handsOff && this.lateWork !== null)) this.prefixes.offer(request);
    if (request.isPrefilling) return;
    request.position = request.prompt.length;
    if (!handsOff && request.limit === 0) {
      this.endIf('length', request);
      return;
    }
    const { token, logProb } = acceptance.draw(batch, logitRow, request);
    const logits = this.recordsLogits ? batch.copyLogits(logitRow) : null;
    const end = acceptance.append(request, token, logProb, logits);
    if (handsOff) {
      this.finishedPrefills.add(request, acceptance.resumeTokens(batch, logitRow, token), logits);
    } else if (end === 'no') {
      acceptance.propose(batch, logitRow, request);
    } else {
      this.endIf(end, request);
    }
  }

  private endIf(end: End, request: Request): void {
    if (end === 'no') return;
    this.letGo(request);
    request.owner.finish(request.result(end, this.recordsLogits));
  }

  /** Whatever ends or begins between two forward passes. */
  private endWithoutForward(): void {
    for (const { request, error } of this.refused.splice(0)) {
      this.blocks.release(Int32Array.from([...request.blocks, ...request.continuationBlocks]));
      if (request.slot !== null) this.slots?.free(request.slot);
      this.sink?.failRequest(request.attemptId, error);
    }
    for (const request of [...this.scheduler.running, ...this.scheduler.waiting]) {
      if (request.landed?.isComplete() === true) request.landed = null;
      // Memory that is still being written cannot be given back.
      if (request.landed !== null) continue;
      this.endIf(request.end, request);
      if (!request.isAborted || request.end !== 'no') continue;
      if (request.sampling.handsOff) this.sink?.dropPinPermit?.(request.requestId);
      this.letGo(request);
      request.owner.fail(new HandoffError('ABORTED', `request ${String(request.requestId)} was aborted`));
    }
  }

  private letGo(request: Request): void {
    this.scheduler.release(request);
    this.byAttempt.delete(request.attemptId);
    if (this.byLabel.get(request.requestId) === request) this.byLabel.delete(request.requestId);
  }

  private mayStart(request: Request, promptBlocks: number): boolean {
    if (!request.sampling.handsOff || this.sink?.tryPinPermit === undefined) return true;
    try {
      return this.sink.tryPinPermit(request.requestId, promptBlocks);
    } catch (error) {
      if (!isHandoffError(error)) throw error;
      this.letGo(request);
      request.owner.fail(error);
      return false;
    }
  }
}
