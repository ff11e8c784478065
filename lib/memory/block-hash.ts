/**
 * Hashes of complete token blocks, chained so that equal hashes mean equal prefixes (spec 3).
 *
 * They are the protocol's names of cached state and equal in every process and on every machine. OpenSSL's SHA-256 does
 * the work where the process exports it, else `node:crypto` (block-hash-crypto.ts).
 */
import { createHash } from 'node:crypto';
import { types } from 'node:util';
import { requireObject } from '../argument-shape.js';
import { argumentError, HandoffError } from '../errors.js';
import { fromNative, native } from '../native/addon-errors.js';
import { addon } from '../native/addon.js';
import { cryptoBlockHashes, cryptoBlockHashesInSlices } from './block-hash-crypto.js';

/** Token ids. Numbers must be safe integers; 64-bit arrays hold any. */
export type Tokens = Int32Array | BigInt64Array | readonly number[];

/** What goes into the hashes beside the tokens. */
export interface BlockHashOptions {
  /**
   * Whatever changes the state for equal tokens: media key, adapter, weight epoch. Absent and the empty string are two
   * different things.
   */
  readonly salt?: string | null;
}

/** From this many tokens on, {@link computeBlockHashesAsync} leaves the event loop. */
export const asyncTokensMin = 16_384;

const blockSizeMax = 2 ** 30;
const digestBytes = 32;
/** Of a plain list, this many tokens are converted at a time: enough to be quick, few enough to stay in the cache. */
const listPartTokens = 8192;

/**
 * The hashes of the complete blocks of `tokens`, each in [1, 2^63 - 1]; a partial last block has none.
 *
 * @throws `ARGUMENT_INVALID` naming the field, for a token its index
 */
export function computeBlockHashes(tokens: Tokens, blockSize: number, options: BlockHashOptions = {}): BigInt64Array {
  checkBlockSize(blockSize);
  const parent = firstParent(options);
  if (!isList(tokens)) {
    checkTyped(tokens);
    const hashes = new BigInt64Array(Math.floor(tokens.length / blockSize));
    if (!hasOpenssl()) return cryptoBlockHashes(tokens, blockSize, parent, hashes);
    native(() => addon().blockHashes(tokens, blockSize, parent, 0, hashes));
    return hashes;
  }
  const hashes = new BigInt64Array(Math.floor(tokens.length / blockSize));
  checkTail(tokens, hashes.length * blockSize);
  if (!hasOpenssl()) return cryptoBlockHashes(doublesOf(tokens, 0, tokens.length), blockSize, parent, hashes);
  const partBlocks = Math.max(1, Math.floor(listPartTokens / blockSize));
  const part = new Float64Array(Math.min(partBlocks, hashes.length) * blockSize);
  for (let block = 0; block < hashes.length; block += partBlocks) {
    const end = Math.min(block + partBlocks, hashes.length);
    const from = block * blockSize;
    const used = part.subarray(0, end * blockSize - from);
    copyNumbers(tokens, from, used);
    native(() => addon().blockHashes(used, blockSize, parent, from, hashes.subarray(block, end)));
  }
  return hashes;
}

/**
 * The same; long prompts on another thread, several at once on several. `tokens` may be changed once it has returned.
 * Without OpenSSL in the process it works in slices, so that the event loop goes on in between.
 *
 * @throws (rejects) as {@link computeBlockHashes}
 */
export async function computeBlockHashesAsync(
  tokens: Tokens,
  blockSize: number,
  options: BlockHashOptions = {},
): Promise<BigInt64Array> {
  checkBlockSize(blockSize);
  if (!isList(tokens)) checkTyped(tokens);
  if (tokens.length < asyncTokensMin) return computeBlockHashes(tokens, blockSize, options);
  const parent = firstParent(options);
  const whole = isList(tokens) ? doublesOf(tokens, 0, tokens.length) : tokens;
  if (isList(tokens)) checkTail(tokens, Math.floor(tokens.length / blockSize) * blockSize);
  if (!hasOpenssl()) return cryptoBlockHashesInSlices(whole.slice(), blockSize, parent);
  try {
    return await addon().blockHashesAsync(whole, blockSize, parent, 0);
  } catch (error) {
    throw fromNative(error);
  }
}

