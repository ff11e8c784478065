/**
 * Ranks in processes of their own, on one machine: a Unix socket between any two, messages with their length in front.
 *
 * The sockets have names that are no files (Linux's abstract namespace), so that nothing is left behind however a process
 * ends. Whoever connects has to know the world's secret. A rank that is gone is an error where it is needed, and not
 * before: what it had sent is still read.
 */
import { createServer, connect, type Server, type Socket } from 'node:net';
import { HandoffError } from 'state-handoff';
import { badInput, requireInteger } from './bad-input.js';
import type { Peers } from './peers.js';

/** Secret, then the rank that connects. */
const secretBytes = 16;
const helloBytes = secretBytes + 4;
/** Far above any message of these models; more is no message of ours. */
const messageBytesMax = 1 << 28;
const retryMs = 10;
/** For whoever connects to say who it is. */
const helloMs = 2_000;

export interface SocketPeersOptions {
  readonly rank: number;
  readonly size: number;
  /** Of the world: the same on all its ranks, and of no other world. Up to 64 letters, digits and dashes. */
  readonly name: string;
  /** 32 hexadecimal digits, known to the world's ranks alone. */
  readonly secret: string;
  /** For all ranks to come up. Default 30 s. */
  readonly deadlineMs?: number;
}

interface Channel {
  readonly socket: Socket;
  readonly mail: Uint8Array[];
  /** What arrived of the next message. */
  rest: Buffer;
  isGone: boolean;
}

export class SocketPeers implements Peers {
  onArrival: (() => void) | null = null;
  readonly rank: number;
  readonly size: number;
  private readonly channels = new Map<number, Channel>();
  private readonly secret: Buffer;
  private server: Server | null = null;
  /** While ranks come up. */
  private onChange: () => void = () => undefined;

  private constructor(private readonly options: SocketPeersOptions) {
    this.size = requireInteger('size', options.size, 1, 1024);
    this.rank = requireInteger('rank', options.rank, 0, options.size - 1);
    if (!/^[\w-]{1,64}$/.test(options.name))
      throw badInput('name', 'up to 64 letters, digits and dashes', options.name);
    if (!/^[0-9a-f]{32}$/.test(options.secret)) throw badInput('secret', '32 hexadecimal digits', 'something else');
    this.secret = Buffer.from(options.secret, 'hex');
  }

  /** Resolves when this rank has a socket to every other. @throws (rejects) `ARGUMENT_INVALID`, `PEER_RANK_FAILED` */
  static async open(options: SocketPeersOptions): Promise<SocketPeers> {
    const peers = new SocketPeers(options);
    try {
      await peers.listen();
      for (let lower = 0; lower < peers.rank; lower++) peers.dial(lower);
      await peers.allThere(options.deadlineMs ?? 30_000);
      return peers;
    } catch (error) {
      peers.close();
      throw error;
    }
  }

  get hasMail(): boolean {
    return [...this.channels.values()].some(({ mail }) => mail.length > 0);
  }

  /** @throws `PEER_RANK_FAILED` when that rank is gone */
  send(to: number, bytes: Uint8Array): void {
    const { socket, isGone } = this.channelTo(to);
    if (isGone) throw this.lost(to);
    const head = Buffer.allocUnsafe(4);
    head.writeUInt32LE(bytes.byteLength);
    socket.cork();
    socket.write(head);
    socket.write(bytes);
    socket.uncork();
  }

  take(from: number): Uint8Array | null {
    const { mail, isGone } = this.channelTo(from);
    const next = mail.shift() ?? null;
    if (next === null && isGone) throw this.lost(from);
    return next;
  }

  /** Sends what was given to `send`, and lets go. Idempotent. */
  close(): void {
    this.onArrival = null;
    this.server?.close();
    for (const { socket } of this.channels.values()) socket.end();
  }

  private addressOf(rank: number): string {
    return `\0${this.options.name}-${rank}`;
  }

