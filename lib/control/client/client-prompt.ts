/** The prompts that a client may submit: text, or token ids. Refuses any other, by its place. */
import { argumentError } from '../../errors.js';

/**
 * What an engine would not take, it could say only after a way through two queues.
 *
 * @throws `ARGUMENT_INVALID`
 */
export function checkedPrompt(prompt: unknown): string | readonly number[] {
  if (typeof prompt === 'string') return prompt;
  const tokens: unknown = prompt instanceof Int32Array ? Array.from(prompt) : prompt;
  if (!Array.isArray(tokens)) throw argumentError('prompt', 'text or token ids', prompt);
  const wrong = tokens.findIndex((token) => !Number.isInteger(token) || token < 0 || token >= 2 ** 31);
  if (wrong < 0) return tokens as readonly number[];
  throw argumentError(`prompt[${wrong}]`, 'a token id, an integer in [0, 2147483647]', tokens[wrong]);
}