/**
 * For {@link BlockAllocator.register}: the parent of each of a prompt's hashes is the one before; 0 is none.
 *
 * @param hashes - of the prompt's complete blocks, in order
 * @throws `ARGUMENT_INVALID` for anything but a `BigInt64Array`
 */
export function parentHashes(hashes: BigInt64Array): BigInt64Array {
  if (!types.isBigInt64Array(hashes)) throw argumentError('hashes', 'a BigInt64Array', hashes);
  const parents = new BigInt64Array(hashes.length);
  if (hashes.length > 1) parents.set(hashes.subarray(0, -1), 1);
  return parents;
}

/** The whole digests behind the hashes, for conformance. @internal */
export function computeBlockDigests(tokens: Tokens, blockSize: number, options: BlockHashOptions = {}): Uint8Array[] {
  checkBlockSize(blockSize);
  const whole = isList(tokens) ? doublesOf(tokens, 0, tokens.length) : tokens;
  const parent = firstParent(options);
  return Array.from({ length: Math.floor(whole.length / blockSize) }, (_, block) => {
    const part = whole.subarray(block * blockSize, (block + 1) * blockSize);
    const hash = new BigInt64Array(1);
    if (hasOpenssl()) native(() => addon().blockHashes(part, blockSize, parent, block * blockSize, hash));
    else cryptoBlockHashes(part, blockSize, parent, hash);
    return Buffer.from(parent);
  });
}

function hasOpenssl(): boolean {
  return addon().blockHashBackend() === 'openssl';
}

function isList(tokens: Tokens): tokens is readonly number[] {
  return Array.isArray(tokens);
}

function checkTyped(tokens: Int32Array | BigInt64Array): void {
  if (!types.isInt32Array(tokens) && !types.isBigInt64Array(tokens)) {
    throw argumentError('tokens', 'an Int32Array, a BigInt64Array or an array of numbers', tokens);
  }
  if (tokens.length === 0 && isDetached(tokens.buffer)) {
    throw new HandoffError(
      'ARGUMENT_INVALID',
      'tokens: expected an array in memory, got one whose buffer was detached',
    );
  }
}

/** A detached array looks empty; hashing nothing would hide the mistake. Before Node 22 nothing says it openly. */
function isDetached(buffer: ArrayBufferLike): boolean {
  if (buffer.byteLength > 0) return false;
  try {
    return new Uint8Array(buffer).length > 0;
  } catch {
    return true;
  }
}

function checkBlockSize(blockSize: number): void {
  if (!Number.isSafeInteger(blockSize) || blockSize < 1 || blockSize > blockSizeMax) {
    throw argumentError('blockSize', `an integer in [1, ${blockSizeMax}]`, blockSize);
  }
}

function firstParent(options: BlockHashOptions): Uint8Array {
  requireObject('options', options);
  const { salt = null } = options;
  if (salt === null) return new Uint8Array(digestBytes);
  if (typeof salt !== 'string') throw argumentError('options.salt', 'a string or null', salt);
  if (/\p{Surrogate}/u.test(salt)) throw argumentError('options.salt', 'text without lone surrogates', salt);
  return createHash('sha256').update('megatron-prefix-cache-salt-v1\0', 'ascii').update(salt, 'utf8').digest();
}

function doublesOf(tokens: readonly number[], from: number, to: number): Float64Array {
  const doubles = new Float64Array(to - from);
  copyNumbers(tokens, from, doubles);
  return doubles;
}

/** Native code checks that the numbers are safe integers while it widens them; here only that they are numbers. */
function copyNumbers(tokens: readonly number[], from: number, to: Float64Array): void {
  for (let i = 0; i < to.length; i++) {
    const token = tokens[from + i];
    if (typeof token !== 'number') throw argumentError(`tokens[${from + i}]`, 'a safe integer', token);
    to[i] = token;
  }
}

/** Tokens of the partial last block are in no hash, but a wrong one is still a mistake. */
function checkTail(tokens: readonly number[], from: number): void {
  for (let i = from; i < tokens.length; i++) {
    if (!Number.isSafeInteger(tokens[i])) throw argumentError(`tokens[${i}]`, 'a safe integer', tokens[i]);
  }
}
