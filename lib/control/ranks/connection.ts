/**
 * One stream between rank 0 and a worker, cut into frames.
 *
 * Ends at the first thing that is wrong with it: a frame too long, a handler that refuses what came, an error of the
 * socket, or an end that takes no more bytes. Frames that come before somebody listens wait.
 */
import type { Socket } from 'node:net';
import { argumentError } from '../../errors.js';
import { frameBytes, frameKind, FrameReader } from './framing.js';

/** What a connection tells its owner. */
export interface ConnectionListener {
  /** A frame; the payload is only good during the call. What it throws ends the connection with that error. */
  readonly onFrame: (kind: number, payload: Uint8Array) => void;
  /** Once, when nothing comes any more; the reason in words. */
  readonly onEnd: (why: string) => void;
}

/** How long an idle peer may be gone before the system looks for it, in milliseconds. */
const keepAliveMs = 10_000;
/** How long a closed connection may take to deliver what was sent, in milliseconds. */
const lastWordsMs = 5_000;

export class RankConnection {
  private readonly reader: FrameReader;
  private listener: ConnectionListener | null = null;
  private early: [kind: number, payload: Uint8Array][] = [];
  private ended: string | null = null;
  /** The beginning of a long message. */
  private parts: Uint8Array[] = [];
  private partBytes = 0;
  private messageMax: number;

  /**
   * @param payloadMax - bytes of one frame's payload
   * @param backlogMax - bytes that may wait for the other end to take them
   */
  constructor(
    private readonly socket: Socket,
    payloadMax: number,
    private readonly backlogMax: number,
  ) {
    this.reader = new FrameReader(payloadMax);
    this.messageMax = payloadMax;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, keepAliveMs);
    socket.on('data', (chunk: Buffer) => this.take(chunk));
    socket.on('error', (error) => this.finish(error.message));
    socket.on('end', () => this.finish('its connection ended'));
    socket.on('close', () => this.finish('its connection ended'));
  }

  /** Whether frames can still be sent. */
  get isOpen(): boolean {
    return this.ended === null;
  }

  /** The other end is known: it may send longer frames, and messages of several up to the backlog's bound. */
  trust(payloadMax: number): void {
    this.reader.payloadMax = payloadMax;
    this.messageMax = this.backlogMax;
  }

  /** Hands over what came already, and what comes from now on. A later listener replaces an earlier one. */
  listen(listener: ConnectionListener): void {
    this.listener = listener;
    const why = this.ended;
    try {
      for (const [kind, payload] of this.early.splice(0)) listener.onFrame(kind, payload);
    } catch (error) {
      this.refuse(error);
    }
    if (why !== null) listener.onEnd(why);
  }

  /** Keeps what comes for the next listener. */
  pause(): void {
    this.listener = null;
  }

  /** Sends a message, in several frames when it is longer than one may be; after the end nothing happens. */
  send(kind: number, payload: Uint8Array): void {
    if (this.ended !== null) return;
    const { payloadMax } = this.reader;
    let from = 0;
    for (; payload.length - from > payloadMax; from += payloadMax)
      this.socket.write(frameBytes(frameKind.part, payload.subarray(from, from + payloadMax)));
    this.socket.write(frameBytes(kind, payload.subarray(from)));
    if (this.socket.writableLength > this.backlogMax)
      this.finish(`it does not take what it is sent, and more than ${this.backlogMax} bytes wait for it`);
  }

  /** Ends the stream after what was sent. */
  close(): void {
    this.listener = null;
    this.ended ??= 'it was closed here';
    this.socket.end(() => this.socket.destroy());
    // Whoever never reads the last words does not keep this process.
    setTimeout(() => this.socket.destroy(), lastWordsMs).unref();
  }

  /** Ends the stream at once, without a word to the listener. */
  destroy(): void {
    this.listener = null;
    this.ended ??= 'it was closed here';
    this.socket.destroy();
  }

  private take(chunk: Buffer): void {
    if (this.ended !== null) return;
    try {
      this.reader.push(chunk, (kind, payload) => this.assemble(kind, payload));
    } catch (error) {
      this.refuse(error);
    }
  }

  private refuse(error: unknown): void {
    this.finish(`what it sent is refused: ${(error as Error).message}`);
  }

  private assemble(kind: number, payload: Uint8Array): void {
    if (kind !== frameKind.part && this.parts.length === 0) return this.deliver(kind, payload);
    this.partBytes += payload.length;
    if (this.partBytes > this.messageMax)
      throw argumentError('message', `at most ${this.messageMax} bytes`, this.partBytes);
    this.parts.push(Uint8Array.from(payload));
    if (kind === frameKind.part) return;
    const whole = Buffer.concat(this.parts, this.partBytes);
    this.parts = [];
    this.partBytes = 0;
    this.deliver(kind, whole);
  }

  private deliver(kind: number, payload: Uint8Array): void {
    if (this.ended !== null) return;
    if (this.listener === null) this.early.push([kind, Uint8Array.from(payload)]);
    else this.listener.onFrame(kind, payload);
  }

  private finish(why: string): void {
    if (this.ended !== null) return;
    this.ended = why;
    this.socket.destroy();
    this.listener?.onEnd(why);
  }
}
