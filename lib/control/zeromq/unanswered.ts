/**
 * The error of who has waited for a coordinator in vain. With keys a coordinator does not answer whom it does not let in,
 * so the message names what else than its absence may be the cause.
 */
import { HandoffError } from '../../errors.js';
import type { CurvePeer } from './curve-peers.js';

/** Who waited, and where. */
export interface Unanswered {
  /** Such as `no coordinator answered`. */
  readonly what: string;
  readonly address: string;
  readonly connectMs: number;
  readonly curve: CurvePeer | undefined;
  readonly isKeyRefused: boolean;
  /** What the name is to stand for on its list. */
  readonly role: 'engine' | 'client';
}

export function unanswered({ what, address, connectMs, curve, isKeyRefused, role }: Unanswered): HandoffError {
  let hint = 'one that encrypts answers only with options.curve';
  if (isKeyRefused) hint = 'this key was refused';
  else if (curve !== undefined)
    hint = `options.curve.serverKey must be its public key, and ${curve.name} on its list as ${role}; its log says whom it refuses`;
  return new HandoffError('PEER_UNREACHABLE', `${what} at ${address} within ${connectMs} ms; ${hint}`, {
    details: { address },
  });
}
