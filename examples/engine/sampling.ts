/**
 * A request's sampling parameters (spec 1.5.5), checked once. Keys this engine has no use for are left alone.
 */
import type { SamplingParams } from 'state-handoff';
import { badInput, requireInteger } from './bad-input.js';

export interface Sampling {
  /** 0 means greedy, as does a `topK` of 1. */
  readonly temperature: number;
  /** 0: all tokens. */
  readonly topK: number;
  /** 0 or 1: all tokens. */
  readonly topP: number;
  /** Of the random numbers; with it a token's draw depends on its position alone. */
  readonly seed: number;
  readonly returnLogProbs: boolean;
  /** Tokens to generate; null when only the sequence bounds them. */
  readonly limit: number | null;
  /** -1: none. */
  readonly terminationId: number;
  /** UTF-8 bytes of each stop word. */
  readonly stopWords: readonly Uint8Array[];
  /** Whether the finished prefill is handed to a decode engine. */
  readonly handsOff: boolean;
  readonly cacheSalt: string | null;
}

/** Whether a request is at its end, and why. */
export type End = 'no' | 'length' | 'stop';

/**
 * @param promptTokens - needed to turn `num_tokens_total` into a limit
 * @throws `ARGUMENT_INVALID` naming the key
 */
export function compileSampling(params: SamplingParams, promptTokens: number): Sampling {
  return {
    temperature: number(params, 'temperature', 1, 0, Number.MAX_VALUE),
    topK: optionalInteger(params, 'top_k', 0) ?? 0,
    topP: number(params, 'top_p', 0, 0, 1),
    seed: optionalInteger(params, 'seed', 0, 2 ** 32 - 1) ?? 0,
    returnLogProbs: flag(params, 'return_log_probs'),
    limit: tokenLimit(params, promptTokens),
    terminationId: optionalInteger(params, 'termination_id', -1) ?? -1,
    stopWords: stopWords(params),
    handsOff: flag(params, 'do_kv_handoff'),
    cacheSalt: text(params, 'cache_salt'),
  };
}

function tokenLimit(params: SamplingParams, promptTokens: number): number | null {
  const generate = optionalInteger(params, 'num_tokens_to_generate', 0);
  const total = optionalInteger(params, 'num_tokens_total', 0);
  if (generate !== null && total !== null) {
    throw badInput('samplingParams.num_tokens_total', 'null beside num_tokens_to_generate', total);
  }
  return generate ?? (total === null ? null : Math.max(0, total - promptTokens));
}

function given(params: SamplingParams, key: string): unknown {
  return params[key] ?? null;
}

function optionalInteger(params: SamplingParams, key: string, minimum: number, maximum?: number): number | null {
  const value = given(params, key);
  return value === null ? null : requireInteger(`samplingParams.${key}`, value, minimum, maximum);
}

function number(params: SamplingParams, key: string, fallback: number, minimum: number, maximum: number): number {
  const value = given(params, key) ?? fallback;
  if (typeof value !== 'number' || !(value >= minimum && value <= maximum)) {
    throw badInput(`samplingParams.${key}`, `a number in [${minimum}, ${maximum}]`, value);
  }
  return value;
}

function flag(params: SamplingParams, key: string): boolean {
  const value = given(params, key) ?? false;
  if (typeof value !== 'boolean') throw badInput(`samplingParams.${key}`, 'true or false', value);
  return value;
}

function text(params: SamplingParams, key: string): string | null {
  const value = given(params, key);
  if (value !== null && typeof value !== 'string') throw badInput(`samplingParams.${key}`, 'text or null', value);
  return value;
}

function stopWords(params: SamplingParams): Uint8Array[] {
  const words = given(params, 'stop_words') ?? [];
  if (!Array.isArray(words)) throw badInput('samplingParams.stop_words', 'a list of texts or null', words);
  return words.map((word: unknown, index) => {
    if (typeof word !== 'string' || word === '') {
      throw badInput(`samplingParams.stop_words[${index}]`, 'a text that is not empty', word);
    }
    return new TextEncoder().encode(word);
  });
}

/** Whether a request that has generated `tokens` is at its end, and why. */
export function completion(sampling: Sampling, tokens: readonly number[], limit: number): End {
  if (limit === 0) return 'length';
  if (tokens.length === 0) return 'no';
  if (tokens[tokens.length - 1] === sampling.terminationId) return 'stop';
  for (const word of sampling.stopWords) if (endsWith(tokens, word)) return 'stop';
  return tokens.length >= limit ? 'length' : 'no';
}

function endsWith(tokens: readonly number[], word: Uint8Array): boolean {
  const from = tokens.length - word.length;
  if (from < 0) return false;
  for (let i = 0; i < word.length; i++) if (tokens[from + i] !== word[i]) return false;
  return true;
}
