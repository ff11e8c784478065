/**
 * Block hashes as spec 3 words them, with `node:crypto` and nothing else: an independent model of `computeBlockHashes`.
 */
import { createHash } from 'node:crypto';
import { argumentError } from '../errors.js';

const saltPrefix = 'megatron-prefix-cache-salt-v1';
const hashModulus = 2n ** 63n - 1n;

/**
 * One hash for each complete block of `tokens`, in [1, 2^63 - 1].
 *
 * @param salt - null: none; an empty string is a salt
 * @throws `ARGUMENT_INVALID` when `blockSize` is no positive integer
 */
export function modelBlockHashes(
  tokens: ArrayLike<number>,
  blockSize: number,
  salt: string | null = null,
): BigInt64Array {
  if (!Number.isSafeInteger(blockSize) || blockSize < 1)
    throw argumentError('blockSize', 'a positive integer', blockSize);
  const count = Math.floor(tokens.length / blockSize);
  const hashes = new BigInt64Array(count);
  let parent: Buffer =
    salt === null ? Buffer.alloc(32) : createHash('sha256').update(`${saltPrefix}\0${salt}`, 'utf8').digest();
  const message = Buffer.alloc(32 + 8 * blockSize);
  for (let block = 0; block < count; block++) {
    parent.copy(message);
    for (let i = 0; i < blockSize; i++) {
      const token = tokens[block * blockSize + i]!;
      message.writeInt32LE(token | 0, 32 + 8 * i);
      message.writeInt32LE(Math.floor(token / 2 ** 32), 36 + 8 * i);
    }
    parent = createHash('sha256').update(message).digest();
    hashes[block] = (parent.readBigUInt64LE(0) % hashModulus) + 1n;
  }
  return hashes;
}
