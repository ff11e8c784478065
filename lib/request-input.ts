/** What callers hand to `StateHandoff`, checked and copied before anything is done with it. */
import type { Fence, Finished, RequestId, SamplingParams } from './engine-context.js';
import { decodeWireValue, encodeWireValue } from './control/ranks/wire-value.js';
import type { ImportRequest } from './decode/arrival.js';
import { argumentError, HandoffError } from './errors.js';
import { unreadyFence } from './ticket-readiness.js';
import type { HandoffRef } from './events.js';
import { isRecord } from './json.js';
import { defaultTicketLimits } from './limits.js';
import type { PreparedHandoffs } from './prefill/prefill-side.js';

/** @throws `ARGUMENT_INVALID` */
export function checkLabel(requestId: RequestId): RequestId {
  const isLabel =
    typeof requestId === 'number'
      ? Number.isSafeInteger(requestId)
      : typeof requestId === 'string' && requestId.length <= 256;
  if (!isLabel) throw argumentError('requestId', 'an integer, or at most 256 characters', requestId);
  return requestId;
}

/** The caller's tokens, copied. @throws `ARGUMENT_INVALID` naming the first that is none */
export function checkPrompt(prompt: readonly number[] | Int32Array): Int32Array {
  if (!(prompt instanceof Int32Array) && !Array.isArray(prompt))
    throw argumentError('prompt', 'a list of token ids', prompt);
  if (prompt.length === 0) throw argumentError('prompt', 'at least one token', prompt);
  // A copy either way: the caller may reuse its own.
  if (prompt instanceof Int32Array) return prompt.slice();
  const tokens = new Int32Array(prompt.length);
  for (let i = 0; i < tokens.length; i += 1) {
    const token: unknown = prompt[i];
    if (typeof token !== 'number' || (token | 0) !== token)
      throw argumentError(`prompt[${i}]`, 'a signed 32-bit integer', token);
    tokens[i] = token;
  }
  return tokens;
}

/** A copy; what limits a request's length must be a number that can be counted with. @throws `ARGUMENT_INVALID` naming the field */
export function checkSamplingParams(samplingParams: SamplingParams): SamplingParams {
  if (typeof samplingParams !== 'object' || samplingParams === null)
    throw argumentError('samplingParams', 'an object', samplingParams);
  for (const field of ['num_tokens_to_generate', 'num_tokens_total'] as const) {
    const value = samplingParams[field] ?? null;
    if (value !== null && !(Number.isSafeInteger(value) && value >= 0))
      throw argumentError(`samplingParams.${field}`, 'an integer of at least 0, or null', value);
  }
  return { ...samplingParams };
}

/** What separates cache entries of equal tokens (spec 3.3). @throws `ARGUMENT_INVALID` */
export function checkSalt(salt: string | null | undefined): string | null {
  if (salt === null || salt === undefined) return null;
  if (typeof salt !== 'string' || /\p{Surrogate}/u.test(salt))
    throw argumentError('options.cacheSalt', 'text without lone surrogates, or null', salt);
  return salt;
}

/** @throws `ARGUMENT_INVALID` */
export function checkPrepared(prepared: PreparedHandoffs): PreparedHandoffs {
  if (!((prepared as Partial<PreparedHandoffs> | null | undefined)?.byRequest instanceof Map))
    throw argumentError('prepared', 'what prepareHandoffMetadataBatch gave', prepared);
  return prepared;
}

/** @throws `ARGUMENT_INVALID` */
export function checkFence(fence: Fence | null | undefined, path: string): Fence | null {
  if (fence === null || fence === undefined) return null;
  if (typeof (fence as Partial<Fence>).isComplete !== 'function') throw argumentError(path, 'a Fence or null', fence);
  return fence;
}

/** @throws `ARGUMENT_INVALID` */
export function checkBlockCount(blockCount: number): number {
  if (!Number.isSafeInteger(blockCount) || blockCount < 0)
    throw argumentError('blockCount', 'an integer of at least 0', blockCount);
  return blockCount;
}

/** @throws `ARGUMENT_INVALID` */
export function requireOwner(owner: string): void {
  if (typeof owner !== 'string' || owner.length === 0 || owner.length > 512)
    throw argumentError('owner', 'a non-empty string of at most 512 characters', owner);
}

/**
 * What the ranks' own log carries, as it will arrive at the other ranks: a copy, since the frame leaves later and the
 * caller may change its own meanwhile.
 *
 * @throws `ARGUMENT_INVALID` naming what does not survive the way
 */
