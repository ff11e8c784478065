/**
 * The one error class of the SDK and the one table of its codes.
 *
 * Callers match on `code`; classes and messages may change, codes do not. Native code throws plain errors that carry
 * `code` and `details`; `native/addon-errors.ts` turns them into this class.
 */

/** Where in the life of a handoff an error arose. */
export type HandoffPhase = 'setup' | 'prefill' | 'transfer' | 'decode';

interface CodeEntry {
  /** Whether the same call may succeed later without a change by the caller. */
  readonly retryable: boolean;
  readonly phase: HandoffPhase;
  /** Whether native code may raise it; `cuda/core/error_codes.h` lists exactly these. */
  readonly native?: true;
}

/** Every code, with what a caller needs to decide. A test compares the native ones with `cuda/core/error_codes.h`. */
export const errorCodes = {
  // The caller's mistakes.
  OPTION_INVALID: { retryable: false, phase: 'setup' },
  ARGUMENT_INVALID: { retryable: false, phase: 'setup', native: true },
  ENGINE_CONTEXT_INVALID: { retryable: false, phase: 'setup' },
  NOT_SET_UP: { retryable: false, phase: 'setup' },
  ALREADY_SET_UP: { retryable: false, phase: 'setup' },
  WRONG_ROLE: { retryable: false, phase: 'setup' },
  NOT_RANK_ZERO: { retryable: false, phase: 'decode' },
  LOG_CARRIER_MIXED: { retryable: false, phase: 'decode' },
  CLOSED: { retryable: false, phase: 'setup', native: true },
  DUPLICATE_REQUEST: { retryable: false, phase: 'decode' },
  UNKNOWN_REQUEST: { retryable: false, phase: 'decode' },
  PROMPT_ON_DECODE: { retryable: false, phase: 'decode' },
  PREFIX_CACHING_REQUIRED: { retryable: false, phase: 'setup', native: true },
  SSM_CACHE_ON_DECODE: { retryable: false, phase: 'setup' },
  // The ranks of one instance.
  RANK_SETUP_FAILED: { retryable: false, phase: 'setup' },
  RANK_LOST: { retryable: true, phase: 'decode' },
  // Tickets and what peers say.
  TICKET_INVALID: { retryable: false, phase: 'decode' },
  TICKET_TOO_LARGE: { retryable: false, phase: 'decode' },
  TICKET_VERSION: { retryable: false, phase: 'decode' },
  TICKET_FORGED: { retryable: false, phase: 'decode' },
  MESSAGE_INVALID: { retryable: false, phase: 'decode' },
  INCOMPATIBLE: { retryable: false, phase: 'setup' },
  SSM_METADATA_INVALID: { retryable: false, phase: 'decode' },
  RESUME_TOKENS_INVALID: { retryable: false, phase: 'decode' },
  LOG_PROBS_UNSUPPORTED: { retryable: false, phase: 'decode' },
  BLOCK_COUNT_MISMATCH: { retryable: false, phase: 'decode' },
  PROMPT_MISMATCH: { retryable: false, phase: 'decode' },
  EPOCH_MISMATCH: { retryable: true, phase: 'decode' },
  HANDOFF_EXPIRED: { retryable: true, phase: 'transfer', native: true },
  HANDOFF_UNKNOWN: { retryable: false, phase: 'prefill' },
  HANDOFF_NOT_READY: { retryable: true, phase: 'prefill' },
  HANDOFF_FENCED: { retryable: false, phase: 'prefill' },
  // Capacity and bounds. A shortage that can pass defers and is no error; these are the bounds themselves.
  CAPACITY_NEVER_FITS: { retryable: false, phase: 'decode' },
  DEFERRED_LIMIT: { retryable: true, phase: 'decode' },
  PIN_LIMIT: { retryable: true, phase: 'prefill' },
  // Ends of a request.
  ENGINE_FAILED: { retryable: true, phase: 'decode' },
  ENGINE_CALL_FAILED: { retryable: false, phase: 'decode' },
  ABORTED: { retryable: false, phase: 'decode' },
  QUEUE_DEADLINE: { retryable: true, phase: 'decode' },
  HANDSHAKE_DEADLINE: { retryable: true, phase: 'transfer' },
  TRANSFER_DEADLINE: { retryable: true, phase: 'transfer', native: true },
  TRANSFER_FAILED: { retryable: true, phase: 'transfer', native: true },
  TRANSFER_CANCELLED: { retryable: true, phase: 'transfer', native: true },
  PEER_RANK_FAILED: { retryable: true, phase: 'transfer' },
  PEER_UNREACHABLE: { retryable: true, phase: 'transfer', native: true },
  PEER_LOST: { retryable: true, phase: 'transfer', native: true },
  PEER_REFUSED: { retryable: false, phase: 'transfer', native: true },
  NO_TRANSPORT: { retryable: false, phase: 'setup' },
  TRANSPORT_UNAVAILABLE: { retryable: false, phase: 'setup', native: true },
  // Memory that may still be written.
  MEMORY_IN_DOUBT: { retryable: true, phase: 'decode' },
  HANDOFF_STILL_PINNED: { retryable: true, phase: 'prefill' },
  REQUESTS_OPEN: { retryable: true, phase: 'decode' },
  DRAIN_DEADLINE: { retryable: true, phase: 'decode' },
  ENGINE_FATAL: { retryable: false, phase: 'transfer' },
  DIVERGENCE: { retryable: false, phase: 'decode' },
  COMPLETION_CONTRADICTED: { retryable: false, phase: 'decode' },
  // The copy program.
  PROGRAM_NOT_NORMAL: { retryable: false, phase: 'transfer', native: true },
  PROGRAM_OUT_OF_RANGE: { retryable: false, phase: 'transfer', native: true },
  PROGRAM_OVERLAP: { retryable: false, phase: 'transfer', native: true },
  PROGRAM_INCOMPLETE: { retryable: false, phase: 'transfer', native: true },
  // Native memory.
  BLOCK_OVER_RELEASED: { retryable: false, phase: 'decode', native: true },
  BLOCK_HASH_CONFLICT: { retryable: false, phase: 'decode', native: true },
  BLOCK_GRAPH_CYCLE: { retryable: false, phase: 'decode', native: true },
  SLOT_OUT_OF_RANGE: { retryable: false, phase: 'decode', native: true },
  SLOT_POOL_OVERFLOW: { retryable: false, phase: 'decode', native: true },
  SLOT_NOT_BOUND: { retryable: false, phase: 'decode', native: true },
  ZEROMQ_UNAVAILABLE: { retryable: false, phase: 'setup' },
  NATIVE_UNAVAILABLE: { retryable: false, phase: 'setup' },
  NATIVE_SYSTEM: { retryable: true, phase: 'setup', native: true },
  NATIVE_LIMIT: { retryable: true, phase: 'transfer', native: true },
  INVARIANT: { retryable: false, phase: 'decode', native: true },
} as const satisfies Record<string, CodeEntry>;

