/**
 * CURVE keys as ZeroMQ writes them: 32 bytes as 40 characters of Z85. A pair is an X25519 pair, so two ends also share a
 * secret that nobody else has. Refuses everything that is no key; never puts one into an error.
 */
import { createPrivateKey, createPublicKey, diffieHellman, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { HandoffError } from '../../errors.js';

const alphabet = '0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#';
const keyBytes = 32;
/** What stands before the raw key in PKCS #8 and in SubjectPublicKeyInfo (RFC 8410). */
const secretHead = Buffer.from('302e020100300506032b656e04220420', 'hex');
const publicHead = Buffer.from('302a300506032b656e032100', 'hex');

/** One end's keys. */
export interface CurveKeyPair {
  readonly publicKey: string;
  readonly secretKey: string;
}

/** A new pair. */
export function makeKeyPair(): CurveKeyPair {
  const { privateKey } = generateKeyPairSync('x25519');
  const secret = privateKey.export({ format: 'der', type: 'pkcs8' }).subarray(-keyBytes);
  return { publicKey: encodeKey(rawPublic(privateKey)), secretKey: encodeKey(secret) };
}

/** @throws `OPTION_INVALID` */
export function publicKeyOf(secretKey: string, path: string): string {
  return encodeKey(rawPublic(secretObject(secretKey, path)));
}

/** What only the holders of the two secrets can compute. @throws `OPTION_INVALID` */
export function sharedSecret(secretKey: string, otherPublicKey: string, path: string): Buffer {
  const privateKey = secretObject(secretKey, path);
  const spki = Buffer.concat([publicHead, decodeKey(otherPublicKey, path)]);
  try {
    return diffieHellman({ privateKey, publicKey: createPublicKey({ key: spki, format: 'der', type: 'spki' }) });
  } catch {
    // A point of small order: its secret would be known to everybody.
    throw notAKey(path);
  }
}

/** @throws `OPTION_INVALID` */
export function decodeKey(text: string, path: string): Buffer {
  if (typeof text !== 'string' || text.length !== (keyBytes / 4) * 5) throw notAKey(path);
  const bytes = Buffer.alloc(keyBytes);
  for (let word = 0; word < keyBytes / 4; word++) {
    let value = 0;
    for (const letter of text.slice(word * 5, word * 5 + 5)) {
      const digit = alphabet.indexOf(letter);
      if (digit < 0) throw notAKey(path);
      value = value * 85 + digit;
    }
    if (value > 0xffff_ffff) throw notAKey(path);
    bytes.writeUInt32BE(value, word * 4);
  }
  return bytes;
}

export function encodeKey(bytes: Uint8Array): string {
  const view = Buffer.from(bytes);
  let text = '';
  for (let at = 0; at < view.length; at += 4) {
    let value = view.readUInt32BE(at);
    let word = '';
    for (let digit = 0; digit < 5; digit++) {
      word = alphabet.charAt(value % 85) + word;
      value = Math.floor(value / 85);
    }
    text += word;
  }
  return text;
}

function secretObject(secretKey: string, path: string): KeyObject {
  const pkcs8 = Buffer.concat([secretHead, decodeKey(secretKey, path)]);
  return createPrivateKey({ key: pkcs8, format: 'der', type: 'pkcs8' });
}

function rawPublic(key: KeyObject): Buffer {
  return createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(-keyBytes);
}

/** Says nothing of what was given: it may have been a secret. */
function notAKey(path: string): HandoffError {
  return new HandoffError(
    'OPTION_INVALID',
    `${path}: expected a CURVE key (40 characters of Z85), got something else`,
    {
      details: { path },
    },
  );
}