export function travelling<Value>(value: Value, path: string): Value {
  return decodeWireValue(encodeWireValue(value, path)) as Value;
}

/** A ticket of this process goes to no other rank before its fence completed: none of them could wait for it. @throws `HANDOFF_NOT_READY` */
export function requireReady(kvMeta: unknown): void {
  if (!isRecord(kvMeta) || unreadyFence(kvMeta) === null) return;
  throw new HandoffError(
    'HANDOFF_NOT_READY',
    'the ticket may not go to other ranks because its state is not in place yet; hand it over after `ticketReady`',
  );
}

/**
 * A request as the frame will carry it to the other ranks.
 *
 * @throws `ARGUMENT_INVALID` naming what does not survive the way
 */
export function withTravelling(request: ImportRequest): ImportRequest {
  return {
    ...request,
    samplingParams: travelling(request.samplingParams, 'samplingParams'),
    kvMeta: travelling(request.kvMeta, 'kvMeta'),
    sourceBlockIds: travelling(request.sourceBlockIds, 'sourceBlockIds'),
  };
}

/** An instance's or incarnation's name, as a ticket may have it. @throws `ARGUMENT_INVALID` */
export function checkName(value: string, path: string): void {
  const lengthMax = defaultTicketLimits.nameLengthMax;
  if (typeof value !== 'string' || value.length === 0 || value.length > lengthMax)
    throw argumentError(path, `a string of 1 to ${lengthMax} characters`, value);
}

/** The identity in a ticket that was refused, when there is a readable one. */
export function refOf(kvMeta: unknown): HandoffRef | null {
  const handoff = (kvMeta as { handoff?: Partial<Record<string, unknown>> } | null)?.handoff;
  const { instance, incarnation, handoff_id: handoffId, epoch } = handoff ?? {};
  if (
    typeof instance !== 'string' ||
    typeof incarnation !== 'string' ||
    typeof handoffId !== 'number' ||
    typeof epoch !== 'number'
  )
    return null;
  return { instance, incarnation, handoffId, epoch };
}

/** How long to wait, in milliseconds. @throws `ARGUMENT_INVALID` */
export function checkDeadline(value: number | undefined, fallback: number): number {
  if (value === undefined) return fallback;
  if (typeof value !== 'number' || !(value >= 0))
    throw argumentError('options.deadlineMs', 'a number of at least 0', value);
  return value;
}

/** Hashes of complete blocks, by the caller (spec 3): positive and, each covering all tokens before it, distinct. @throws `ARGUMENT_INVALID` */
export function checkBlockHashes(hashes: BigInt64Array | null, completeBlocks: number): BigInt64Array | null {
  if (hashes === null) return null;
  const path = 'options.blockHashes';
  if (!(hashes instanceof BigInt64Array)) throw argumentError(path, 'a BigInt64Array', hashes);
  if (hashes.length !== completeBlocks)
    throw argumentError(path, `${completeBlocks} hashes, one a complete block`, hashes.length);
  const seen = new Set<bigint>();
  for (const [index, hash] of hashes.entries()) {
    if (hash < 1n) throw argumentError(`${path}[${index}]`, 'a hash of at least 1', hash);
    if (seen.has(hash)) throw argumentError(`${path}[${index}]`, 'a hash that no block before it has', hash);
    seen.add(hash);
  }
  return hashes.slice();
}

/** @throws `ARGUMENT_INVALID` */
export function checkSignal(signal: AbortSignal | null | undefined): AbortSignal | null {
  if (signal === null || signal === undefined) return null;
  if (
    typeof signal !== 'object' ||
    typeof signal.addEventListener !== 'function' ||
    typeof signal.removeEventListener !== 'function' ||
    typeof signal.aborted !== 'boolean'
  )
    throw argumentError('options.signal', 'an AbortSignal', signal);
  return signal;
}

/** What the engine says a request ended with. @throws `ARGUMENT_INVALID` */
export function checkResult<Result extends Omit<Finished, 'requestId' | 'attemptId'>>(result: Result): Result {
  if (typeof result !== 'object' || result === null) throw argumentError('result', 'an object', result);
  if (!Array.isArray(result.generatedTokens))
    throw argumentError('result.generatedTokens', 'a list', result.generatedTokens);
  if (result.finishReason !== 'length' && result.finishReason !== 'stop')
    throw argumentError('result.finishReason', "'length' or 'stop'", result.finishReason);
  return result;
}
