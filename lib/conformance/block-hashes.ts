/** Section `block_hashes`: digests and hashes of token blocks, from a plain list and from a typed array. */
import { computeBlockDigests, computeBlockHashes, parentHashes } from '../memory/block-hash.js';
import type { ExactValue } from './exact-json.js';
import { expectEqual, Mismatch, render } from './mismatch.js';
import { bigintOf, fieldsOf, integerOf, listOf, stringOf, type Section } from './section.js';

const hashModulus = (1n << 63n) - 1n;

export const blockHashesSection: Section = {
  name: 'block_hashes',
  groups: {
    cases(value) {
      const fields = fieldsOf(value, '', ['tokens', 'block_size', 'blocks', 'parent_hashes'], ['name', 'cache_salt']);
      const blockSize = integerOf(fields['block_size'], 'block_size');
      const salt = fields['cache_salt'] ?? null;
      const options = { salt: salt === null ? null : stringOf(salt, 'cache_salt') };
      const wide = BigInt64Array.from(listOf(fields['tokens'], 'tokens').map(token));
      const hashes = computeBlockHashes(wide, blockSize, options);
      const digests = computeBlockDigests(wide, blockSize, options);
      const got = digests.map((digest, block) => {
        const raw = new DataView(digest.buffer, digest.byteOffset).getBigUint64(0, true);
        expectEqual(`blocks[${block}].raw_u64 mod (2^63 - 1) + 1`, (raw % hashModulus) + 1n, hashes[block]);
        return { digest_hex: Buffer.from(digest).toString('hex'), raw_u64: raw, hash: hashes[block] };
      });
      listOf(fields['blocks'], 'blocks').forEach((block, index) =>
        fieldsOf(block, `blocks[${index}]`, ['digest_hex', 'raw_u64', 'hash']),
      );
      expectEqual('blocks', fields['blocks'] as ExactValue, got);
      expectEqual('parent_hashes', fields['parent_hashes'] as ExactValue, parentHashes(hashes));
      if (wide.every((id) => Number.isSafeInteger(Number(id)))) {
        const list = Array.from(wide, Number);
        expectEqual('hashes of the tokens as a list', Array.from(hashes), computeBlockHashes(list, blockSize, options));
      }
    },
  },
};

function token(value: ExactValue, index: number): bigint {
  const path = `tokens[${index}]`;
  const id = bigintOf(value, path);
  if (BigInt.asIntN(64, id) !== id) throw new Mismatch(path, 'a signed 64-bit integer', render(value));
  return id;
}
