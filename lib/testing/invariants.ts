/**
 * The library's own invariants (I1-I10), to be run against any engine: yours, in its own tests.
 *
 * Describe each rank as an {@link ObservedRank} (a dozen lines over an allocator and `StateHandoff.inspect()`) and call
 * `checkInvariants` after anything happened; feed a {@link SettlementLedger} with what callers were told and ask it at
 * the end. The checks trust nothing they are told: held memory is counted against the allocator's own references.
 *
 * | | invariant | checked by |
 * | --- | --- | --- |
 * | I1 | source memory is not reusable between completion and release | `checkOwnership`; `OwnershipLedger` (blind readers) |
 * | I2 | target memory is not reusable while it may be written | `checkOwnership`; `OwnershipLedger` (writes, give-backs) |
 * | I3 | no hash is registered before all ranks succeeded | `OwnershipLedger` (registrations) |
 * | I4 | no two imports own the same hash | `checkHashOwners` |
 * | I5 | first in, first out | `checkOrder` |
 * | I6 | admission only at the scheduling point | `TestEngine` |
 * | I7 | a shortage defers and starts nothing | `checkOrder` (a queued import holds nothing), `SettlementLedger` (no capacity error) |
 * | I8 | one answer for every request | `SettlementLedger` |
 * | I9 | time makes no memory safe | `OwnershipLedger` (give-backs) |
 * | I10 | decode runs no prompt tokens | `TestEngine.promptTokensComputed` |
 */
import { isHandoffError } from '../errors.js';

/** The invariants by name (spec 6.6), and the law of the ordered log. */
export type InvariantName = 'I1' | 'I2' | 'I3' | 'I4' | 'I5' | 'I6' | 'I7' | 'I8' | 'I9' | 'I10' | 'law 4';

/** One broken invariant. */
export interface Violation {
  readonly invariant: InvariantName;
  readonly message: string;
}

/** Somebody who holds blocks and perhaps a slot: one reference to each listed block, duplicates counting. */
export interface Holding {
  /** For messages: `pin 3`, `import 7`, `running 5`. */
  readonly owner: string;
  readonly blocks: ArrayLike<number>;
  readonly slot: number | null;
}

/** An import that is not over for its memory. */
export interface ObservedImport {
  readonly attemptId: number;
  /** Its place in the order of the log: a smaller one was added earlier. */
  readonly order: number;
  /** Whether it still waits and holds nothing. */
  readonly isQueued: boolean;
  /** Hashes that it owns until its decision. */
  readonly ownedHashes: Iterable<bigint>;
  /** How many blocks it holds. */
  readonly blockCount: number;
}

/** One rank of an engine, as far as the invariants can be asked of it. */
export interface ObservedRank {
  /** For messages. */
  readonly name: string;
  /** Blocks that can be handed out have ids 0 … `poolSize` - 2. */
  readonly blocks: {
    readonly poolSize: number;
    /** References to a block now. */
    references(block: number): number;
    /** Whether a block is in the free bag. */
    isFree(block: number): boolean;
  };
  /** Null for attention-only models. */
  readonly slots: {
    readonly size: number;
    /** Whether a slot is free. */
    isFree(slot: number): boolean;
  } | null;
  /** Everybody who holds memory on this rank: the engine's requests, and the SDK's pins, imports and quarantine. */
  holdings(): Iterable<Holding>;
  /** Imports that this rank knows now. */
  imports(): Iterable<ObservedImport>;
  /** How many log records and steps this rank has applied, and a digest of its pools; equal indexes need equal digests. */
  readonly logIndex: number;
  /** The digest of the pools that `logIndex` speaks of. */
  poolDigest(): number;
}

/** All checks over one instance's ranks. An empty list is what you want. */
export function checkInvariants(ranks: readonly ObservedRank[]): Violation[] {
  return [
    ...ranks.flatMap((rank) => [...checkOwnership(rank), ...checkHashOwners(rank), ...checkOrder(rank)]),
    ...checkEqualRanks(ranks),
  ];
}

/** I1, I2: each reference belongs to somebody, everybody's memory is referenced, and nothing held is free. */
export function checkOwnership(rank: ObservedRank): Violation[] {
  const violations: Violation[] = [];
  const { blocks, slots } = rank;
  const held = new Int32Array(blocks.poolSize);
  const slotOwners = new Map<number, string>();
  for (const { owner, blocks: ids, slot } of rank.holdings()) {
    for (let i = 0; i < ids.length; i++) {
      if (ids[i]! >= 0 && ids[i]! < blocks.poolSize - 1) held[ids[i]!]!++;
      else
        violations.push({
          invariant: 'I2',
          message: `${rank.name} ${owner} holds ${ids[i]!}, which is no block to hold`,
        });
    }
    if (slot === null) continue;
    if (slots === null || !(slot >= 0 && slot < slots.size))
      violations.push({ invariant: 'I2', message: `${rank.name} ${owner} holds slot ${slot}, which the pool has not` });
    const other = slotOwners.get(slot);
    if (other !== undefined)
      violations.push({ invariant: 'I2', message: `${rank.name} slot ${slot} is held by ${other} and by ${owner}` });
    slotOwners.set(slot, owner);
  }
  for (let block = 0; block < blocks.poolSize; block++) {
    const references = blocks.references(block);
    if (references !== held[block]) {
      const invariant = references < held[block]! ? 'I2' : 'I1';
      violations.push({
        invariant,
        message: `${rank.name} block ${block} has ${references} references, and ${held[block]} are accounted for (${ownersOf(rank, block)})`,
      });
    }
    if (references > 0 && blocks.isFree(block)) {
      violations.push({ invariant: 'I2', message: `${rank.name} block ${block} is both free and referenced` });
    }
  }
  for (let slot = 0; slots !== null && slot < slots.size; slot++) {
    const owner = slotOwners.get(slot);
    if (slots.isFree(slot) === (owner === undefined)) continue;
    const message = owner === undefined ? 'is taken, and nobody holds it' : `is free, and ${owner} holds it`;
    violations.push({ invariant: owner === undefined ? 'I1' : 'I2', message: `${rank.name} slot ${slot} ${message}` });
  }
  return violations;
}

