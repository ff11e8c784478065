/**
 * What can go wrong with one transfer or one connection, as data: the script of a {@link ScriptedNetwork}.
 *
 * `faults` has one entry for each fault that field reports name; `seededScript` mixes them at given rates.
 */
import type { SeededRandom } from './seeded-random.js';

/** Names of all faults. */
export const faultKinds: ReadonlySet<TransferFault['kind']> = new Set<TransferFault['kind']>([
  'drop',
  'stall',
  'error',
  'late-done',
  'duplicate',
  'begin-throws',
  'poll-throws',
  'peer-restart',
]);

/** When a transfer that failed is known to be quiet: at once, after some time, or never (until the peer is attested dead). */
export type QuietProof = 'now' | 'later' | 'never';

/** The fault of one transfer, by name. */
export type TransferFault =
  /** No byte ever moves, and nobody is told. */
  | { readonly kind: 'drop' }
  /** Stops in the middle, and nobody is told. */
  | { readonly kind: 'stall'; readonly afterPieces: number }
  /** Fails in the middle. Without proof of quiet, `keepsWriting` bytes go on arriving. */
  | {
      readonly kind: 'error';
      readonly afterPieces: number;
      readonly proof: QuietProof;
      readonly proofAfterMs: number;
      readonly keepsWriting: boolean;
    }
  /** Takes no notice of `cancel`: the last bytes arrive long after it, and only then does the handle end. */
  | { readonly kind: 'late-done'; readonly afterMs: number; readonly end: 'done' | 'failed-quiet' }
  /** Is reported as changed again and again after its end. */
  | { readonly kind: 'duplicate'; readonly times: number; readonly everyMs: number }
  /** `begin` throws. When the target is not safe, bytes move all the same and no handle tells when they stop. */
  | { readonly kind: 'begin-throws'; readonly targetSafe: boolean; readonly cleanupHandle: boolean }
  /** The first `times` polls throw. */
  | { readonly kind: 'poll-throws'; readonly times: number }
  /** The source's process dies in the middle, with everything it had. */
  | { readonly kind: 'peer-restart'; readonly afterPieces: number };

/** How a pull ends when its source's process dies. */
export interface PeerDeathPlan {
  /** `noticed`: fails and is quiet. `in-doubt`: fails, quiet only once attested. `silent`: nothing is told. */
  readonly outcome: 'noticed' | 'in-doubt' | 'silent';
  /** How long bytes already under way go on arriving. */
  readonly lingerMs: number;
}

/** Everything that decides how one transfer runs. */
export interface TransferPlan {
  /** From begin (for a push: from when both ends have begun) to the first piece. */
  readonly startAfterMs: number;
  /** How many parts the bytes arrive in; at least 1. */
  readonly pieces: number;
  readonly pieceMs: number;
  /** From a cancel to its proof of quiet; bytes may arrive meanwhile. */
  readonly cancelAfterMs: number;
  /** From `done` to the fence that an engine must await before it reads; null: bytes are readable at once. */
  readonly landedAfterMs: number | null;
  readonly peerDeath: PeerDeathPlan;
  readonly fault: TransferFault | null;
}

/** How one connection comes up. */
export interface ConnectPlan {
  /** `connecting`: it stays so for ever. */
  readonly outcome: 'ready' | 'connecting' | 'failed';
  readonly afterMs: number;
}

/** A transfer that goes well, at once. */
export const smoothTransfer: TransferPlan = {
  startAfterMs: 0,
  pieces: 1,
  pieceMs: 0,
  cancelAfterMs: 0,
  landedAfterMs: null,
  peerDeath: { outcome: 'noticed', lingerMs: 0 },
  fault: null,
};

/** A connection that comes up at once. */
export const smoothConnect: ConnectPlan = { outcome: 'ready', afterMs: 0 };

