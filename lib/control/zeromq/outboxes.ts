/**
 * What could not be sent because its reader is slow, by peer and in order, within bounds: this is all the memory that a
 * peer can make the coordinator hold for it. Knows no socket. Over its bound a client loses the replies that wait and is
 * told so, request by request; an engine's messages come back as undelivered.
 */
import type { PeerId } from '../coordinator/interface.js';
import type { Frames } from '../protocol/codec.js';
import type { ToClient, ToEngine } from '../protocol/messages.js';

/** Bytes that may wait. */
export interface OutboxLimits {
  readonly clientBytesMax: number;
  readonly engineBytesMax: number;
  /** Messages of one peer, whatever their size. */
  readonly messagesMax: number;
}

export const defaultOutboxLimits: OutboxLimits = Object.freeze({
  clientBytesMax: 8 * 2 ** 20,
  engineBytesMax: 256 * 2 ** 20,
  messagesMax: 65_536,
});

/** One message that waits. */
export interface Waiting {
  readonly message: ToEngine | ToClient;
  readonly frames: Frames;
  readonly bytes: number;
}

/** A client's request, some of whose replies were dropped. */
export interface LostRequest {
  readonly requestId: number;
  /** Its last word was among them, and said that its source is safe: nothing is left to stop. */
  readonly isOver: boolean;
}

/** What a message that came too much did. */
export type Overflow =
  | { readonly kind: 'none' }
  /** The client's requests whose replies are lost; each is to be ended and told. */
  | { readonly kind: 'client'; readonly requests: readonly LostRequest[] }
  /** The engine does not take this message any more. */
  | { readonly kind: 'engine' };

const aboutRequests: ReadonlySet<string> = new Set([
  'ENGINE_REPLY',
  'ENGINE_REPLY_PARTIAL',
  'REQUEST_ERROR',
  'REQUEST_ABORTED',
]);

/** Whether it gives an engine a request, by far the largest of what it is told. */
export function isRequest({ header }: ToEngine | ToClient): boolean {
  return header === 'SUBMIT_REQUEST' || header === 'SUBMIT_REQUEST_WITH_KV';
}

interface Outbox {
  waiting: Waiting[];
  bytes: number;
}

export class Outboxes {
  private readonly boxes = new Map<PeerId, Outbox>();
  private total = 0;

  constructor(private readonly limits: OutboxLimits) {}

  /** Bytes that wait, over all peers. */
  get bytes(): number {
    return this.total;
  }

  get peers(): Iterable<PeerId> {
    return [...this.boxes.keys()];
  }

  has(peer: PeerId): boolean {
    return this.boxes.has(peer);
  }

  bytesOf(peer: PeerId): number {
    return this.boxes.get(peer)?.bytes ?? 0;
  }

  /** Takes `entry` in, or says what gave way. */
  add(peer: PeerId, entry: Waiting, isEngine: boolean): Overflow {
    let box = this.boxes.get(peer);
    if (box === undefined) this.boxes.set(peer, (box = { waiting: [], bytes: 0 }));
    // What stops and releases requests still goes in where no request does: an engine that misses it never gives back.
    const times = isEngine && !isRequest(entry.message) ? 2 : 1;
    const bytesMax = times * (isEngine ? this.limits.engineBytesMax : this.limits.clientBytesMax);
    if (box.bytes + entry.bytes <= bytesMax && box.waiting.length < times * this.limits.messagesMax) {
      box.waiting.push(entry);
      box.bytes += entry.bytes;
      this.total += entry.bytes;
      return { kind: 'none' };
    }
    if (isEngine) return { kind: 'engine' };
    const lost = new Map<number, boolean>();
    for (const { message } of [...box.waiting, entry]) {
      // Acknowledgements of the ownership protocol count handoffs, not the client's requests.
      if (!('requestId' in message) || !aboutRequests.has(message.header)) continue;
      const isOver = message.header === 'ENGINE_REPLY' || ('sourceSafe' in message && message.sourceSafe);
      lost.set(message.requestId, isOver || lost.get(message.requestId) === true);
    }
    this.drop(peer);
    return { kind: 'client', requests: [...lost].map(([requestId, isOver]) => ({ requestId, isOver })) };
  }

  /** The oldest that waits. */
  first(peer: PeerId): Waiting | undefined {
    return this.boxes.get(peer)?.waiting[0];
  }

  /** The oldest was sent. */
  shift(peer: PeerId): void {
    const box = this.boxes.get(peer);
    const entry = box?.waiting.shift();
    if (box === undefined || entry === undefined) return;
    box.bytes -= entry.bytes;
    this.total -= entry.bytes;
    if (box.waiting.length === 0) this.boxes.delete(peer);
  }

  /** Everything that waits for a peer that is gone. */
  drop(peer: PeerId): readonly Waiting[] {
    const box = this.boxes.get(peer);
    if (box === undefined) return [];
    this.boxes.delete(peer);
    this.total -= box.bytes;
    return box.waiting;
  }
}
