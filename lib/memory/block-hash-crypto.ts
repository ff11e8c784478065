/**
 * Block hashes by `node:crypto`, for a Node whose binary exports no SHA-256 to the addon. Slower by the cost of one
 * hash object a block; the same hashes.
 */
import { createHash } from 'node:crypto';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { argumentError } from '../errors.js';

type TypedTokens = Int32Array | BigInt64Array | Float64Array;

/** Tokens hashed between two turns of the event loop: well under a millisecond. */
const sliceTokens = 4096;

/**
 * Fills `hashes` with those of the complete blocks. `parent` (32 bytes) is the digest before them and then that of the
 * last.
 *
 * @throws `ARGUMENT_INVALID` naming the index of a token that is no safe integer
 */
export function cryptoBlockHashes(
  tokens: TypedTokens,
  blockSize: number,
  parent: Uint8Array,
  hashes: BigInt64Array,
  firstIndex = 0,
): BigInt64Array {
  const message = Buffer.alloc(blockSize * 8);
  for (let block = 0; block < hashes.length; block++) {
    const from = block * blockSize;
    for (let i = 0; i < blockSize; i++) writeToken(message, i * 8, tokens[from + i]!, firstIndex + from + i);
    const digest = createHash('sha256').update(parent).update(message).digest();
    parent.set(digest);
    hashes[block] = (digest.readBigUInt64LE(0) % 0x7fffffffffffffffn) + 1n;
  }
  return hashes;
}

/** The same, giving way to the event loop in between. The tokens must not change meanwhile. */
export async function cryptoBlockHashesInSlices(
  tokens: TypedTokens,
  blockSize: number,
  parent: Uint8Array,
): Promise<BigInt64Array> {
  const hashes = new BigInt64Array(Math.floor(tokens.length / blockSize));
  const blocks = Math.max(1, Math.floor(sliceTokens / blockSize));
  for (let block = 0; block < hashes.length; block += blocks) {
    const end = Math.min(block + blocks, hashes.length);
    const from = block * blockSize;
    cryptoBlockHashes(tokens.subarray(from, end * blockSize), blockSize, parent, hashes.subarray(block, end), from);
    await nextTurn();
  }
  return hashes;
}

function writeToken(message: Buffer, at: number, token: number | bigint, index: number): void {
  if (typeof token === 'bigint') {
    message.writeBigInt64LE(token, at);
    return;
  }
  if (!Number.isSafeInteger(token)) throw argumentError(`tokens[${index}]`, 'a safe integer', token);
  // Two's complement in two halves; `>>> 0` and `| 0` wrap as they must.
  message.writeUInt32LE(token >>> 0, at);
  message.writeInt32LE(Math.floor(token / 2 ** 32) | 0, at + 4);
}