/** One entry for each fault, ready for `ScriptedNetwork.planNext`. Times in simulated milliseconds. */
export const faults = {
  /** Never starts. */
  drop: (): Partial<TransferPlan> => ({ fault: { kind: 'drop' } }),
  /** Starts late. */
  delay: (ms: number): Partial<TransferPlan> => ({ startAfterMs: ms }),
  /** Is told to be changed twice. */
  duplicate: (times = 2, everyMs = 1): Partial<TransferPlan> => ({ fault: { kind: 'duplicate', times, everyMs } }),
  /** Stalls for ever after the first of two pieces. */
  stall: (): Partial<TransferPlan> => ({ pieces: 2, pieceMs: 1, fault: { kind: 'stall', afterPieces: 1 } }),
  /** Writes one of two pieces, then fails. */
  partialWrite: (proof: QuietProof = 'now', proofAfterMs = 5): Partial<TransferPlan> => ({
    pieces: 2,
    pieceMs: 1,
    fault: { kind: 'error', afterPieces: 1, proof, proofAfterMs, keepsWriting: false },
  }),
  /** Ends well after it was cancelled. */
  lateDone: (afterMs = 10, end: 'done' | 'failed-quiet' = 'failed-quiet'): Partial<TransferPlan> => ({
    pieces: 2,
    pieceMs: 1,
    fault: { kind: 'late-done', afterMs, end },
  }),
  /** Fails before the first byte. */
  error: (proof: QuietProof = 'now', proofAfterMs = 5): Partial<TransferPlan> => ({
    fault: { kind: 'error', afterPieces: 0, proof, proofAfterMs, keepsWriting: false },
  }),
  /** Fails after the first of four pieces and goes on writing without saying when it stops, or says so later. */
  errorWhileWriting: (proof: 'later' | 'never', proofAfterMs = 5): Partial<TransferPlan> => ({
    pieces: 4,
    pieceMs: 1,
    fault: { kind: 'error', afterPieces: 1, proof, proofAfterMs, keepsWriting: true },
  }),
  /** `begin` throws. */
  beginThrows: (targetSafe: boolean, cleanupHandle = false): Partial<TransferPlan> => ({
    pieces: 2,
    pieceMs: 1,
    fault: { kind: 'begin-throws', targetSafe, cleanupHandle },
  }),
  /** `poll` throws. */
  pollThrows: (times = 1): Partial<TransferPlan> => ({ fault: { kind: 'poll-throws', times } }),
  /** The source dies after the first of two pieces. */
  peerRestart: (outcome: PeerDeathPlan['outcome'] = 'noticed', lingerMs = 0): Partial<TransferPlan> => ({
    pieces: 2,
    pieceMs: 1,
    peerDeath: { outcome, lingerMs },
    fault: { kind: 'peer-restart', afterPieces: 1 },
  }),
} as const;

/** How often each kind of fault comes, as probabilities of one transfer or one connection. All default to 0. */
export interface FaultRates {
  readonly drop?: number;
  readonly stall?: number;
  readonly error?: number;
  readonly lateDone?: number;
  readonly duplicate?: number;
  readonly beginThrows?: number;
  readonly pollThrows?: number;
  readonly connectFails?: number;
  readonly connectHangs?: number;
  /** Longest delay before the first piece, between pieces and after a cancel. Default 3 ms. */
  readonly delayMsMax?: number;
  /** Most pieces of a transfer. Default 4. */
  readonly piecesMax?: number;
}

/** What decides the plans of a network's transfers and connections, in the order in which they begin. */
export interface NetworkScript {
  /** The plan of a transfer. */
  transfer(): Partial<TransferPlan>;
  /** The plan of a connection. */
  connect(): Partial<ConnectPlan>;
}

/** A script drawn from `random`: every transfer is delayed and cut into pieces, and fails at the given rates. */
export function seededScript(random: SeededRandom, rates: FaultRates = {}): NetworkScript {
  const delayMsMax = rates.delayMsMax ?? 3;
  const delay = (): number => random.float() * delayMsMax;
  return {
    transfer() {
      const pieces = random.int(1, rates.piecesMax ?? 4);
      return {
        startAfterMs: delay(),
        pieces,
        pieceMs: delay(),
        cancelAfterMs: random.chance(0.5) ? 0 : delay(),
        landedAfterMs: random.chance(0.8) ? null : delay(),
        peerDeath: { outcome: random.pick(['noticed', 'in-doubt', 'silent'] as const), lingerMs: delay() },
        fault: drawFault(random, rates, pieces),
      };
    },
    connect() {
      if (random.chance(rates.connectFails ?? 0)) return { outcome: 'failed', afterMs: delay() };
      if (random.chance(rates.connectHangs ?? 0)) return { outcome: 'connecting', afterMs: 0 };
      return { outcome: 'ready', afterMs: random.chance(0.5) ? 0 : delay() };
    },
  };
}

function drawFault(random: SeededRandom, rates: FaultRates, pieces: number): TransferFault | null {
  const afterPieces = random.int(0, pieces);
  const laterMs = random.float() * 20;
  if (random.chance(rates.drop ?? 0)) return { kind: 'drop' };
  if (random.chance(rates.stall ?? 0)) return { kind: 'stall', afterPieces };
  if (random.chance(rates.error ?? 0)) {
    const proof = random.pick(['now', 'now', 'later', 'never'] as const);
    return { kind: 'error', afterPieces, proof, proofAfterMs: laterMs, keepsWriting: random.chance(0.7) };
  }
  if (random.chance(rates.lateDone ?? 0)) {
    return { kind: 'late-done', afterMs: laterMs, end: random.pick(['done', 'failed-quiet'] as const) };
  }
  if (random.chance(rates.duplicate ?? 0))
    return { kind: 'duplicate', times: random.int(1, 3), everyMs: random.float() * 2 };
  if (random.chance(rates.beginThrows ?? 0)) {
    return { kind: 'begin-throws', targetSafe: random.chance(0.5), cleanupHandle: random.chance(0.5) };
  }
  if (random.chance(rates.pollThrows ?? 0)) return { kind: 'poll-throws', times: random.int(1, 3) };
  return null;
}
