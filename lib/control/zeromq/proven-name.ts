/**
 * Names that prove themselves. The binding of `zeromq` does not tell which key a message came with, and a ROUTER believes
 * whatever routing id a connection claims. So under CURVE a routing id is `NAME.NONCE.PROOF`: the proof is an HMAC under a
 * key that only the coordinator and the holder of NAME's secret key can compute. It travels encrypted, inside the handshake,
 * and is nowhere logged; so nobody can claim a name that is not theirs, nor the routing id of a living connection.
 */
import { createHmac, hkdfSync, randomBytes, timingSafeEqual } from 'node:crypto';
import type { PeerId } from '../coordinator/interface.js';
import { publicKeyOf, sharedSecret } from './curve-key.js';
import {
  checkAllowList,
  checkPeerName,
  type AllowList,
  type CurvePeer,
  type CurveRole,
  type CurveServer,
} from './curve-peers.js';

const info = 'state-handoff proven name 1';
const pattern = /^([\dA-Za-z][\w-]{0,63})\.([\w-]{22})\.([\w-]{43})$/;

/** Who a routing id proves to be. */
export interface ProvenName {
  readonly name: string;
  readonly role: CurveRole;
  /** One connection's; not secret. */
  readonly nonce: string;
}

/** The routing id of a new connection. @throws `OPTION_INVALID` */
export function provenRoutingId({ name, secretKey, serverKey }: CurvePeer, path: string): string {
  checkPeerName(name, `${path}.name`);
  const publicKey = publicKeyOf(secretKey, `${path}.secretKey`);
  const shared = sharedSecret(secretKey, serverKey, `${path}.serverKey`);
  const nonce = randomBytes(16).toString('base64url');
  return `${name}.${nonce}.${proofOf(proofKey(shared, serverKey, publicKey), name, nonce)}`;
}

/** The coordinator's side: knows every allowed name's key. */
export class NameProofs {
  private readonly keys = new Map<string, Buffer>();
  private readonly publicKey: string;
  private readonly peers: AllowList;

  /** @throws `OPTION_INVALID` for keys that are none, and for a list that `checkAllowList` refuses */
  constructor(private readonly server: CurveServer) {
    this.publicKey = publicKeyOf(server.secretKey, 'options.curve.secretKey');
    // Also a list that came from no file: a role that is none must give no rights.
    this.peers = checkAllowList(server.peers, 'options.curve.peers');
  }

  /** Null for an id that proves nothing. */
  check(routingId: string): ProvenName | null {
    const [, name, nonce, proof] = pattern.exec(routingId) ?? [];
    if (name === undefined || nonce === undefined || proof === undefined || !Object.hasOwn(this.peers, name))
      return null;
    const expected = proofOf(this.keyOf(name), name, nonce);
    if (!timingSafeEqual(Buffer.from(expected), Buffer.from(proof))) return null;
    return { name, role: this.peers[name]!.role, nonce };
  }

  /** The routing id that proves this name with this nonce; null for a name that is not allowed. */
  routingId(name: string, nonce: string): string | null {
    if (!Object.hasOwn(this.peers, name)) return null;
    return `${name}.${nonce}.${proofOf(this.keyOf(name), name, nonce)}`;
  }

  private keyOf(name: string): Buffer {
    let key = this.keys.get(name);
    if (key === undefined) {
      const peerKey = this.peers[name]!.key;
      const shared = sharedSecret(this.server.secretKey, peerKey, `options.curve.peers.${name}.key`);
      this.keys.set(name, (key = proofKey(shared, this.publicKey, peerKey)));
    }
    return key;
  }
}

/** The name that an id claims, for the log: without nonce and proof. */
export function claimedName(routingId: PeerId): string {
  const name = routingId.split('.', 1)[0]!.slice(0, 64);
  return /^[\x20-\x7e]*$/.test(name) ? name : Buffer.from(name, 'latin1').toString('hex');
}

function proofKey(shared: Buffer, serverKey: string, peerKey: string): Buffer {
  return Buffer.from(hkdfSync('sha256', shared, `${serverKey}${peerKey}`, info, 32));
}

function proofOf(key: Buffer, name: string, nonce: string): string {
  return createHmac('sha256', key).update(`${name}.${nonce}`).digest('base64url');
}
