/** The token ids of a prompt that came from a coordinator: a list of them, or text for the engine's own tokenizer. */
import { argumentError } from '../errors.js';
import { decodeValue } from './protocol/wire-bytes.js';
import type { Wire } from './protocol/wire-value.js';

/** @throws `ARGUMENT_INVALID` for what is neither, and for text where there is no tokenizer */
export function promptTokens(
  prompt: Uint8Array,
  tokenize: ((text: string) => readonly number[]) | undefined,
): readonly number[] {
  const value = decodeValue(prompt, 'prompt');
  if (typeof value === 'string') {
    if (tokenize === undefined) throw argumentError('prompt', 'token ids', value);
    return tokenize(value);
  }
  const isToken = (token: Wire): boolean => typeof token === 'number' && token >= 0 && token < 2 ** 31;
  if (!Array.isArray(value) || !(value as readonly Wire[]).every(isToken))
    throw argumentError('prompt', 'token ids', value);
  return value as readonly number[];
}
