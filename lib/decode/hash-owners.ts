/**
 * Which import is bringing which block hash: two imports in flight never bring the same one (invariant I4).
 *
 * A reservation ends at the decision, whatever happens to the memory afterwards.
 */
import { invariant } from '../invariant.js';

export class HashOwners {
  private readonly owners = new Map<bigint, number>();

  get size(): number {
    return this.owners.size;
  }

  /** Whether any of `hashes[from…]` is being brought by somebody. */
  anyOwned(hashes: BigInt64Array, from: number): boolean {
    if (this.owners.size === 0) return false;
    for (let i = from; i < hashes.length; i += 1) {
      if (this.owners.has(hashes[i] as bigint)) return true;
    }
    return false;
  }

  /** Takes `hashes[from…]` for `attemptId`. A prompt cannot repeat a hash: each covers all tokens before it. */
  reserve(hashes: BigInt64Array, from: number, attemptId: number): void {
    for (let i = from; i < hashes.length; i += 1) {
      const hash = hashes[i] as bigint;
      invariant(!this.owners.has(hash), 'a block hash has one owner at most', { attemptId });
      this.owners.set(hash, attemptId);
    }
  }

  /** Ends what `attemptId` holds of `hashes[from…]`. */
  drop(hashes: BigInt64Array, from: number, attemptId: number): void {
    for (let i = from; i < hashes.length; i += 1) {
      const hash = hashes[i] as bigint;
      invariant(this.owners.get(hash) === attemptId, 'a hash reservation is dropped by its owner', { attemptId });
      this.owners.delete(hash);
    }
  }

  /** For `inspect` and the invariant checks: hash → attempt. */
  entries(): IterableIterator<[bigint, number]> {
    return this.owners.entries();
  }
}