/** The code of a `HandoffError`: stable, and the only thing to match on. */
export type HandoffErrorCode = keyof typeof errorCodes;

/** What an error says beyond its code and message. */
export interface HandoffErrorInit {
  /** Defaults to the code's own phase. */
  readonly phase?: HandoffPhase;
  /** Whether nothing of this handoff reads the source any more. Defaults to true. */
  readonly sourceSafe?: boolean;
  /** Whether nothing of this handoff can write the target any more. Defaults to true. */
  readonly targetSafe?: boolean;
  readonly details?: Readonly<Record<string, unknown>>;
  readonly cause?: unknown;
}

const brand = Symbol.for('state-handoff.HandoffError');

/** The SDK's only error class. Match on {@link HandoffError.code}, never on the message. */
export class HandoffError extends Error {
  readonly code: HandoffErrorCode;
  /** Whether the same request may succeed if it is tried again. */
  readonly retryable: boolean;
  readonly phase: HandoffPhase;
  readonly sourceSafe: boolean;
  readonly targetSafe: boolean;
  readonly details: Readonly<Record<string, unknown>>;

  constructor(code: HandoffErrorCode, message: string, init: HandoffErrorInit = {}) {
    super(message, init.cause === undefined ? undefined : { cause: init.cause });
    this.name = 'HandoffError';
    this.code = code;
    this.retryable = errorCodes[code].retryable;
    this.phase = init.phase ?? errorCodes[code].phase;
    this.sourceSafe = init.sourceSafe ?? true;
    this.targetSafe = init.targetSafe ?? true;
    this.details = init.details ?? {};
    Object.defineProperty(this, brand, { value: true });
  }
}

/** True for a {@link HandoffError} of any copy of this package and any realm. */
export function isHandoffError(value: unknown): value is HandoffError {
  return typeof value === 'object' && value !== null && (value as Record<symbol, unknown>)[brand] === true;
}

/**
 * `<path>: expected <what>, got <what>`, the one wording for bad input.
 *
 * @param path - the field, as the caller wrote it, for example `options.deadlines.queueMs`.
 */
export function argumentError(
  path: string,
  expected: string,
  got: unknown,
  code: HandoffErrorCode = 'ARGUMENT_INVALID',
): HandoffError {
  return new HandoffError(code, `${path}: expected ${expected}, got ${describeValue(got)}`, { details: { path } });
}

/** A short, bounded rendering of any value for an error message. */
export function describeValue(value: unknown): string {
  if (typeof value === 'string')
    return value.length > 64 ? `${JSON.stringify(value.slice(0, 64))}…` : JSON.stringify(value);
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value === 'function') return 'a function';
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'object' && value !== null) {
    const name = (Object.getPrototypeOf(value) as { constructor?: { name?: string } } | null)?.constructor?.name;
    return name === undefined || name === 'Object' ? 'an object' : `a ${name}`;
  }
  return String(value);
}
