/** What a handoff can never have here, whatever becomes free; refused before anything is queued (law 3). */
import type { EngineContext, RequestId, SamplingParams } from '../engine-context.js';
import { HandoffError } from '../errors.js';
import { growthBlocks, heldBlocks } from './admission.js';

/** @throws `CAPACITY_NEVER_FITS` */
export function requireFits(
  context: EngineContext,
  requestId: RequestId,
  promptTokens: number,
  samplingParams: SamplingParams,
): void {
  const needed = heldBlocks(context, promptTokens) + growthBlocks(context, promptTokens, samplingParams);
  const usable = context.blocks.poolSize - 1;
  if (needed > usable) {
    throw new HandoffError(
      'CAPACITY_NEVER_FITS',
      `the request needs ${needed} blocks over its life and this engine has ${usable}`,
      {
        details: { requestId, needed, usable },
      },
    );
  }
  const resume = 1 + context.numSpeculativeTokens;
  if (promptTokens + resume > context.maxSequenceLength) {
    throw new HandoffError(
      'CAPACITY_NEVER_FITS',
      `the prompt's ${promptTokens} tokens and ${resume} resume tokens exceed maxSequenceLength ${context.maxSequenceLength}`,
      { details: { requestId } },
    );
  }
}
