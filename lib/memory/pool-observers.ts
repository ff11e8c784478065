/**
 * Who watches a block pool: routers' event feeds, caches that hang on blocks. Owns their isolation from each other and
 * from the pool, whose state is complete before any of them hears of it.
 */

/** Every method is optional; arrays are the observer's own. */
export interface BlockPoolObserver {
  /** Blocks that got a new owner: whatever was kept for them by id is stale. */
  allocated?(ids: Int32Array): void;
  /** Blocks that were evicted, or released to zero under `ref_zero`; and the names that ended, ascending. */
  removed?(ids: Int32Array, hashes: BigInt64Array): void;
  /** The pool was reset. */
  cleared?(): void;
}

export class PoolObservers {
  readonly #observers = new Set<{ readonly observer: BlockPoolObserver }>();
  readonly #onError: (error: unknown) => void;

  constructor(onError: (error: unknown) => void = warn) {
    this.#onError = onError;
  }

  get count(): number {
    return this.#observers.size;
  }

  /** The same observer may be added twice. @returns removes it; idempotent */
  add(observer: BlockPoolObserver): () => void {
    const entry = { observer };
    this.#observers.add(entry);
    return () => void this.#observers.delete(entry);
  }

  /** Calls all of those that watch now. Never throws. */
  notify(call: (observer: BlockPoolObserver) => void): void {
    if (this.#observers.size === 0) return;
    for (const { observer } of [...this.#observers]) {
      try {
        call(observer);
      } catch (error) {
        this.#report(error);
      }
    }
  }

  #report(error: unknown): void {
    try {
      this.#onError(error);
    } catch (second) {
      warn(error);
      warn(second);
    }
  }
}

function warn(error: unknown): void {
  const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
  process.emitWarning(`an observer of a block pool failed: ${text}`, 'StateHandoffWarning');
}
