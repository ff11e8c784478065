/**
 * How the ranks of one instance find each other: rank 0 listens, workers connect until they are let in, and nobody goes
 * on before all are there.
 *
 * Refuses strangers, wrong tokens, other versions and sizes, and a rank that is there already. Nothing waits longer than
 * the set-up deadline, and the error then names who is missing.
 */
import { chmodSync, unlinkSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { argumentError, HandoffError } from '../../errors.js';
import { RankConnection } from './connection.js';
import { frameKind } from './framing.js';
import {
  checkWelcome,
  decodeHello,
  decodeJoin,
  encodeHello,
  encodeJoin,
  encodeWelcome,
  handshakeFrameMax,
  newNonce,
  type JoinClaim,
} from './handshake.js';

/** Where rank 0 listens: a Unix socket's path, or a TCP port (0: any) of a host (default 127.0.0.1). */
export type RankAddress = { readonly path: string } | { readonly host?: string; readonly port: number };

export interface Rendezvous {
  readonly rank: number;
  readonly size: number;
  readonly address: RankAddress;
  readonly token: string;
  readonly setupTimeoutMs: number;
  readonly frameBytesMax: number;
  readonly backlogBytesMax: number;
  readonly onListening: (address: RankAddress) => void;
}

/** How long a newcomer may take to say who it is, in milliseconds. */
const introductionMs = 10_000;
/** How long a worker waits between two attempts, in milliseconds. */
const retryMs = 50;
/** Connections that have not said who they are. */
const newcomersMax = 64;

/**
 * Rank 0. The connections of ranks 1 to `size - 1`, in order.
 *
 * @throws (rejects) `RANK_SETUP_FAILED` when it cannot listen, or when ranks are missing at the deadline
 */
export async function gatherWorkers(options: Rendezvous): Promise<readonly RankConnection[]> {
  const { size, setupTimeoutMs, onListening } = options;
  const server = createServer();
  const hall = new Hall(options);
  server.on('error', () => undefined); // one that matters fails `listen`
  server.on('connection', (socket) => hall.welcome(socket));
  try {
    onListening(await listen(server, options.address));
    await withDeadline(hall.full, setupTimeoutMs, () => {
      const missing = hall.missing.join(', ');
      const refused = hall.lastRefusal === null ? '' : `; the last newcomer was refused: ${hall.lastRefusal}`;
      return setupError(`ranks ${missing} of ${size} did not join within ${setupTimeoutMs} ms${refused}`);
    });
  } catch (error) {
    hall.dismiss();
    throw error;
  } finally {
    server.close();
    hall.close();
  }
  return hall.workers;
}

/**
 * Worker. The connection to rank 0, once all ranks are there.
 *
 * @throws (rejects) `RANK_SETUP_FAILED` when rank 0 refuses it, is not itself, or all is not ready at the deadline
 */
export async function joinLeader(options: Rendezvous): Promise<RankConnection> {
  const { rank, size, setupTimeoutMs } = options;
  const attempt: Attempt = { over: false, current: null, why: 'nobody listens' };
  const joined = (async () => {
    while (!attempt.over) {
      const connection = await tryJoin(options, attempt);
      if (connection !== null) return connection;
      await new Promise((resolve) => setTimeout(resolve, retryMs));
    }
    throw setupError('the attempt is over');
  })();
  joined.catch(() => undefined);
  try {
    return await withDeadline(joined, setupTimeoutMs, () =>
      setupError(
        `rank ${rank} of ${size} could not join at ${addressText(options.address)} within ${setupTimeoutMs} ms: ${attempt.why}`,
      ),
    );
  } catch (error) {
    attempt.over = true;
    attempt.current?.destroy();
    throw error;
  }
}

interface Attempt {
  over: boolean;
  current: RankConnection | null;
  why: string;
}

/** Null when it is worth another try; rejects when it is not. */
function tryJoin(options: Rendezvous, attempt: Attempt): Promise<RankConnection | null> {
  const { rank, size, address, token, backlogBytesMax, frameBytesMax } = options;
  const socket = 'path' in address ? connect(address.path) : connect(address.port, address.host ?? loopback);
  const connection = new RankConnection(socket, handshakeFrameMax, backlogBytesMax);
  attempt.current = connection;
  const claim: JoinClaim = { rank, size, nonce: newNonce() };
  let helloNonce: Uint8Array | null = null;
  let isWelcome = false;
  return new Promise((resolve, reject) => {
    const fail = (error: Error): void => {
      connection.destroy();
      reject(error);
    };
    connection.listen({
      onFrame: (kind, payload) => {
        try {
          if (kind === frameKind.hello && helloNonce === null) {
            helloNonce = decodeHello(payload);
            connection.send(frameKind.join, encodeJoin(token, helloNonce, claim));
            attempt.why = 'rank 0 does not answer';
          } else if (kind === frameKind.welcome && helloNonce !== null && !isWelcome) {
            checkWelcome(payload, token, helloNonce, claim);
            isWelcome = true;
            attempt.why = 'rank 0 waits for other ranks';
          } else if (kind === frameKind.ready && isWelcome) {
            connection.trust(frameBytesMax);
            connection.pause();
            resolve(connection);
          } else if (kind === frameKind.refuse) {
            fail(setupError(`rank 0 refused rank ${rank}: ${new TextDecoder().decode(payload.subarray(0, 256))}`));
          } else {
            fail(setupError(`what listens at ${addressText(address)} is no rank 0: it sent frame ${kind} out of turn`));
          }
        } catch (error) {
          fail(error as Error);
        }
      },
      onEnd: (why) => {
        attempt.why = why;
        resolve(null);
      },
    });
  });
}

/** Rank 0's side of all that connects before the group is complete. */
class Hall {
  readonly full: Promise<void>;
  lastRefusal: string | null = null;
  private readonly joined: (RankConnection | undefined)[];
  private readonly newcomers = new Set<RankConnection>();
  private readonly timers = new Set<NodeJS.Timeout>();
  private complete: () => void = () => undefined;

  constructor(private readonly options: Rendezvous) {
    this.joined = new Array<RankConnection | undefined>(options.size);
    this.full = new Promise((resolve) => (this.complete = resolve));
  }

  get workers(): readonly RankConnection[] {
    return this.joined.slice(1) as RankConnection[];
  }

  get missing(): readonly number[] {
    return Array.from({ length: this.options.size - 1 }, (_, index) => index + 1).filter(
      (rank) => this.joined[rank] === undefined,
    );
  }

  welcome(socket: Socket): void {
    if (this.newcomers.size >= newcomersMax) {
      socket.destroy();
      return;
    }
    const { token, size, backlogBytesMax } = this.options;
    const connection = new RankConnection(socket, handshakeFrameMax, backlogBytesMax);
    const helloNonce = newNonce();
    this.newcomers.add(connection);
    const timer = setTimeout(() => this.forget(connection), introductionMs);
    this.timers.add(timer);
    connection.listen({
      onFrame: (kind, payload) => {
        clearTimeout(timer);
        try {
          if (kind !== frameKind.join) throw setupError(`frame ${kind} came before a rank said who it is`);
          const claim = decodeJoin(payload, token, helloNonce, size);
          if (this.joined[claim.rank] !== undefined) throw setupError(`rank ${claim.rank} has joined already`);
          connection.send(frameKind.welcome, encodeWelcome(token, helloNonce, claim));
          this.join(connection, claim.rank);
        } catch (error) {
          this.refuse(connection, (error as Error).message);
        }
      },
      onEnd: () => void this.newcomers.delete(connection),
    });
    connection.send(frameKind.hello, encodeHello(helloNonce));
  }

  /** No more introductions. */
  close(): void {
    for (const timer of this.timers) clearTimeout(timer);
    for (const connection of this.newcomers) connection.destroy();
    this.newcomers.clear();
  }

  /** The group will not be. */
  dismiss(): void {
    for (const connection of this.joined) connection?.destroy();
  }

  private join(connection: RankConnection, rank: number): void {
    this.newcomers.delete(connection);
    this.joined[rank] = connection;
    connection.listen({
      onFrame: (kind) => {
        throw setupError(`frame ${kind} came before all ranks had joined`);
      },
      onEnd: () => void (this.joined[rank] = undefined),
    });
    if (this.missing.length > 0) return;
    for (const worker of this.workers) {
      worker.trust(this.options.frameBytesMax);
      worker.pause();
      worker.send(frameKind.ready, new Uint8Array(0));
    }
    this.complete();
  }

  private refuse(connection: RankConnection, why: string): void {
    this.lastRefusal = why;
    this.newcomers.delete(connection);
    connection.send(frameKind.refuse, new TextEncoder().encode(why));
    connection.close();
  }

  private forget(connection: RankConnection): void {
    this.newcomers.delete(connection);
    connection.destroy();
  }
}

const loopback = '127.0.0.1';

async function listen(server: Server, address: RankAddress): Promise<RankAddress> {
  try {
    if (!('path' in address)) {
      await listening(server, () => server.listen(address.port, address.host ?? loopback));
      const { address: host, port } = server.address() as { address: string; port: number };
      return { host, port };
    }
    const { path } = address;
    try {
      await listening(server, () => server.listen(path));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE' || (await answers(path))) throw error;
      // What a killed process left behind.
      unlinkSync(path);
      await listening(server, () => server.listen(path));
    }
    chmodSync(path, 0o600);
    return { path };
  } catch (cause) {
    throw new HandoffError(
      'RANK_SETUP_FAILED',
      `rank 0 cannot listen at ${addressText(address)}: ${(cause as Error).message}`,
      { cause },
    );
  }
}

function listening(server: Server, start: () => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const failed = (error: Error): void => reject(error);
    server.once('error', failed);
    server.once('listening', () => {
      server.off('error', failed);
      resolve();
    });
    start();
  });
}

