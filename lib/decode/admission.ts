/**
 * What admission asks: how far a request may grow, and whether its first token already ends it (spec 6.4).
 */
import type { EngineContext, Finished, PrefilledRequest, SamplingParams } from '../engine-context.js';
import { invariant } from '../invariant.js';
import { tokenLimit } from './pending-import.js';

/** Blocks that a request may need beyond its prompt and resume tokens, until its last token. */
export function growthBlocks(context: EngineContext, promptTokens: number, samplingParams: SamplingParams): number {
  if (context.growsInBlocks === false) return 0;
  if (context.growthBlocks !== undefined) return context.growthBlocks(promptTokens, samplingParams);
  const limit = tokenLimit(promptTokens, samplingParams);
  const end = Math.min(limit === null ? Infinity : promptTokens + limit, context.maxSequenceLength);
  return Math.max(0, Math.ceil(end / context.blockSize) - heldBlocks(context, promptTokens));
}

/** Blocks of the prompt and, where the engine continues in blocks, of the resume tokens. */
export function heldBlocks(context: EngineContext, promptTokens: number): number {
  const resume = context.growsInBlocks === false ? 0 : 1 + context.numSpeculativeTokens;
  return Math.ceil((promptTokens + resume) / context.blockSize);
}

/** What ends a request before any forward pass, or null. */
export function immediateEnd(
  context: EngineContext,
  request: PrefilledRequest,
): { readonly tokens: readonly number[]; readonly reason: 'length' | 'stop' } | null {
  if (tokenLimit(request.prompt.length, request.samplingParams) === 0) return { tokens: [], reason: 'length' };
  const first = request.resumeTokens[0] as number;
  const verdict = context.isComplete(request, first);
  return verdict === 'no' ? null : { tokens: [first], reason: verdict };
}

/** The result of a request that ends without a forward pass. */
export function immediateResult(context: EngineContext, request: PrefilledRequest): Finished {
  const end = immediateEnd(context, request);
  invariant(end !== null, 'a completion without a forward pass has an end', { attemptId: request.attemptId });
  return {
    requestId: request.requestId,
    attemptId: request.attemptId,
    generatedTokens: end.tokens,
    generatedLogProbs: request.resumeLogProbs === null ? null : request.resumeLogProbs.slice(0, end.tokens.length),
    finishReason: end.reason,
    cachedTokens: request.prompt.length,
  };
}
