/**
 * Lets only allowed keys connect: answers ZeroMQ's authentication protocol (ZAP, RFC 27) for one context. Knows keys, no
 * names: which name a connection has is proven by its routing id.
 */
import type { Context, Reply } from 'zeromq';
import { decodeKey } from './curve-key.js';
import type { AllowList } from './curve-peers.js';
import { loadZeromq } from './load-zeromq.js';

const address = 'inproc://zeromq.zap.01';

/** The domain that a coordinator's socket asks for. */
export const curveDomain = 'state-handoff';

export class CurveGate {
  private allowed: ReadonlySet<string>;
  private refusedCount = 0;

  /** Listens before it resolves: a socket of `context` that is bound later asks here. @throws `ZEROMQ_UNAVAILABLE` */
  static async open(context: Context, peers: AllowList): Promise<CurveGate> {
    const { Reply: ReplySocket } = loadZeromq();
    const socket = new ReplySocket({ context, linger: 0 });
    await socket.bind(address);
    return new CurveGate(context, socket, peers);
  }

  private constructor(
    /** Kept as long as its sockets: collected, it would be shut down under them. */
    readonly context: Context,
    private readonly socket: Reply,
    peers: AllowList,
  ) {
    this.allowed = keysOf(peers);
    void this.serve();
  }

  /** Connections that were refused for their key. */
  get refused(): number {
    return this.refusedCount;
  }

  /** From now on connections with these keys are let in, and no others; those that are there stay. */
  allow(peers: AllowList): void {
    this.allowed = keysOf(peers);
  }

  close(): void {
    this.socket.close();
  }

  private async serve(): Promise<void> {
    while (!this.socket.closed) {
      try {
        await this.socket.send(this.answer(await this.socket.receive()));
      } catch {
        // Closed, or the one who asked has gone.
      }
    }
  }

  /** `version, request id, domain, address, identity, mechanism, credentials…` */
  private answer(frames: readonly Buffer[]): (string | Buffer)[] {
    const [version = '1.0', requestId = '', domain, , , mechanism, key] = frames;
    const isAllowed =
      String(version) === '1.0' &&
      String(domain) === curveDomain &&
      String(mechanism) === 'CURVE' &&
      key !== undefined &&
      this.allowed.has(key.toString('hex'));
    if (!isAllowed) this.refusedCount++;
    const [status, text] = isAllowed ? ['200', 'OK'] : ['400', 'this key is not on the list'];
    return ['1.0', requestId, status!, text!, '', ''];
  }
}

function keysOf(peers: AllowList): ReadonlySet<string> {
  return new Set(Object.entries(peers).map(([name, { key }]) => decodeKey(key, name).toString('hex')));
}
