/**
 * Which engines are killed in the middle of a run, and what became of everything they had a part in. Pure: the router
 * kills; this chooses, and keeps the books on pins and blocks.
 */
import type { Observation } from './observation.js';

/** What was killed, as the router knows it. */
export interface Killed {
  readonly instance: string;
  /** Of its pools, over its ranks. */
  readonly blocks: number;
}

/** Where every pin and every block is at the end. */
export interface ChaosAccount {
  readonly killed: readonly string[];
  readonly blocksGone: number;
  readonly finished: number;
  readonly failed: number;
  readonly pinsMade: number;
  readonly pinsReleased: number;
  /** Of those: held for a reader that was killed, until it was attested dead. */
  readonly pinsInDoubt: number;
  readonly pinsGone: number;
}

/**
 * The prefill engine to kill together with a decode engine: so that some requests lose the one, some the other, and some
 * neither.
 *
 * @param seen - at least one of them has a prefill engine
 */
export function victimBeside(decode: string, seen: readonly Observation[]): string {
  const open = seen.filter((each) => !each.isSettled && each.prefill !== null && each.decode !== null);
  const names = [...new Set(seen.flatMap(({ prefill }) => prefill ?? []))];
  const worth = (prefill: string): number => {
    const has = (own: boolean, read: boolean): number =>
      Number(open.some((each) => (each.prefill === prefill) === own && (each.decode!.instance === decode) === read));
    return 4 * has(false, false) + 2 * has(false, true) + has(true, false);
  };
  return names.sort((a, b) => worth(b) - worth(a))[0]!;
}

/** Pins whose reader is about to be killed while their engine lives on; nothing of theirs has moved. */
export function pinsInDoubt(seen: readonly Observation[], killed: ReadonlySet<string>): number {
  return seen.filter(
    ({ request, prefill, decode, landed, isSettled }) =>
      request.held &&
      !isSettled &&
      landed === null &&
      decode !== null &&
      killed.has(decode.instance) &&
      !killed.has(prefill ?? ''),
  ).length;
}

export function accountOf(seen: readonly Observation[], killed: readonly Killed[], doubtful: number): ChaosAccount {
  const pinned = seen.filter(({ ticket }) => ticket !== null);
  const count = (holds: (each: Observation) => boolean): number => pinned.filter(holds).length;
  return {
    killed: killed.map(({ instance }) => instance),
    blocksGone: killed.reduce((sum, { blocks }) => sum + blocks, 0),
    finished: seen.filter(({ finished }) => finished !== null).length,
    failed: seen.filter(({ failed }) => failed !== null).length,
    pinsMade: pinned.length,
    pinsReleased: count(({ isReleased }) => isReleased),
    pinsInDoubt: doubtful,
    pinsGone: count(({ isReleased, sourceIsGone }) => !isReleased && sourceIsGone),
  };
}

/** For the last line. */
export function accountLine(accounts: readonly ChaosAccount[], back: string): string {
  const sum = (key: Exclude<keyof ChaosAccount, 'killed'>): number =>
    accounts.reduce((total, account) => total + account[key], 0);
  const left = sum('pinsMade') - sum('pinsReleased') - sum('pinsGone');
  return (
    `; killed ${accounts.map(({ killed }) => killed.join(' and ')).join(', ')}: ` +
    `${sum('finished')} requests finished, ${sum('failed')} failed with a reason; ` +
    `blocks: ${back} back where engines live, ${sum('blocksGone')} gone with the killed; ` +
    `pins: ${sum('pinsMade')} made, ${sum('pinsReleased')} released ` +
    `(${sum('pinsInDoubt')} of them when their reader was attested dead), ${sum('pinsGone')} gone with the killed, ${left} left`
  );
}
