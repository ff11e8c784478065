/**
 * An engine's connection to a coordinator: the socket, the registration, and coming back. Each connection is a socket of its
 * own with one registration: what was said before it, in either direction, is dropped, because the registration itself says
 * what the engine holds. What is received waits until it is taken. Knows no request.
 */
import { createHash } from 'node:crypto';
import type { Dealer } from 'zeromq';
import { argumentError, HandoffError, isHandoffError } from '../../errors.js';
import { decodeMessage, encodeMessage, type WireProfile } from '../protocol/codec.js';
import type { RegisterRole, ToCoordinator, ToEngine } from '../protocol/messages.js';
import { toldReason } from '../protocol/told-reason.js';
import { Float64, type Wire, type WireMap } from '../protocol/wire-value.js';
import { checkPeerName, type CurvePeer } from './curve-peers.js';
import { curveIdentity, type SocketIdentity } from './socket-identity.js';
import { watchDisconnects } from './disconnects.js';
import { checkFrameSizes, frameBytesMax } from './frame-limit.js';
import { dealerLiveness } from './liveness.js';
import { loadZeromq } from './load-zeromq.js';
import { unanswered } from './unanswered.js';

/** What a connection needs from its engine. */
export interface EngineConnectionOptions {
  readonly address: string;
  readonly profile: WireProfile;
  /** Absent: plain. Its name then stands for the instance. */
  readonly curve: CurvePeer | undefined;
  /** Absent: made of the instance's name, or the name that its keys prove. */
  readonly identity: string | undefined;
  /** The instance's name; its connection has the same identity after a restart. */
  readonly instance: string;
  /** Said first on every connection, made anew for each. */
  readonly register: () => RegisterRole;
  /** How the engine is, told every `statusMs` milliseconds while it is registered; null: never. */
  readonly status: () => Readonly<Record<string, number>>;
  readonly statusMs: number | null;
  /** A message waits. */
  readonly onMessage: () => void;
  /** The coordinator rejected a registration; the connection is closed. */
  readonly onRejected: (error: HandoffError) => void;
  /** The connection was lost; requests of before are no longer the coordinator's. */
  readonly onLost: () => void;
}

const inboxMax = 4_096;
const againMs = 50;

export class EngineConnection {
  private readonly identity: SocketIdentity;
  private socket: Dealer | null = null;
  private inbox: ToEngine[] = [];
  private hasRoom: (() => void) | null = null;
  private acknowledged = false;
  private sending: Promise<void> = Promise.resolve();
  private timer: NodeJS.Timeout | null = null;
  private reportTimer: NodeJS.Timeout | null = null;
  private isClosed = false;
  private refusedKey = false;
  private malformedCount = 0;
  private settle: { resolve: () => void; reject: (error: HandoffError) => void } | null = null;

  /** @throws `OPTION_INVALID` for keys that are none, and for an identity that is none or another than they prove */
  constructor(private readonly options: EngineConnectionOptions) {
    const { instance, identity, curve } = options;
    if (identity !== undefined) checkPeerName(identity, 'options.identity');
    if (curve !== undefined && identity !== undefined && identity !== curve.name)
      throw argumentError('options.identity', `that of options.curve, ${curve.name}`, identity, 'OPTION_INVALID');
    const name = createHash('sha256').update(instance).digest('hex').slice(0, 40);
    this.identity =
      curve === undefined ? { routingId: identity ?? `engine-${name}` } : curveIdentity(curve, 'options.curve');
  }

  get isRegistered(): boolean {
    return this.acknowledged;
  }

  /** Messages of the coordinator that were none; each was dropped. */
  get malformed(): number {
    return this.malformedCount;
  }

  /** @throws (rejects) `PEER_UNREACHABLE`, `INCOMPATIBLE` with the coordinator's reason, `ZEROMQ_UNAVAILABLE` */
  async open(connectMs: number): Promise<void> {
    const registered = new Promise<void>((resolve, reject) => {
      this.settle = { resolve, reject };
    });
    const { address } = this.options;
    const timer = setTimeout(() => {
      const { curve } = this.options;
      const what = 'no coordinator accepted this engine';
      const isKeyRefused = this.refusedKey;
      this.settle?.reject(unanswered({ what, address, connectMs, curve, isKeyRefused, role: 'engine' }));
    }, connectMs);
    try {
      this.connect();
      await registered;
    } catch (error) {
      await this.close();
      throw error;
    } finally {
      clearTimeout(timer);
      this.settle = null;
    }
  }

