/** What the router saw of one request, and what is wrong with it: nothing, if all went as the scenario expects. */
import type { decodeAnswers, Message, prefillCommands, referenceAnswers } from './messages.js';
import type { StateSizes } from './engine-setting.js';
import type { DemoRequest } from './scenario.js';

type Decode = Message<typeof decodeAnswers>;
type Reference = Extract<Message<typeof referenceAnswers>, { kind: 'result' }>;
type Sampling = Extract<Message<typeof prefillCommands>, { kind: 'prompt' }>['sampling'];
type FinishedAnswer = Omit<Extract<Decode, { kind: 'finished' }>, 'kind' | 'id'>;
type Computed = Omit<Extract<Decode, { kind: 'computed' }>, 'kind' | 'id'>;

type Landed = Pick<Extract<Decode, { kind: 'landed' }>, 'bytes' | 'milliseconds' | 'transport'>;

/** The decode instance of a request. */
export interface DecodePlace {
  readonly instance: string;
  /** Of that instance. */
  readonly ranks: number;
  readonly sizes: StateSizes;
}

export class Observation {
  submittedAt = performance.now();
  ticket: string | null = null;
  /** Digest of what prefill drew the first token from. */
  firstLogits: string | null = null;
  isDeferred = false;
  reserved: Extract<Decode, { kind: 'reserved' }> | null = null;
  /** What all ranks of the decode instance moved, and how long the last of them took; null before that. */
  landed: Landed | null = null;
  isAdmitted = false;
  isRead = false;
  isReleased = false;
  finished: FinishedAnswer | null = null;
  /** Nothing, for a request that decode never ran. */
  computed: Computed = { logits: [], proposed: 0, accepted: 0 };
  /** The prefill instance, behind a coordinator; null until that is known. */
  prefill: string | null = null;
  /** Who decodes it; null until that is known. */
  decode: DecodePlace | null = null;
  /** Its place among the requests that came to decode; -1 before. */
  arrival = -1;
  failed: { readonly code: string; readonly message: string } | null = null;
  reference: Reference | null = null;
  /** Streamed tokens that have not been printed. */
  readonly unsaid: number[] = [];
  private readonly streamed: number[] = [];
  private readonly landedRanks: Landed[] = [];
  private firstTokenAt = -1;
  private lastTokenAt = -1;

  constructor(
    readonly request: DemoRequest,
    readonly sampling: Sampling,
    /** Instances that were killed, by name. */
    private readonly killed: ReadonlySet<string> = new Set(),
  ) {}

  /** A rank has all its bytes. */
  land(landed: Landed): void {
    const ranks = this.landedRanks;
    ranks.push(landed);
    if (ranks.length < (this.decode?.ranks ?? Infinity)) return;
    this.landed = {
      bytes: ranks.reduce((sum, { bytes }) => sum + bytes, 0),
      milliseconds: Math.max(...ranks.map(({ milliseconds }) => milliseconds)),
      // A rank without a share says none.
      transport: ranks.find(({ transport }) => transport !== '')?.transport ?? '',
    };
  }

  /** For the start of a line. */
  get name(): string {
    return this.request.id.padEnd(10);
  }

  get isSettled(): boolean {
    return this.finished !== null || this.failed !== null;
  }

  /** Settled, and prefill has its memory back, or is no more. */
  get isOver(): boolean {
    return this.isSettled && (this.ticket === null || this.isReleased || this.sourceIsGone);
  }

  get sourceIsGone(): boolean {
    return this.killed.has(this.prefill ?? '');
  }

  get tokens(): readonly number[] {
    return this.finished?.tokens ?? this.streamed;
  }

  get end(): string {
    if (this.finished !== null) return this.finished.reason;
    return this.failed?.code === 'ABORTED' ? 'aborted' : (this.failed?.code ?? 'open');
  }

  /** A token came. */
  note(token: number): void {
    this.lastTokenAt = performance.now();
    if (this.firstTokenAt < 0) this.firstTokenAt = this.lastTokenAt;
    this.streamed.push(token);
    this.unsaid.push(token);
  }

  finish(answer: FinishedAnswer): void {
    this.finished = answer;
    // A request that decode never ran streams nothing: its first token is in the result.
    if (this.firstTokenAt < 0 && answer.tokens.length > 0) {
      this.firstTokenAt = performance.now();
      this.unsaid.push(...answer.tokens);
    }
  }

