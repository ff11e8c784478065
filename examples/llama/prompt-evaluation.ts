/**
 * The evaluation of a prompt in chunks that begin at multiples of the chunk size. Bits follow from how a prompt is cut, so
 * everyone who evaluates one cuts it here: prefill, and the engine that it is compared with.
 */
import type { Lane } from './lanes.js';

/**
 * Evaluates the tokens of `prompt` that the lane does not hold; the lane holds a multiple of `chunk`. Resolves with the
 * logits of the last token.
 *
 * @param onChunk - told how many tokens were evaluated
 */
export async function evaluatePrompt(
  lane: Lane<Int32Array>,
  prompt: Int32Array,
  chunk: number,
  onChunk: (tokens: number) => void,
): Promise<Float32Array<ArrayBuffer>> {
  let logits = new Float32Array(0);
  for (let from = lane.held.length; from < prompt.length; from = lane.held.length) {
    const tokens = prompt.slice(from, from + chunk);
    const outputs = new Uint8Array(tokens.length);
    const isLast = from + tokens.length === prompt.length;
    if (isLast) outputs[tokens.length - 1] = 1;
    const positions = tokens.map((_, index) => from + index);
    logits = await lane.cache.evaluate(
      tokens,
      positions,
      tokens.map(() => lane.sequence),
      outputs,
    );
    lane.held = prompt.slice(0, from + tokens.length);
    onChunk(tokens.length);
  }
  return logits;
}
