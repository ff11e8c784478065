/** Whether a handoff is the one that was asked for: each difference by its code. */
import { createHash } from 'node:crypto';
import { checkExpectation } from '../../lib/decode/handoff-expectation.js';
import { parseKvMeta } from '../../lib/decode/handoff-parser.js';
import { promptDigest } from '../../lib/prompt-digest.js';
import { hybridShape, sampleBlocks, sampleHandoff, sampleKvMeta, smallShape } from '../support/described-instance.js';

const prompt = (length: number): Int32Array => Int32Array.from({ length }, (_, at) => 100 + at);

describe('checkExpectation', () => {
  const expected = {
    model: 'sample-1',
    dtype: 'bfloat16',
    prompt: prompt(40),
    resumeTokens: 2,
    isHybrid: false,
    wantsLogProbs: false,
    epoch: 3,
  };
  const parsed = parseKvMeta(sampleKvMeta(smallShape), sampleBlocks);

  it('lets the handoff through that was asked for', () => {
    expect(() => checkExpectation(parsed, expected)).not.toThrow();
    const withState = parseKvMeta(sampleKvMeta(hybridShape, { resumeLogProbs: [-1] }), sampleBlocks);
    expect(() => checkExpectation(withState, { ...expected, isHybrid: true, wantsLogProbs: true })).not.toThrow();
    const anonymous = parseKvMeta(sampleKvMeta(smallShape, { handoff: null }), sampleBlocks);
    expect(() =>
      checkExpectation(anonymous, { ...expected, model: 'other', prompt: prompt(48), epoch: 9 }),
    ).not.toThrow();
    const before = sampleKvMeta(smallShape);
    const { model, dtype, ...withoutNames } = before['handoff'] as Record<string, unknown>;
    expect([model, dtype]).toEqual(['sample-1', 'bfloat16']);
    const silent = parseKvMeta({ ...before, handoff: withoutNames }, sampleBlocks);
    expect(() => checkExpectation(silent, { ...expected, model: 'other', dtype: 'other' })).not.toThrow();
  });

  it.each([
    [
      { model: 'sample-2' },
      'INCOMPATIBLE',
      'kvMeta.handoff.model: expected "sample-2", this engine\'s, got "sample-1"',
    ],
    [{ dtype: 'float16' }, 'INCOMPATIBLE', 'kvMeta.handoff.dtype: expected "float16", this engine\'s, got "bfloat16"'],
    [
      { prompt: prompt(41) },
      'BLOCK_COUNT_MISMATCH',
      'kvMeta.handoff.prompt_tokens: expected 41, the length of the prompt, got 40',
    ],
    [
      { resumeTokens: 1 },
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_tokens: expected 1 tokens (one sampled, the rest proposals), got an array of 2',
    ],
    [{ isHybrid: true }, 'SSM_METADATA_INVALID', 'kvMeta.ssm: expected SSM state, this model has some, got undefined'],
    [
      { wantsLogProbs: true },
      'RESUME_TOKENS_INVALID',
      'kvMeta.resume_log_probs: expected the log-probability of the sampled token, got null',
    ],
    [{ epoch: 4 }, 'EPOCH_MISMATCH', "kvMeta.handoff.epoch: expected 4, the epoch of this engine's weights, got 3"],
  ])('refuses when %j was expected', (difference, code, message) => {
    expect(() => checkExpectation(parsed, { ...expected, ...difference })).toThrow(
      expect.objectContaining({ code, message }),
    );
  });

  it('counts blocks for a peer that does not say its prompt', () => {
    const anonymous = parseKvMeta(sampleKvMeta(smallShape, { handoff: null }), sampleBlocks);
    for (const length of [32, 49]) {
      expect(() => checkExpectation(anonymous, { ...expected, prompt: prompt(length) })).toThrow(
        expect.objectContaining({ code: 'BLOCK_COUNT_MISMATCH' }),
      );
    }
  });

  it('refuses the state of another prompt of the same length, whichever token differs', () => {
    const digest = promptDigest(prompt(40));
    const sealed = parseKvMeta(
      sampleKvMeta(smallShape, { handoff: { ...sampleHandoff, promptDigest: digest } }),
      sampleBlocks,
    );
    expect(() => checkExpectation(sealed, expected)).not.toThrow();
    // Where in memory the tokens lie says nothing of them.
    const inside = Int32Array.of(7, ...prompt(40), 7).subarray(1, 41);
    expect(() => checkExpectation(sealed, { ...expected, prompt: inside })).not.toThrow();
    for (let at = 0; at < 40; at++) {
      const other = prompt(40).with(at, 9);
      expect(() => checkExpectation(sealed, { ...expected, prompt: other })).toThrow(
        expect.objectContaining({
          code: 'PROMPT_MISMATCH',
          message: `kvMeta.handoff.prompt_sha256: expected "${promptDigest(other)}", of the prompt that came with the request, got "${digest}"`,
        }),
      );
    }
  });

  it('the digest is that of 32-bit little-endian token ids', () => {
    const bytes = Buffer.from([1, 0, 0, 0, 0, 2, 0, 0]);
    expect(promptDigest(Int32Array.of(1, 512))).toBe(createHash('sha256').update(bytes).digest('base64'));
  });

  it('refuses SSM state that this model has no place for', () => {
    expect(() => checkExpectation(parseKvMeta(sampleKvMeta(hybridShape), sampleBlocks), expected)).toThrow(
      expect.objectContaining({
        code: 'SSM_METADATA_INVALID',
        message: 'kvMeta.ssm: expected none, this model has no SSM state, got 4',
      }),
    );
  });
});
