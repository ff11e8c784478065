/** Which machine this is, so that transports within one machine refuse a peer elsewhere before they look for it. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { HandoffError } from '../../errors.js';
import type { HostGrant } from './host-grant.js';

/** A name of the running system that tells nothing else about it; null where the system does not say. */
export function thisMachine(): string | null {
  try {
    const bootId = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    return createHash('sha256').update(`state-handoff:${bootId}`).digest('hex').slice(0, 32);
  } catch {
    return null;
  }
}

type Machine = Pick<HostGrant, 'machine'>;

/** @throws `PEER_UNREACHABLE` when both ends know their machines and these differ */
export function requireThisMachine(transport: string, peer: Machine): void {
  requireOneMachine(transport, { machine: thisMachine() }, peer);
}

/** The same for any two grants. */
export function requireOneMachine(transport: string, own: Machine, peer: Machine): void {
  if (peer.machine === null || own.machine === null || peer.machine === own.machine) return;
  const why = `the peer is on another machine, which the ${transport} transport does not reach`;
  throw new HandoffError('PEER_UNREACHABLE', why);
}
