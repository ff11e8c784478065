/**
 * Where a coordinator may listen. Plain TCP is for this machine only, unless the operator says `insecure`: whoever
 * reaches the port can submit, abort and shut down. With CURVE any address will do.
 */
import { argumentError } from '../../errors.js';

/** A parsed endpoint; `port` is null for `ipc` and `inproc`. */
export interface Endpoint {
  readonly scheme: 'tcp' | 'ipc' | 'inproc';
  readonly host: string;
  readonly port: number | null;
}

const pattern = /^(?:(tcp):\/\/(\[[\da-fA-F:.]+\]|[\w.*-]+):(\d{1,5}|\*)|(ipc|inproc):\/\/(.+))$/;

/**
 * @param path - the option's name, for errors
 * @throws `OPTION_INVALID`
 */
export function parseEndpoint(address: string, path: string): Endpoint {
  const match = typeof address === 'string' ? pattern.exec(address) : null;
  const expected = 'tcp://HOST:PORT, ipc://PATH or inproc://NAME';
  if (match === null) throw argumentError(path, expected, address, 'OPTION_INVALID');
  const [, tcp, host, port, other, rest] = match;
  if (tcp === undefined) return { scheme: other as 'ipc' | 'inproc', host: rest!, port: null };
  const number = port === '*' ? 0 : Number(port);
  if (number > 0xffff) throw argumentError(path, expected, address, 'OPTION_INVALID');
  return { scheme: 'tcp', host: host!, port: number };
}

/**
 * Where a peer connects to: one place, with a port.
 *
 * @throws `OPTION_INVALID`
 */
export function parsePeerEndpoint(address: string, path: string): Endpoint {
  const endpoint = parseEndpoint(address, path);
  if (endpoint.host === '*' || endpoint.port === 0)
    throw argumentError(path, 'the host and the port that the coordinator got', address, 'OPTION_INVALID');
  return endpoint;
}

/** @throws `OPTION_INVALID` for plain TCP beyond this machine without `insecure` */
export function checkReach(endpoint: Endpoint, isEncrypted: boolean, isInsecure: boolean, path: string): void {
  if (endpoint.scheme !== 'tcp' || isEncrypted || isInsecure || isLoopback(endpoint.host)) return;
  throw argumentError(
    path,
    'a loopback address without CURVE keys and without `insecure`',
    endpoint.host,
    'OPTION_INVALID',
  );
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '[::1]' || /^127(?:\.\d{1,3}){3}$/.test(host);
}
