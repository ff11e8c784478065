/**
 * A peer of the NCCL transport: at the source the pair that pushes to it, at the target a line that only says whether the
 * source is there. A target would otherwise not notice the end of a source that has announced nothing yet.
 */
import { HandoffError, type HandoffErrorCode } from '../../errors.js';
import type { Peer, PeerStatus } from '../transport.js';
import type { NcclSourcePair } from './nccl-pair.js';
import type { NcclLine, NcclMessage } from './nccl-wire.js';

/** What a peer needs of its connection. */
interface Connection {
  readonly error: HandoffError | null;
  readonly isReady: boolean;
  fail(code: HandoffErrorCode, message: string): void;
}

export class NcclPeer implements Peer {
  private closed = false;

  constructor(
    readonly transport: object,
    /** Null for a peer that was refused. */
    private readonly connection: Connection | null,
    /** The source's; null at the target. */
    readonly pair: NcclSourcePair | null,
    private readonly failure: HandoffError | null,
  ) {}

  status(): PeerStatus {
    if (this.error !== null) return 'failed';
    return this.connection?.isReady === true ? 'ready' : 'connecting';
  }

  get error(): HandoffError | null {
    if (this.closed) return new HandoffError('CLOSED', 'the peer is closed');
    return this.failure ?? this.connection?.error ?? null;
  }

  close(): void {
    this.closed = true;
    this.connection?.fail('CLOSED', 'the connection to the peer was closed on this side');
  }
}

/** The target's line to a source: up when the source knows it, and down with the source. */
export class NcclWatch implements Connection {
  private line: NcclLine | null = null;
  private failed: HandoffError | null = null;
  isReady = false;

  /** @param onChange - it came up, or went down */
  constructor(private readonly onChange: () => void) {}

  attach(line: NcclLine): void {
    this.line = line;
  }

  get error(): HandoffError | null {
    return this.failed;
  }

  receive(message: NcclMessage): void {
    if (message.kind !== 'watched' || this.isReady) {
      return this.fail('PEER_REFUSED', `the source said ${message.kind} out of turn`);
    }
    this.isReady = true;
    this.onChange();
  }

  fail(code: HandoffErrorCode, message: string): void {
    if (this.failed !== null) return;
    this.failed = new HandoffError(code, message);
    this.line?.close();
    this.onChange();
  }
}

/** The source's end of such a line: lets in who knows the token, and says nothing more. */
export class NcclWatched {
  private line: NcclLine | null = null;
  private hasEnded = false;
  isKnown = false;

  constructor(private readonly knowsToken: (token: string) => boolean) {}

  attach(line: NcclLine): void {
    this.line = line;
  }

  receive(message: NcclMessage): void {
    if (message.kind !== 'watch' || this.isKnown || !this.knowsToken(message.token)) return this.fail();
    this.isKnown = true;
    this.line?.send({ kind: 'watched' });
  }

  /** Whoever watches learns it from the line. */
  fail(): void {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.line?.close();
  }
}
