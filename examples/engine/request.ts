/** One request in the engine: what was asked, what it holds, how far it is. Data only; the scheduler moves it. */
import type { Fence, Finished, HandoffError, RequestId, SamplingParams } from 'state-handoff';
import type { End, Sampling } from './sampling.js';

/** What the engine adds to {@link Finished}, as its `extra`. */
export interface FinishedExtra {
  /** Logits that each generated token was drawn from; null for one drawn elsewhere. Null when logits are not kept. */
  readonly logits: readonly (Float32Array | null)[] | null;
  /** Proposals that the model was asked about, and how many of them it would have said itself. */
  readonly proposed: number;
  readonly accepted: number;
}

/** Who waits for the end of a request: a promise of `addRequest`, or the handoff SDK. */
export interface RequestOwner {
  finish(result: Finished): void;
  fail(error: HandoffError): void;
}

export class Request {
  /** Blocks held, one reference each, in sequence order. */
  blocks = new Int32Array(0);
  blockCount = 0;
  /** -1: none. */
  slot = -1;
  /** Prompt tokens whose state is in place. */
  computed = 0;
  /** Prompt tokens that were found or brought in place, and not computed here. */
  cachedTokens = 0;
  /** Complete blocks of the prompt, by name; empty without prefix caching. */
  hashes: BigInt64Array = new BigInt64Array(0);
  /** How many of them have been offered to the cache. */
  registered = 0;

  readonly generated: number[] = [];
  readonly logProbs: number[] = [];
  readonly logits: (Float32Array | null)[] = [];
  /** Tokens with state in place: the prompt and what was fed since. */
  position = 0;
  pendingCount = 0;
  proposed = 0;
  accepted = 0;

  /** The state is not to be read before; null when it is in place. */
  landed: Fence | null = null;
  isAborted = false;
  /** Set when the token that came with a handoff ends it already. */
  end: End = 'no';

  /**
   * @param limit - tokens to generate at most, with the sequence's own bound
   * @param pending - the last generated token, then proposals: what runs next, at `position` and after
   * @param snapshots - SSM state after each pending token, to take back refused proposals; null where none can be
   */
  constructor(
    readonly attemptId: number,
    readonly requestId: RequestId,
    readonly prompt: Int32Array,
    readonly samplingParams: SamplingParams,
    readonly sampling: Sampling,
    readonly limit: number,
    readonly owner: RequestOwner,
    readonly pending: Int32Array,
    readonly snapshots: Float32Array | null,
  ) {}

  get isPrefilling(): boolean {
    return this.computed < this.prompt.length;
  }

  /** Blocks it holds at its end. A prefill that is handed off never grows beyond its prompt. */
  finalBlocks(blockSize: number): number {
    const fed = this.sampling.handsOff ? 0 : Math.max(0, this.limit - 1);
    return Math.ceil((this.prompt.length + fed) / blockSize);
  }

  addBlocks(ids: Int32Array): void {
    if (this.blockCount + ids.length > this.blocks.length) {
      const larger = new Int32Array(Math.max(this.blockCount + ids.length, 2 * this.blocks.length));
      larger.set(this.blocks.subarray(0, this.blockCount));
      this.blocks = larger;
    }
    this.blocks.set(ids, this.blockCount);
    this.blockCount += ids.length;
  }

  heldBlocks(): Int32Array {
    return this.blocks.slice(0, this.blockCount);
  }

  result(finishReason: 'length' | 'stop', recordsLogits: boolean): Finished {
    const extra: FinishedExtra = {
      logits: recordsLogits ? this.logits : null,
      proposed: this.proposed,
      accepted: this.accepted,
    };
    return {
      requestId: this.requestId,
      attemptId: this.attemptId,
      generatedTokens: this.generated,
      generatedLogProbs: this.sampling.returnLogProbs ? this.logProbs : null,
      finishReason,
      cachedTokens: this.cachedTokens,
      extra,
    };
  }
}
