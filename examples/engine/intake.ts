/**
 * The door of the engine: turns prompts and handoffs into requests, and refuses what makes no sense before anything is
 * reserved for it.
 */
import {
  HandoffError,
  isHandoffError,
  type PrefilledRequest,
  type RequestId,
  type SamplingParams,
} from 'state-handoff';
import { badInput, requireInteger } from './bad-input.js';
import type { ModelConfig } from './config.js';
import type { EngineMemory } from './engine-memory.js';
import type { PrefixCache } from './prefix-cache.js';
import { Request, type RequestOwner } from './request.js';
import { compileSampling, type Sampling } from './sampling.js';

export interface PromptRequest {
  readonly requestId: RequestId;
  readonly prompt: Int32Array | readonly number[];
  readonly samplingParams?: SamplingParams;
}

export class Intake {
  private nextPlainAttempt = -1;

  constructor(
    private readonly config: ModelConfig,
    private readonly memory: EngineMemory,
    private readonly prefixes: PrefixCache,
    private readonly maxSequenceLength: number,
  ) {}

  /**
   * A request that starts with its prompt. Its attempt id is negative, the SDK's are not.
   *
   * @throws `ARGUMENT_INVALID`, `CAPACITY_NEVER_FITS`
   */
  fromPrompt({ requestId, prompt, samplingParams = {} }: PromptRequest, owner: RequestOwner): Request {
    requireInteger('prompt.length', prompt.length, 1, this.maxSequenceLength);
    for (let i = 0; i < prompt.length; i++) requireInteger(`prompt[${i}]`, prompt[i], 0, this.config.vocabSize - 1);
    const tokens = Int32Array.from(prompt);
    const sampling = compileSampling(samplingParams, tokens.length);
    const limit = this.limitOf(sampling, tokens.length);
    if (sampling.limit !== null && sampling.limit > limit && !sampling.handsOff) {
      throw badInput('samplingParams.num_tokens_to_generate', `at most ${limit} after this prompt`, sampling.limit);
    }
    const attemptId = this.nextPlainAttempt--;
    const request = this.create(attemptId, requestId, tokens, samplingParams, sampling, owner);
    const needed = request.finalBlocks(this.memory.blockSize);
    const usable = this.memory.blocks.poolSize - 1;
    if (needed > usable) {
      const message = `request ${String(requestId)} can never run because it needs ${needed} blocks of ${usable}`;
      throw new HandoffError('CAPACITY_NEVER_FITS', message, { phase: 'prefill' });
    }
    request.hashes = this.prefixes.hashPrompt(tokens, sampling.cacheSalt);
    return request;
  }

  /** A request whose prompt is in place, or why it is not taken: what came with it was said by a peer. */
  fromHandoff(prefilled: PrefilledRequest, owner: RequestOwner): Request | HandoffError {
    const { attemptId, requestId, prompt, resumeTokens, samplingParams } = prefilled;
    const { vocabSize, numSpeculativeTokens } = this.config;
    const expected = 1 + numSpeculativeTokens;
    const isToken = (token: number): boolean => Number.isInteger(token) && token >= 0 && token < vocabSize;
    if (resumeTokens.length !== expected || !resumeTokens.every(isToken)) {
      const wanted = `${expected} tokens below ${vocabSize}`;
      return badInput('resumeTokens', wanted, resumeTokens.join(', '), 'RESUME_TOKENS_INVALID');
    }
    const sampling = this.samplingOf(samplingParams, prompt.length);
    if (isHandoffError(sampling)) return sampling;
    const request = this.create(attemptId, requestId, prompt, samplingParams, sampling, owner);
    request.addBlocks(prefilled.blocks);
    request.addBlocks(prefilled.continuationBlocks);
    request.slot = prefilled.slot ?? -1;
    request.computed = prompt.length;
    request.cachedTokens = prompt.length;
    request.position = prompt.length;
    request.pending.set(resumeTokens);
    request.pendingCount = resumeTokens.length;
    request.landed = prefilled.landed;
    return request;
  }

  /** Parameters as they count here, or why they mean nothing. */
  samplingOf(params: SamplingParams, promptTokens: number): Sampling | HandoffError {
    try {
      // `do_kv_handoff` was for the prefill side.
      return compileSampling({ ...params, do_kv_handoff: false }, promptTokens);
    } catch (error) {
      if (isHandoffError(error)) return error;
      throw error;
    }
  }

  /** Tokens that may be generated after a prompt. */
  limitOf(sampling: Sampling, promptTokens: number): number {
    return Math.min(sampling.limit ?? Infinity, Math.max(0, this.maxSequenceLength - promptTokens));
  }

  private create(
    attemptId: number,
    requestId: RequestId,
    prompt: Int32Array,
    samplingParams: SamplingParams,
    sampling: Sampling,
    owner: RequestOwner,
  ): Request {
    const limit = this.limitOf(sampling, prompt.length);
    const decodeTokens = 1 + this.config.numSpeculativeTokens;
    const snapshotNumbers = decodeTokens > 1 ? decodeTokens * (this.memory.ssmMemory?.slotNumbers ?? 0) : 0;
    return new Request(
      attemptId,
      requestId,
      prompt,
      samplingParams,
      sampling,
      limit,
      owner,
      new Int32Array(decodeTokens),
      snapshotNumbers === 0 ? null : new Float32Array(snapshotNumbers),
    );
  }
}
