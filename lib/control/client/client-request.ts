/**
 * One request at its client: what comes for it, in order, until one end. Owns the queue between the socket and who reads;
 * knows no socket. Ending locally and the source being safe are two things (spec 1.9).
 */
import type { HandoffError } from '../../errors.js';
import type { WireMap } from '../protocol/wire-value.js';

/** Deltas, and at last the whole: a request that ends well has exactly one `final`, which comes last. */
export interface ClientEvent {
  readonly kind: 'partial' | 'final';
  /** As the engine wrote it (spec 1.4, 1.5.4), with `request_id` the client's own. */
  readonly body: WireMap;
}

/** Made by `CoordinatorClient.addRequest`. Read it once, by one reader. */
export class ClientRequest implements AsyncIterable<ClientEvent> {
  /** Resolves when nothing of this request reads or may write engine memory any more; rejects when that cannot be known. */
  readonly sourceSafe: Promise<void>;

  private readonly events: ClientEvent[] = [];
  private isEnded = false;
  private failure: HandoffError | null = null;
  private wakes: (() => void)[] = [];
  /** @internal Called once, at its local end. */
  onEnd: (() => void) | null = null;
  private settleSafe!: { resolve: () => void; reject: (error: HandoffError) => void };

  /** @internal */
  constructor(
    /** The client's own number for it. */
    readonly requestId: number,
    private readonly taken: (count: number) => void,
    /** Its reader has gone before its end. */
    private readonly abandoned: () => void,
  ) {
    this.sourceSafe = new Promise((resolve, reject) => {
      this.settleSafe = { resolve, reject };
    });
    this.sourceSafe.catch(() => undefined);
  }

  /**
   * Partials and the final reply. Who leaves the loop before the end aborts the request.
   *
   * @throws `ENGINE_FAILED` with the coordinator's reason, `ABORTED`, `PEER_LOST`, `CLOSED`
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<ClientEvent, void, undefined> {
    try {
      for (;;) {
        const event = this.events.shift();
        if (event !== undefined) {
          this.taken(1);
          yield event;
        } else if (this.failure !== null) {
          throw this.failure;
        } else if (this.isEnded) {
          return;
        } else {
          await new Promise<void>((resolve) => {
            this.wakes.push(resolve);
          });
        }
      }
    } finally {
      // Nobody else reads it: what lies here must not keep the others of its client waiting.
      if (!this.isEnded) this.abandoned();
      this.taken(this.events.splice(0).length);
    }
  }

  /** @internal Whether its local end has come. */
  get hasEnded(): boolean {
    return this.isEnded;
  }

  /** @internal Returns whether it was taken: after the end nothing is. */
  push(event: ClientEvent): boolean {
    if (this.isEnded) return false;
    this.events.push(event);
    if (event.kind === 'final') this.end();
    this.wake();
    return true;
  }

  /** @internal What was not read yet is dropped. */
  fail(error: HandoffError): void {
    if (this.isEnded) return;
    this.end();
    this.failure = error;
    this.taken(this.events.splice(0).length);
    this.wake();
  }

  /** @internal */
  safe(): void {
    this.settleSafe.resolve();
  }

  /** @internal */
  unknownSafety(error: HandoffError): void {
    this.settleSafe.reject(error);
  }

  private end(): void {
    this.isEnded = true;
    this.onEnd?.();
    this.onEnd = null;
  }

  private wake(): void {
    for (const wake of this.wakes.splice(0)) wake();
  }
}
