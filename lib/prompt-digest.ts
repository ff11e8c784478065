/**
 * Which prompt a ticket is about, in a few bytes: decode is given a prompt and a ticket by somebody else, and would generate
 * from the state of one with the other without anybody noticing.
 */
import { createHash } from 'node:crypto';

/** Key of the digest in `kv_meta.handoff`. */
export const promptDigestKey = 'prompt_sha256';

/**
 * SHA-256, base64, of the token ids as 32-bit little-endian integers, as every machine this package runs on has them in
 * memory.
 */
export function promptDigest(prompt: Int32Array): string {
  return createHash('sha256')
    .update(new Uint8Array(prompt.buffer, prompt.byteOffset, prompt.byteLength))
    .digest('base64');
}
