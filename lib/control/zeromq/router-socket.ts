/** The coordinator's ROUTER socket: its options, and how it gets an address. Sends and receives nothing. */
import type { Router, SocketOptions } from 'zeromq';
import { HandoffError } from '../../errors.js';
import type { Endpoint } from './address.js';
import { CurveGate, curveDomain } from './curve-gate.js';
import type { CurveServer } from './curve-peers.js';
import { frameBytesMax } from './frame-limit.js';
import { routerLiveness } from './liveness.js';
import { loadZeromq } from './load-zeromq.js';

/** Messages of one peer inside ZeroMQ; what comes on top waits in an outbox. */
const highWaterMark = 256;

/** A socket, and who guards it under CURVE. */
export interface OpenedRouter {
  readonly router: Router;
  readonly gate: CurveGate | null;
}

/** @throws `ZEROMQ_UNAVAILABLE` */
export async function openRouter(heartbeatMs: number, curve: CurveServer | undefined): Promise<OpenedRouter> {
  if (curve === undefined) return { router: plainRouter(heartbeatMs, {}), gate: null };
  // A context of its own: its authentication is asked about this coordinator's connections only.
  const context = new (loadZeromq().Context)();
  const gate = await CurveGate.open(context, curve.peers);
  const security = {
    curveServer: true,
    curveSecretKey: curve.secretKey,
    zapDomain: curveDomain,
    zapEnforceDomain: true,
  };
  return { router: plainRouter(heartbeatMs, { context, ...security }), gate };
}

function plainRouter(heartbeatMs: number, security: SocketOptions<Router>): Router {
  const { Router: RouterSocket } = loadZeromq();
  return new RouterSocket({
    ...security,
    mandatory: true,
    handover: true,
    // A send that would wait is refused at once: one slow peer never holds up the others.
    sendTimeout: 0,
    sendHighWaterMark: highWaterMark,
    receiveHighWaterMark: 1_000,
    maxMessageSize: frameBytesMax,
    linger: 1_000,
    ...routerLiveness(heartbeatMs),
  });
}

/**
 * @returns whether the wanted port was taken and another one is used
 * @throws `OPTION_INVALID` when the address cannot be bound
 */
export async function bindRouter(
  router: Router,
  endpoint: Endpoint,
  address: string,
  fallsBack: boolean,
): Promise<boolean> {
  try {
    await router.bind(address);
    return false;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EADDRINUSE' || endpoint.scheme !== 'tcp' || !fallsBack)
      throw new HandoffError('OPTION_INVALID', `options.address: ${address} cannot be bound because ${code}`, {
        cause: error,
        details: { path: 'options.address', code },
      });
    await router.bind(`tcp://${endpoint.host}:0`);
    return true;
  }
}
