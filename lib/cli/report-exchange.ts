/**
 * How `doctor` on one machine asks `doctor` on another: one TCP connection, one line of JSON, the end. Owns nothing but
 * that; a peer that says too much or nothing is hung up on.
 */
import { createServer, connect, type AddressInfo, type Server } from 'node:net';
import { argumentError, HandoffError } from '../errors.js';
import type { JsonValue } from '../json.js';

const reportBytesMax = 256 * 1024;
const patienceMs = 10_000;

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** `PORT`, `HOST:PORT` or `[IPv6]:PORT`. @throws `ARGUMENT_INVALID` */
export function parseAddress(text: string, flag: string): Address {
  const match = /^(?:(?:\[([0-9a-f:.]+)\]|([^:\s[\]]+)):)?(\d{1,5})$/i.exec(text);
  const port = Number(match?.[3] ?? -1);
  if (match === null || port > 65_535) throw argumentError(flag, 'PORT or HOST:PORT', text);
  return { host: match[1] ?? match[2] ?? '127.0.0.1', port };
}

/** Tells `report` to everybody who connects, until the server is closed. */
export function serveReport(report: JsonValue, { host, port }: Address): Promise<Server> {
  const line = `${JSON.stringify(report)}\n`;
  const server = createServer((socket) => {
    socket.setTimeout(patienceMs, () => socket.destroy());
    socket.on('error', () => socket.destroy());
    socket.end(line);
  });
  return new Promise((resolve, reject) => {
    server.once('error', (cause) =>
      reject(
        new HandoffError('NATIVE_SYSTEM', `nothing listens on ${host}:${port} because ${cause.message}`, { cause }),
      ),
    );
    server.listen(port, host, () => resolve(server));
  });
}

/** The port that a server got. */
export function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

/** @throws (rejects) `PEER_UNREACHABLE`; `PEER_REFUSED` for what is no report */
export function fetchReport({ host, port }: Address): Promise<JsonValue> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const socket = connect({ host, port });
    const fail = (code: 'PEER_UNREACHABLE' | 'PEER_REFUSED', why: string): void => {
      socket.destroy();
      reject(
        new HandoffError(
          code,
          `${host}:${port} told no report because ${why}; run \`state-handoff doctor --serve HOST:PORT\` there`,
        ),
      );
    };
    socket.setTimeout(patienceMs, () => fail('PEER_UNREACHABLE', `it said nothing for ${patienceMs} ms`));
    socket.on('error', ({ message }) => fail('PEER_UNREACHABLE', message));
    socket.on('data', (chunk) => {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes > reportBytesMax) fail('PEER_REFUSED', 'it said too much');
    });
    socket.on('end', () => {
      try {
        resolve(JSON.parse(Buffer.concat(chunks).toString('utf8')) as JsonValue);
      } catch {
        fail('PEER_REFUSED', 'what it said is no JSON');
      }
    });
  });
}
