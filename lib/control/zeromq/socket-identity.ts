/** What a peer's socket is given under CURVE: its keys, and a routing id that proves its name. Opens nothing. */
import { publicKeyOf } from './curve-key.js';
import type { CurvePeer } from './curve-peers.js';
import { provenRoutingId } from './proven-name.js';

/** Options of a `Dealer`. */
export interface SocketIdentity {
  readonly routingId: string;
  readonly curveServerKey?: string;
  readonly curvePublicKey?: string;
  readonly curveSecretKey?: string;
}

/**
 * @param path - the option's name, for errors
 * @throws `OPTION_INVALID`
 */
export function curveIdentity(curve: CurvePeer, path: string): SocketIdentity {
  return {
    routingId: provenRoutingId(curve, path),
    curveServerKey: curve.serverKey,
    curvePublicKey: publicKeyOf(curve.secretKey, `${path}.secretKey`),
    curveSecretKey: curve.secretKey,
  };
}