  fail(code: string, message: string): void {
    this.failed = { code, message };
  }

  get movedBlocks(): number {
    if (this.landed === null || this.reserved === null) return 0;
    return this.reserved.blocks - this.reserved.cachedBlocks;
  }

  /** Milliseconds from submission to the first token; null without one. */
  get timeToFirstToken(): number | null {
    return this.firstTokenAt < 0 ? null : this.firstTokenAt - this.submittedAt;
  }

  /** Mean milliseconds from one token to the next; null below two tokens. */
  get interTokenLatency(): number | null {
    const gaps = this.streamed.length - 1;
    return gaps < 1 ? null : (this.lastTokenAt - this.firstTokenAt) / gaps;
  }

  /** Null when there is nothing to compare. */
  get isIdentical(): boolean | null {
    return this.finished === null ? null : this.differences().length === 0;
  }

  /** Where the output differs from that of one engine without a handoff. */
  differences(): readonly string[] {
    const { finished, computed, reference } = this;
    if (finished === null) return [];
    if (reference === null) return ['was not compared'];
    const logits = [this.firstLogits ?? '', ...computed.logits].slice(0, finished.tokens.length);
    return [
      ...firstDifference('token', finished.tokens, reference.tokens),
      ...firstDifference('logits of token', logits, reference.logits),
      ...firstDifference('log-probability of token', finished.logProbs ?? [], reference.logProbs ?? []),
      ...(finished.reason === reference.reason ? [] : [`ends by ${finished.reason}, not by ${reference.reason}`]),
    ];
  }

  /** What did not go as the scenario says. */
  surprises(): readonly string[] {
    const { request, finished, failed, reserved, decode } = this;
    const { expects } = request;
    const found: string[] = [];
    const expect = (what: string, expected: unknown, got: unknown): void => {
      if (expected !== got) found.push(`${what}: expected ${String(expected)}, got ${String(got)}`);
    };
    if (failed !== null && request.mayFail) return this.flawsOfFailure(failed);
    expect('end', expects.end, this.end);
    if (failed !== null && failed.code !== 'ABORTED') found.push(failed.message);
    expect('tokens', expects.tokens, this.tokens.length);
    expect('admitted into the decode batch', expects.runsOnDecode, this.isAdmitted);
    if (expects.cachedBlocks !== null) expect('cached prefix blocks', expects.cachedBlocks, reserved?.cachedBlocks);
    expect('source read and released', true, this.isRead && (this.isReleased || this.sourceIsGone));
    if (finished !== null) {
      const { blockBytes, slotBytes } = decode?.sizes ?? { blockBytes: NaN, slotBytes: NaN };
      expect('bytes moved', this.movedBlocks * blockBytes + slotBytes, this.landed?.bytes);
      if (expects.runsOnDecode) found.push(...firstDifference('streamed token', this.streamed, finished.tokens));
    } else if (expects.end === 'aborted') {
      expect('bytes moved before the abort', null, this.landed);
    }
    return found;
  }

  /** One of its engines was killed: it must say so, and nothing of it may be left where an engine lives. */
  private flawsOfFailure({ code, message }: { readonly code: string; readonly message: string }): readonly string[] {
    const { prefill, decode, killed } = this;
    const found: string[] = [];
    const lives = [prefill, decode?.instance].every((name) => typeof name === 'string' && !killed.has(name));
    if (lives) found.push(`failed although ${prefill} and ${decode?.instance} live: ${message}`);
    // What the coordinator saw, or a decode engine that read from the one that was killed.
    if (code !== 'ENGINE_FAILED' || !/ because (?:its \w+ engine is gone|the peer['\s])/.test(message))
      found.push(`expected an engine or a peer that is gone as the reason, got ${message} (${code})`);
    if (this.ticket !== null && !this.isReleased && !this.sourceIsGone) found.push('its pin was not released');
    return found;
  }
}

function firstDifference<Value>(what: string, got: readonly Value[], expected: readonly Value[]): readonly string[] {
  const length = Math.max(got.length, expected.length);
  for (let i = 0; i < length; i += 1) {
    if (!Object.is(got[i], expected[i])) {
      return [`${what} ${i}: expected ${String(expected[i] ?? 'none')}, got ${String(got[i] ?? 'none')}`];
    }
  }
  return [];
}
