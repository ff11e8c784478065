/** What the router saw of one request, from its submission to its end. */
import type { decodeAnswers, prefillAnswers, referenceAnswers } from './messages.js';
import type { Message } from '../demo/messages.js';

export interface LlamaRequest {
  readonly id: string;
  readonly prompt: Int32Array;
  /** Tokens to generate at most. */
  readonly limit: number;
}

type DecodeAnswer<Kind> = Extract<Message<typeof decodeAnswers>, { kind: Kind }>;

/** The end of a request as a coordinator's client hears of it. */
export type Reply =
  Pick<DecodeAnswer<'finished'>, 'tokens' | 'reason'> | { readonly code: string; readonly message: string };

export class Observation {
  prefilled: Extract<Message<typeof prefillAnswers>, { kind: 'prefilled' }> | null = null;
  isDeferred = false;
  reserved: DecodeAnswer<'reserved'> | null = null;
  landed: DecodeAnswer<'landed'> | null = null;
  finished: DecodeAnswer<'finished'> | null = null;
  /** Behind a coordinator: what its client was told, and what decode said of the same request. */
  reply: Reply | null = null;
  computed: DecodeAnswer<'finished'> | null = null;
  failure: { readonly code: string; readonly message: string } | null = null;
  isReleased = false;
  /** The caller gave up. */
  isAborted = false;
  reference: Extract<Message<typeof referenceAnswers>, { kind: 'result' }> | null = null;
  /** When each token came, the first one with the ticket. */
  readonly tokenTimes: number[] = [];
  private readonly submittedAt = performance.now();

  constructor(readonly request: LlamaRequest) {}

  get isSettled(): boolean {
    return this.finished !== null || this.failure !== null;
  }

  /** Settled, and its source is free again. */
  get isOver(): boolean {
    return this.isSettled && (this.prefilled === null || this.isReleased);
  }

  /**
   * Behind a coordinator a request is settled when its client has its end, and decode, should it have got it, is done with it:
   * the result is the client's, the figures are decode's.
   */
  settle(): void {
    const { reply, computed, reserved, isDeferred } = this;
    if (reply === null) return;
    if (!('code' in reply)) {
      if (computed !== null) this.finished = { ...computed, ...reply };
    } else if (computed !== null || (reserved === null && !isDeferred)) this.failure ??= reply;
  }

  get movedBlocks(): number {
    return this.reserved === null ? 0 : this.reserved.blocks - this.reserved.cachedBlocks;
  }

  get timeToFirstTokenMs(): number | null {
    const [first] = this.tokenTimes;
    return first === undefined ? null : first - this.submittedAt;
  }

  get interTokenMs(): number | null {
    const { tokenTimes } = this;
    // The second token is the first of decode's own.
    return tokenTimes.length < 3 ? null : (tokenTimes.at(-1)! - tokenTimes[1]!) / (tokenTimes.length - 2);
  }

  /** From the reservation on decode until llama.cpp there has the state; null before. */
  get handoffMs(): number | null {
    return this.finished === null || this.landed === null ? null : this.landed.milliseconds + this.finished.loadMs;
  }

  /** Whether tokens and logits are, bit for bit, those of the engine that knows of no handoff; null when nobody compared. */
  get isIdentical(): boolean | null {
    const { finished, prefilled, reference } = this;
    if (finished === null || prefilled === null || reference === null) return null;
    const logits = [prefilled.logits, ...finished.logits];
    return (
      finished.reason === reference.reason &&
      equal(finished.tokens, reference.tokens) &&
      equal(logits, reference.logits)
    );
  }

  /** The first token or row of logits that is not the same; null when all are. */
  get difference(): string | null {
    const { finished, prefilled, reference } = this;
    if (this.isIdentical !== false || finished === null || prefilled === null || reference === null) return null;
    const token = reference.tokens.findIndex((each, index) => each !== finished.tokens[index]);
    const row = reference.logits.findIndex((each, index) => each !== [prefilled.logits, ...finished.logits][index]);
    if (row >= 0 && (token < 0 || row <= token)) return `the logits of token ${row} differ`;
    if (token >= 0) return `token ${token}: expected ${reference.tokens[token]}, got ${finished.tokens[token]}`;
    return `it ends with ${finished.reason} after ${finished.tokens.length} tokens, not with ${reference.reason} after ${reference.tokens.length}`;
  }
}

function equal<Value>(a: readonly Value[], b: readonly Value[]): boolean {
  return a.length === b.length && a.every((each, index) => each === b[index]);
}