/** I4: a hash on its way has one owner. */
export function checkHashOwners(rank: ObservedRank): Violation[] {
  const violations: Violation[] = [];
  const owners = new Map<bigint, number>();
  for (const { attemptId, ownedHashes } of rank.imports()) {
    for (const hash of ownedHashes) {
      const other = owners.get(hash);
      if (other !== undefined && other !== attemptId) {
        violations.push({
          invariant: 'I4',
          message: `${rank.name} hash ${hash} is owned by attempts ${other} and ${attemptId}`,
        });
      }
      owners.set(hash, attemptId);
    }
  }
  return violations;
}

/** I5, I7: whoever has started was added before all who wait, and who waits holds nothing. */
export function checkOrder(rank: ObservedRank): Violation[] {
  const violations: Violation[] = [];
  let firstQueued: ObservedImport | null = null;
  let lastStarted: ObservedImport | null = null;
  for (const each of rank.imports()) {
    if (each.isQueued) {
      if (firstQueued === null || each.order < firstQueued.order) firstQueued = each;
      if (each.blockCount > 0) {
        violations.push({
          invariant: 'I7',
          message: `${rank.name} attempt ${each.attemptId} waits and holds ${each.blockCount} blocks`,
        });
      }
    } else if (lastStarted === null || each.order > lastStarted.order) {
      lastStarted = each;
    }
  }
  if (firstQueued !== null && lastStarted !== null && lastStarted.order > firstQueued.order) {
    violations.push({
      invariant: 'I5',
      message: `${rank.name} attempt ${lastStarted.attemptId} started before attempt ${firstQueued.attemptId}, which was added earlier and waits`,
    });
  }
  return violations;
}

/** Law 4: ranks at the same place of the log have the same pools. */
export function checkEqualRanks(ranks: readonly ObservedRank[]): Violation[] {
  const violations: Violation[] = [];
  const byIndex = new Map<number, { readonly rank: ObservedRank; readonly digest: number }>();
  for (const rank of ranks) {
    const digest = rank.poolDigest();
    const other = byIndex.get(rank.logIndex);
    if (other === undefined) byIndex.set(rank.logIndex, { rank, digest });
    else if (other.digest !== digest) {
      violations.push({
        invariant: 'law 4',
        message: `pools of ${other.rank.name} and ${rank.name} differ at log index ${rank.logIndex}`,
      });
    }
  }
  return violations;
}

/** Codes that say "no room": a shortage that can pass must never end a request with one of them (I7). */
const shortageCodes: ReadonlySet<string> = new Set(['PIN_LIMIT', 'NATIVE_LIMIT', 'INVARIANT']);

/** I8: what each request's caller was told. */
export class SettlementLedger<Id> {
  readonly #answers = new Map<Id, string[]>();

  /** A request was accepted; from now on it is owed one answer. @throws RangeError when it was asked before */
  asked(id: Id): void {
    if (this.#answers.has(id)) throw new RangeError(`request ${String(id)} was asked twice`);
    this.#answers.set(id, []);
  }

  /** Its promise settled. */
  answered(id: Id, outcome: unknown): void {
    const answers = this.#answers.get(id);
    if (answers === undefined) throw new RangeError(`request ${String(id)} was never asked`);
    answers.push(isHandoffError(outcome) ? outcome.code : 'finished');
  }

  /** Requests that still wait. */
  get open(): readonly Id[] {
    return [...this.#answers].filter(([, answers]) => answers.length === 0).map(([id]) => id);
  }

  /** How many requests ended how. */
  get outcomes(): ReadonlyMap<string, number> {
    const counts = new Map<string, number>();
    for (const answers of this.#answers.values()) {
      for (const answer of answers) counts.set(answer, (counts.get(answer) ?? 0) + 1);
    }
    return counts;
  }

  /** What is wrong so far; `final` also finds requests without an answer. */
  check(final: boolean): Violation[] {
    const violations: Violation[] = [];
    for (const [id, answers] of this.#answers) {
      if (answers.length > 1 || (final && answers.length === 0)) {
        const got = answers.length === 0 ? 'no answer' : `the answers ${answers.join(', ')}`;
        violations.push({ invariant: 'I8', message: `request ${String(id)} got ${got}` });
      }
      for (const answer of answers) {
        if (shortageCodes.has(answer))
          violations.push({ invariant: 'I7', message: `request ${String(id)} ended with ${answer}` });
      }
    }
    return violations;
  }
}

function ownersOf(rank: ObservedRank, block: number): string {
  const owners = [...rank.holdings()]
    .filter(({ blocks }) => Array.prototype.includes.call(blocks, block))
    .map(({ owner }) => owner);
  return owners.length === 0 ? 'nobody holds it' : owners.join(', ');
}
