/**
 * The gathers of one rank: each rank's values come in its own order, and every gather is over when all have come.
 *
 * Refuses a rank that runs too far ahead and an answer that nobody waits for. A gather that is not over at the deadline
 * ends them all, and says who is missing.
 */
import { argumentError, HandoffError } from '../../errors.js';
import { decodeWireValue, encodeWireValue } from './wire-value.js';

/** How many gathers a rank may be ahead of the slowest. */
const aheadMax = 16;

interface Waiter {
  readonly resolve: (values: readonly unknown[]) => void;
  readonly reject: (error: HandoffError) => void;
  readonly timer: NodeJS.Timeout;
}

export class Gathering {
  /** Rank 0: by rank, values that no complete gather has taken. */
  private readonly values: Uint8Array[][];
  private readonly waiters: Waiter[] = [];

  /** @param onLate - the deadline passed: this group will not come together any more */
  constructor(
    private readonly rank: number,
    private readonly size: number,
    private readonly timeoutMs: number,
    private readonly onLate: (error: HandoffError) => void,
  ) {
    this.values = Array.from({ length: size }, () => []);
  }

  /** This rank's own value, encoded. */
  start(bytes: Uint8Array): Promise<readonly unknown[]> {
    if (this.rank === 0) this.values[0]?.push(bytes);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.onLate(this.lateError()), this.timeoutMs);
      this.waiters.push({ resolve, reject, timer });
    });
  }

  /** Rank 0: a worker's value. @throws `ARGUMENT_INVALID` when it is no value, or too far ahead */
  add(rank: number, bytes: Uint8Array): void {
    const waiting = this.values[rank] as Uint8Array[];
    if (waiting.length >= aheadMax) throw argumentError('gathers', `at most ${aheadMax} ahead of the others`, 'more');
    decodeWireValue(bytes, 'gathered value');
    waiting.push(Uint8Array.from(bytes));
  }

  /** Rank 0: the oldest gather's answer once all ranks have given their value, settled here too; else null. */
  takeComplete(): Uint8Array | null {
    if (this.values.some((waiting) => waiting.length === 0)) return null;
    const answer = encodeWireValue(this.values.map((waiting) => waiting.shift()));
    this.settle(answer);
    return answer;
  }

  /** @throws `ARGUMENT_INVALID` for an answer that is none, or that nobody waits for */
  settle(answer: Uint8Array): void {
    const encoded = decodeWireValue(answer, 'gathered');
    if (!Array.isArray(encoded) || encoded.length !== this.size || !encoded.every((each) => each instanceof Uint8Array))
      throw argumentError('gathered', `${this.size} encoded values`, encoded);
    const values = (encoded as Uint8Array[]).map((bytes, rank) => decodeWireValue(bytes, `value of rank ${rank}`));
    const waiter = this.waiters.shift();
    if (waiter === undefined) throw argumentError('gathered', 'an answer that is waited for', 'one more');
    clearTimeout(waiter.timer);
    waiter.resolve(values);
  }

  /** No gather comes to its end any more. */
  end(error: HandoffError): void {
    for (const { reject, timer } of this.waiters.splice(0)) {
      clearTimeout(timer);
      reject(error);
    }
  }

  private lateError(): HandoffError {
    const missing = this.values.flatMap((waiting, rank) => (waiting.length === 0 ? [rank] : []));
    const who = this.rank === 0 ? `ranks ${missing.join(', ')} gave no value` : 'not all ranks gave their value';
    return new HandoffError(
      'RANK_SETUP_FAILED',
      `${who} within ${this.timeoutMs} ms of a gather; set the instance up again`,
    );
  }
}