  /** Messages go out one after another; without a connection they are dropped. @throws `ARGUMENT_INVALID` */
  say(message: ToCoordinator): void {
    const { socket } = this;
    // An engine's own errors say what they like.
    const said = message.header === 'REQUEST_ERROR' ? { ...message, reason: toldReason(message.reason) } : message;
    const frames = encodeMessage(this.options.profile, 'coordinator', said) as Uint8Array[];
    checkFrameSizes(frames, message.header);
    if (socket === null) return;
    this.sending = this.sending
      .then(() => (socket === this.socket ? socket.send(frames) : undefined))
      .catch(() => this.lose(socket));
  }

  /** The next message, in the order in which they came; null when none waits. */
  take(): ToEngine | null {
    const message = this.inbox.shift() ?? null;
    if (this.inbox.length < inboxMax) this.hasRoom?.();
    return message;
  }

  /** Leaves, as far as the coordinator can be told. */
  async close(): Promise<void> {
    if (this.isClosed) return;
    this.isClosed = true;
    if (this.timer !== null) clearTimeout(this.timer);
    if (this.acknowledged) {
      this.say({ header: 'DISCONNECT' });
      await this.sending;
    }
    this.drop();
  }

  private connect(): void {
    const { Dealer: DealerSocket } = loadZeromq();
    const socket = new DealerSocket({
      ...this.identity,
      linger: 1_000,
      sendHighWaterMark: 0,
      receiveHighWaterMark: 1_000,
      // A prompt and a handoff may come in one frame.
      maxMessageSize: 2 * frameBytesMax,
      ...dealerLiveness,
    });
    this.socket = socket;
    const refused = (): void => {
      this.refusedKey = true;
    };
    void watchDisconnects(socket.events, () => this.lose(socket), refused);
    void this.serve(socket);
    socket.connect(this.options.address);
    this.say(this.options.register());
  }

  private async serve(socket: Dealer): Promise<void> {
    while (socket === this.socket) {
      try {
        if (this.inbox.length >= inboxMax) {
          await new Promise<void>((resolve) => {
            this.hasRoom = resolve;
          });
          continue;
        }
        const frames = await socket.receive();
        if (socket === this.socket) this.received(decodeMessage(this.options.profile, 'engine', frames));
      } catch (error) {
        if (isHandoffError(error)) this.malformedCount++;
        else this.lose(socket);
      }
    }
  }

  private received(message: ToEngine): void {
    if (message.header === 'REGISTER_ROLE_ACK') {
      this.acknowledged = true;
      this.settle?.resolve();
      this.report();
    } else if (message.header === 'REGISTRATION_ERROR') {
      const details = { reason: message.reason };
      const error = new HandoffError('INCOMPATIBLE', `the coordinator refused this engine: ${message.reason}`, {
        details,
      });
      if (this.settle !== null) this.settle.reject(error);
      else this.options.onRejected(error);
      this.acknowledged = false;
      void this.close();
    } else if (this.acknowledged) {
      // What comes before it was meant for the registration that this one replaces.
      this.inbox.push(message);
      this.options.onMessage();
    }
  }

  /** Tells how the engine is, now and every interval: a process that is stopped falls silent by it. */
  private report(): void {
    const { status, statusMs } = this.options;
    if (this.reportTimer !== null) clearTimeout(this.reportTimer);
    this.reportTimer = null;
    if (statusMs === null || !this.acknowledged || this.isClosed) return;
    this.say({ header: 'ENGINE_STATUS', status: statusMap(status(), statusMs) });
    this.reportTimer = setTimeout(() => this.report(), statusMs);
  }

  private lose(socket: Dealer): void {
    if (socket !== this.socket || this.isClosed) return;
    this.drop();
    this.timer = setTimeout(() => this.comeBack(), againMs);
    this.options.onLost();
  }

  private comeBack(): void {
    try {
      this.connect();
    } catch (error) {
      // The engine itself is closed, for example: it has nothing to register any more.
      void this.close();
      if (!isHandoffError(error)) throw error;
      this.options.onRejected(error);
    }
  }

  private drop(): void {
    const { socket } = this;
    // A lost one must not come back under the name of the next.
    if (socket !== null && !this.isClosed) socket.linger = 0;
    this.socket = null;
    this.acknowledged = false;
    if (this.reportTimer !== null) clearTimeout(this.reportTimer);
    this.inbox = [];
    this.hasRoom?.();
    socket?.close();
  }
}

function statusMap(status: Readonly<Record<string, number>>, intervalMs: number): WireMap {
  const entries = Object.entries(status).map(([key, value]): [string, Wire] => [
    key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    Number.isSafeInteger(value) ? value : new Float64(value),
  ]);
  return new Map<string, Wire>([...entries, ['interval_ms', intervalMs]]);
}