/** Whether somebody listens on that path. */
function answers(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = connect(path);
    probe.once('connect', () => {
      probe.destroy();
      resolve(true);
    });
    probe.once('error', () => resolve(false));
  });
}

function withDeadline<T>(work: Promise<T>, ms: number, late: () => HandoffError): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(late()), ms);
    work.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

function setupError(message: string): HandoffError {
  return new HandoffError('RANK_SETUP_FAILED', message);
}

export function addressText(address: RankAddress): string {
  return 'path' in address ? address.path : `${address.host ?? loopback}:${address.port}`;
}

/** @throws `ARGUMENT_INVALID` */
export function checkAddress(address: RankAddress): RankAddress {
  const { path, host, port } = (address ?? {}) as { path?: unknown; host?: unknown; port?: unknown };
  if (typeof path === 'string' && path.length > 0 && path.length < 108) return { path };
  if (path !== undefined) throw argumentError('options.address.path', 'a path of 1 to 107 characters', path);
  if (!Number.isInteger(port) || (port as number) < 0 || (port as number) > 65_535)
    throw argumentError('options.address.port', 'a port, 0 to 65535, or a path', port);
  if (host !== undefined && (typeof host !== 'string' || host.length === 0))
    throw argumentError('options.address.host', 'a host', host);
  return { port: port as number, ...(host === undefined ? {} : { host }) };
}
