/**
 * Whether a handoff is the one this engine was asked to take over: same prompt, same model family, same weights. Asked
 * before the request is queued (spec 6.3).
 */
import { argumentError } from '../errors.js';
import { promptDigest, promptDigestKey } from '../prompt-digest.js';
import type { ParsedKvMeta } from './handoff-parser.js';

export interface HandoffExpectation {
  /** This engine's model and element type. */
  readonly model: string;
  readonly dtype: string;
  /** The prompt that came with the request. */
  readonly prompt: Int32Array;
  /** `1 + numSpeculativeTokens`. */
  readonly resumeTokens: number;
  /** Whether this engine's model has SSM state. */
  readonly isHybrid: boolean;
  /** Whether the request asks for log-probabilities. */
  readonly wantsLogProbs: boolean;
  /** Epoch of this engine's weights. */
  readonly epoch: number;
}

/**
 * Decode.
 *
 * @throws `INCOMPATIBLE` (another model or element type), `BLOCK_COUNT_MISMATCH`, `PROMPT_MISMATCH`,
 *   `RESUME_TOKENS_INVALID`, `SSM_METADATA_INVALID`, `EPOCH_MISMATCH`
 */
export function checkExpectation(parsed: ParsedKvMeta, expected: HandoffExpectation): void {
  const promptTokens = expected.prompt.length;
  for (const field of ['model', 'dtype'] as const) {
    if (parsed[field] === null || parsed[field] === expected[field]) continue;
    throw argumentError(
      `kvMeta.handoff.${field}`,
      `${JSON.stringify(expected[field])}, this engine's`,
      parsed[field],
      'INCOMPATIBLE',
    );
  }
  if (parsed.promptTokens !== null && parsed.promptTokens !== promptTokens) {
    throw argumentError(
      'kvMeta.handoff.prompt_tokens',
      `${promptTokens}, the length of the prompt`,
      parsed.promptTokens,
      'BLOCK_COUNT_MISMATCH',
    );
  }
  // Counted in blocks of the source, which need not be as large as this engine's.
  const blocks = Math.ceil(promptTokens / parsed.ranks[0]!.tokensPerBlock);
  if (parsed.blockCount !== blocks) {
    throw argumentError(
      'sourceBlockIds',
      `${blocks} blocks for ${promptTokens} tokens`,
      parsed.blockCount,
      'BLOCK_COUNT_MISMATCH',
    );
  }
  const digest = parsed.promptDigest === null ? null : promptDigest(expected.prompt);
  if (parsed.promptDigest !== digest) {
    throw argumentError(
      `kvMeta.handoff.${promptDigestKey}`,
      `${JSON.stringify(digest)}, of the prompt that came with the request`,
      parsed.promptDigest,
      'PROMPT_MISMATCH',
    );
  }
  if (parsed.resumeTokens.length !== expected.resumeTokens) {
    throw argumentError(
      'kvMeta.resume_tokens',
      `${expected.resumeTokens} tokens (one sampled, the rest proposals)`,
      parsed.resumeTokens,
      'RESUME_TOKENS_INVALID',
    );
  }
  if (expected.wantsLogProbs && parsed.resumeLogProbs === null) {
    throw argumentError(
      'kvMeta.resume_log_probs',
      'the log-probability of the sampled token',
      null,
      'RESUME_TOKENS_INVALID',
    );
  }
  if ((parsed.slot !== null) !== expected.isHybrid) {
    throw argumentError(
      'kvMeta.ssm',
      expected.isHybrid ? 'SSM state, this model has some' : 'none, this model has no SSM state',
      parsed.slot === null ? undefined : parsed.slot,
      'SSM_METADATA_INVALID',
    );
  }
  if (parsed.handoff !== null && parsed.handoff.epoch !== expected.epoch) {
    throw argumentError(
      'kvMeta.handoff.epoch',
      `${expected.epoch}, the epoch of this engine's weights`,
      parsed.handoff.epoch,
      'EPOCH_MISMATCH',
    );
  }
}
