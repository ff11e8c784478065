/** What an engine hands over when a prompt is computed, and what must be true of it (spec 6.2). */
import type { EngineContext, RequestId } from '../engine-context.js';
import { describeValue, argumentError, HandoffError } from '../errors.js';

/** A request whose prompt is computed, handed over before the engine's own cleanup. */
export interface FinishedPrefill {
  readonly requestId: RequestId;
  /** Tokens of the prompt. */
  readonly promptTokens: number;
  /**
   * The prompt, `promptTokens` token ids. Its digest then travels in the ticket, and decode refuses the state for any other
   * prompt (`PROMPT_MISMATCH`); without it only the length is compared.
   */
  readonly prompt?: Int32Array;
  /** The request's block table; it may reach beyond the prompt. */
  readonly blocks: Int32Array;
  /** Null for attention-only models. */
  readonly slot: number | null;
  /** Whether it is to be handed off; others only take part in the cleanup after an error. */
  readonly doKvHandoff: boolean;
  /** `1 + numSpeculativeTokens`: the sampled token, then the proposals. */
  readonly resumeTokens: readonly number[];
  /** Whether the request asks for log-probabilities, and then exactly the sampled token's. */
  readonly returnLogProbs: boolean;
  readonly resumeLogProbs: readonly number[] | null;
}

/** @throws `ARGUMENT_INVALID` for what is no finished request at all, handed off or not */
export function checkShape(path: string, request: FinishedPrefill): void {
  if (typeof request !== 'object' || request === null) throw argumentError(path, 'a finished request', request);
  if (!(request.blocks instanceof Int32Array)) throw argumentError(`${path}.blocks`, 'an Int32Array', request.blocks);
  if (request.slot !== null && !Number.isSafeInteger(request.slot))
    throw argumentError(`${path}.slot`, 'a slot or null', request.slot);
  if (request.doKvHandoff && !Array.isArray(request.resumeTokens))
    throw argumentError(`${path}.resumeTokens`, 'a list of token ids', request.resumeTokens);
}

/** Of a batch, whatever it is, the requests whose memory can be given back. */
export function ownedBy(finished: readonly FinishedPrefill[]): readonly FinishedPrefill[] {
  if (!Array.isArray(finished)) return [];
  return (finished as readonly (FinishedPrefill | null)[]).flatMap((request) =>
    request !== null && typeof request === 'object' && request.blocks instanceof Int32Array ? [request] : [],
  );
}

/** Gives a batch's memory back. What an allocator refuses to take is told, and does not keep it from taking the rest. */
export function giveBack(
  { blocks, slots }: Pick<EngineContext, 'blocks' | 'slots'>,
  finished: readonly FinishedPrefill[],
  refused: (error: unknown) => void,
): void {
  const attempt = (give: () => void): void => {
    try {
      give();
    } catch (error) {
      refused(error);
    }
  };
  for (const request of ownedBy(finished)) {
    if (request.blocks.length > 0) attempt(() => blocks.release(request.blocks));
    const { slot } = request;
    if (slot !== null) attempt(() => slots?.free(slot));
  }
}

/** Whether a request can be handed off. @throws `ARGUMENT_INVALID`, `RESUME_TOKENS_INVALID`, `BLOCK_COUNT_MISMATCH`, `SSM_METADATA_INVALID` */
export function checkFinished(context: EngineContext, path: string, request: FinishedPrefill): void {
  const resume = 1 + context.numSpeculativeTokens;
  const wrong = (
    code: 'RESUME_TOKENS_INVALID' | 'BLOCK_COUNT_MISMATCH' | 'SSM_METADATA_INVALID' | 'ARGUMENT_INVALID',
    message: string,
  ) => new HandoffError(code, `${path}.${message}`, { phase: 'prefill', details: { requestId: request.requestId } });
  if (!Number.isSafeInteger(request.promptTokens) || request.promptTokens < 1) {
    throw wrong(
      'ARGUMENT_INVALID',
      `promptTokens: expected an integer of at least 1, got ${describeValue(request.promptTokens)}`,
    );
  }
  const { resumeLogProbs, prompt: promptIds } = request;
  if (promptIds !== undefined && !(promptIds instanceof Int32Array && promptIds.length === request.promptTokens)) {
    throw wrong(
      'ARGUMENT_INVALID',
      `prompt: expected an Int32Array of promptTokens ${request.promptTokens} token ids, got ${describeValue(promptIds)}`,
    );
  }
  if (resumeLogProbs !== null && resumeLogProbs !== undefined && !Array.isArray(resumeLogProbs)) {
    throw wrong(
      'RESUME_TOKENS_INVALID',
      `resumeLogProbs: expected a list or null, got ${describeValue(resumeLogProbs)}`,
    );
  }
  if (request.resumeTokens.length !== resume) {
    throw wrong('RESUME_TOKENS_INVALID', `resumeTokens: expected ${resume} tokens, got ${request.resumeTokens.length}`);
  }
  if (request.returnLogProbs && request.resumeLogProbs?.length !== 1) {
    throw wrong(
      'RESUME_TOKENS_INVALID',
      `resumeLogProbs: expected exactly one, got ${request.resumeLogProbs?.length ?? 'none'}`,
    );
  }
  const blocks = Math.ceil(request.promptTokens / context.blockSize);
  if (request.blocks.length < blocks) {
    throw wrong(
      'BLOCK_COUNT_MISMATCH',
      `blocks: expected at least ${blocks} for ${request.promptTokens} tokens, got ${request.blocks.length}`,
    );
  }
  if (context.ssm !== null && request.slot === null) {
    throw wrong('SSM_METADATA_INVALID', 'slot: expected the slot of a hybrid request, got null');
  }
  if (context.ssm === null && request.slot !== null) {
    throw wrong(
      'SSM_METADATA_INVALID',
      `slot: expected null for a model without SSM state, got ${describeValue(request.slot)}`,
    );
  }
  const token = request.resumeTokens.findIndex((each) => !Number.isSafeInteger(each));
  if (token >= 0) {
    throw wrong(
      'RESUME_TOKENS_INVALID',
      `resumeTokens[${token}]: expected a token id, got ${String(request.resumeTokens[token])}`,
    );
  }
  if (request.resumeLogProbs?.some((each) => !Number.isFinite(each)) === true) {
    throw wrong('RESUME_TOKENS_INVALID', 'resumeLogProbs: expected finite numbers');
  }
  const prompt = request.blocks.slice(0, blocks);
  if (new Set(prompt).size !== prompt.length) {
    throw wrong('ARGUMENT_INVALID', 'blocks: expected each block of the prompt once, got one twice');
  }
}