  private listen(): Promise<void> {
    const server = createServer((socket) => this.greet(socket));
    this.server = server;
    return new Promise((resolve, reject) => {
      server.once('error', reject);
      server.listen(this.addressOf(this.rank), () => resolve());
    });
  }

  /** Reads who connects; what does not say it right at once is let go. */
  private greet(socket: Socket): void {
    let hello = Buffer.alloc(0);
    socket.on('error', () => socket.destroy());
    socket.setTimeout(helloMs, () => socket.destroy());
    socket.on('data', (data) => {
      hello = Buffer.concat([hello, data]);
      if (hello.byteLength < helloBytes) return;
      socket.removeAllListeners('data').setTimeout(0);
      const rank = hello.readUInt32LE(secretBytes);
      const isExpected = rank > this.rank && rank < this.size && !this.channels.has(rank);
      if (!isExpected || !hello.subarray(0, secretBytes).equals(this.secret)) socket.destroy();
      else this.open(rank, socket, hello.subarray(helloBytes));
    });
  }

  /** Connects to a rank as soon as it listens. */
  private dial(rank: number): void {
    const socket = connect(this.addressOf(rank));
    const again = (): void => {
      if (this.server?.listening === true) setTimeout(() => this.dial(rank), retryMs);
    };
    socket.once('error', again);
    socket.once('connect', () => {
      socket.off('error', again);
      const hello = Buffer.alloc(helloBytes);
      this.secret.copy(hello);
      hello.writeUInt32LE(this.rank, secretBytes);
      socket.write(hello);
      this.open(rank, socket, Buffer.alloc(0));
    });
  }

  private open(rank: number, socket: Socket, first: Buffer): void {
    const channel: Channel = { socket, mail: [], rest: Buffer.alloc(0), isGone: false };
    this.channels.set(rank, channel);
    socket.on('data', (data) => this.receive(channel, data));
    socket.on('error', () => socket.destroy());
    socket.on('close', () => {
      channel.isGone = true;
      this.onChange();
      this.onArrival?.();
    });
    if (first.byteLength > 0) this.receive(channel, first);
    this.onChange();
  }

  private receive(channel: Channel, data: Buffer): void {
    channel.rest = channel.rest.byteLength === 0 ? data : Buffer.concat([channel.rest, data]);
    const before = channel.mail.length;
    while (channel.rest.byteLength >= 4) {
      const length = channel.rest.readUInt32LE();
      if (length > messageBytesMax) return void channel.socket.destroy();
      if (channel.rest.byteLength < 4 + length) break;
      channel.mail.push(channel.rest.subarray(4, 4 + length));
      channel.rest = channel.rest.subarray(4 + length);
    }
    if (channel.mail.length > before) this.onArrival?.();
  }

  private allThere(deadlineMs: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const missing = (): number[] =>
        Array.from({ length: this.size }, (_, rank) => rank).filter(
          (rank) => rank !== this.rank && this.channels.get(rank)?.isGone !== false,
        );
      const timer = setTimeout(() => {
        this.onChange = () => undefined;
        const message = `rank ${this.rank} waited ${deadlineMs} ms for rank ${missing().join(', ')} to come up`;
        reject(new HandoffError('PEER_RANK_FAILED', message, { phase: 'setup' }));
      }, deadlineMs);
      this.onChange = () => {
        if (missing().length > 0) return;
        clearTimeout(timer);
        this.onChange = () => undefined;
        resolve();
      };
      this.onChange();
    });
  }

  private channelTo(rank: number): Channel {
    const channel = this.channels.get(rank);
    if (channel === undefined) throw badInput('rank', `another of the ${this.size} ranks`, rank);
    return channel;
  }

  private lost(rank: number): HandoffError {
    return new HandoffError('PEER_RANK_FAILED', `rank ${rank} is gone; the ranks it computed with cannot go on`, {
      details: { rank },
    });
  }
}
