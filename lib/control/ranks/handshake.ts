/**
 * How ranks prove to each other that they are of one instance: each end shows that it knows the instance's token, over
 * both ends' fresh nonces, the rank and the size; the token itself never travels.
 *
 * Refuses another version, another size, a rank out of range and a wrong proof, each by name.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { argumentError, HandoffError } from '../../errors.js';
import { rankProtocolVersion } from './framing.js';

const magic = 0x53485247; // "SHRG"
const nonceBytes = 16;
const proofBytes = 32;
const helloBytes = 8 + nonceBytes;
const joinBytes = 16 + nonceBytes + proofBytes;

/** No frame before a rank is known may be longer. */
export const handshakeFrameMax = 512;

/** What a worker says of itself. */
export interface JoinClaim {
  readonly rank: number;
  readonly size: number;
  readonly nonce: Uint8Array;
}

export function newNonce(): Uint8Array {
  return randomBytes(nonceBytes);
}

/** Rank 0's first frame. */
export function encodeHello(nonce: Uint8Array): Uint8Array {
  const bytes = Buffer.alloc(helloBytes);
  bytes.writeUInt32BE(magic, 0);
  bytes.writeUInt32BE(rankProtocolVersion, 4);
  bytes.set(nonce, 8);
  return bytes;
}

/** Worker. Rank 0's nonce. @throws `RANK_SETUP_FAILED` for no rank 0, or one of another version */
export function decodeHello(payload: Uint8Array): Uint8Array {
  const view = checkedView(payload, helloBytes, 'hello');
  return Uint8Array.from(payload.subarray(8, view.byteLength));
}

/** Worker. Who it is, with its proof. */
export function encodeJoin(token: string, helloNonce: Uint8Array, claim: JoinClaim): Uint8Array {
  const bytes = Buffer.alloc(joinBytes);
  bytes.writeUInt32BE(magic, 0);
  bytes.writeUInt32BE(rankProtocolVersion, 4);
  bytes.writeUInt32BE(claim.rank, 8);
  bytes.writeUInt32BE(claim.size, 12);
  bytes.set(claim.nonce, 16);
  bytes.set(proof(token, 'join', helloNonce, claim), 16 + nonceBytes);
  return bytes;
}

/**
 * Rank 0. Who the newcomer has proved to be.
 *
 * @throws `RANK_SETUP_FAILED` naming what is wrong with it
 */
export function decodeJoin(payload: Uint8Array, token: string, helloNonce: Uint8Array, size: number): JoinClaim {
  const view = checkedView(payload, joinBytes, 'join');
  const claim = {
    rank: view.getUint32(8),
    size: view.getUint32(12),
    nonce: Uint8Array.from(payload.subarray(16, 16 + nonceBytes)),
  };
  const given = payload.subarray(16 + nonceBytes);
  // The proof first: a stranger learns nothing else.
  if (!timingSafeEqual(given, proof(token, 'join', helloNonce, claim)))
    throw refusal('token', "the instance's", 'another');
  if (claim.size !== size) throw refusal('size', String(size), claim.size);
  if (claim.rank < 1 || claim.rank >= size) throw refusal('rank', `1 to ${size - 1}`, claim.rank);
  return claim;
}

/** Rank 0. Its own proof. */
export function encodeWelcome(token: string, helloNonce: Uint8Array, claim: JoinClaim): Uint8Array {
  return proof(token, 'welcome', helloNonce, claim);
}

/** Worker. @throws `RANK_SETUP_FAILED` when whoever listens does not know the token */
export function checkWelcome(payload: Uint8Array, token: string, helloNonce: Uint8Array, claim: JoinClaim): void {
  const expected = proof(token, 'welcome', helloNonce, claim);
  if (payload.length !== proofBytes || !timingSafeEqual(payload, expected))
    throw refusal('token of rank 0', "the instance's", 'another');
}

function proof(
  token: string,
  label: 'join' | 'welcome',
  helloNonce: Uint8Array,
  { rank, size, nonce }: JoinClaim,
): Uint8Array {
  return createHmac('sha256', token)
    .update(`state-handoff ranks ${rankProtocolVersion} ${label} ${rank} of ${size}\n`)
    .update(helloNonce)
    .update(nonce)
    .digest();
}

function checkedView(payload: Uint8Array, size: number, what: string): DataView {
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  if (payload.length < 8 || view.getUint32(0) !== magic) throw refusal(what, "a rank's", 'something else');
  const version = view.getUint32(4);
  if (version !== rankProtocolVersion) throw refusal('version', String(rankProtocolVersion), version);
  if (payload.length !== size) throw refusal(what, `${size} bytes`, payload.length);
  return view;
}

function refusal(path: string, expected: string, got: string | number): HandoffError {
  return new HandoffError('RANK_SETUP_FAILED', `${path}: expected ${expected}, got ${got}`, { details: { path } });
}

/** @throws `ARGUMENT_INVALID` for a token that anybody could guess */
export function checkToken(token: unknown): string {
  if (typeof token !== 'string' || token.length < 16 || token.length > 4096)
    throw argumentError(
      'options.token',
      'a secret of 16 to 4096 characters',
      typeof token === 'string' ? token.length : token,
    );
  return token;
}
