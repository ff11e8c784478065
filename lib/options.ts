/**
 * Options of `StateHandoff`: one table checks and fills them; everything after `compileOptions` sees a complete object.
 */
import { randomUUID } from 'node:crypto';
import { systemClock, type Clock } from './clock.js';
import { argumentError } from './errors.js';
import { isRecord } from './json.js';

/** Ends of patience. A deadline ends a request; it never gives memory back. `null` means no deadline. */
export interface DeadlineOptions {
  /** Decode: how long a handoff may wait for capacity. Default 120,000 ms. */
  readonly queueMs?: number | null;
  /** Decode: how long connecting and fences may take. Default 10,000 ms. */
  readonly handshakeMs?: number | null;
  /** Decode: from reservation to agreement of all ranks. Default 30,000 ms. */
  readonly transferMs?: number | null;
  /**
   * Prefill: how long a pin may stay. It ends only pins whose late readers are noticed (generations); others are shown
   * as overdue. Default 480,000 ms.
   */
  readonly pinMs?: number | null;
}

/** Bounds. A shortage below a bound defers; what exceeds the bound itself is refused. */
export interface LimitOptions {
  /** Prefill: handoffs pinned or permitted at once. Default 1,024. */
  readonly maxPinnedHandoffs?: number;
  /** Prefill: blocks pinned or permitted at once. Default: all usable blocks. */
  readonly maxPinnedBlocks?: number;
  /** Decode: handoffs waiting for capacity. Default 65,536. */
  readonly maxDeferred?: number;
  /** Decode: bytes of imports between reservation and decision. Default: unbounded. */
  readonly maxInFlightBytes?: number;
}

/** Options of `new StateHandoff`; all have defaults. */
export interface StateHandoffOptions {
  /** Name of the engine replica, the same on all its ranks and across restarts. Default: a random one. */
  readonly instance?: string;
  /** Differs after every restart, the same on all ranks. Default: a random one (single rank only). */
  readonly incarnation?: string;
  /** Epoch of the weights; a handoff of another epoch is refused. Default 0. */
  readonly epoch?: number;
  /**
   * A secret of at least 16 characters, the same on prefill and decode. Prefill seals its tickets with it; decode refuses
   * every ticket without its seal (`TICKET_FORGED`). Without one tickets are believed. Default: none.
   */
  readonly ticketSecret?: string | null;
  readonly deadlines?: DeadlineOptions;
  readonly limits?: LimitOptions;
  readonly clock?: Clock;
}

export interface CompiledOptions {
  readonly instance: string;
  readonly incarnation: string;
  /** Moves with `setGenerationEpoch`. */
  epoch: number;
  readonly ticketSecret: string | null;
  readonly deadlines: {
    readonly queueMs: number;
    readonly handshakeMs: number;
    readonly transferMs: number;
    readonly pinMs: number;
  };
  readonly limits: {
    readonly maxPinnedHandoffs: number;
    readonly maxPinnedBlocks: number;
    readonly maxDeferred: number;
    readonly maxInFlightBytes: number;
  };
  readonly clock: Clock;
}

interface NumberRule {
  readonly fallback: number;
  readonly minimum: number;
  readonly nullable: boolean;
}

const deadlineRules: Readonly<Record<keyof DeadlineOptions, NumberRule>> = {
  queueMs: { fallback: 120_000, minimum: 0, nullable: true },
  handshakeMs: { fallback: 10_000, minimum: 1, nullable: true },
  transferMs: { fallback: 30_000, minimum: 1, nullable: true },
  pinMs: { fallback: 480_000, minimum: 1, nullable: true },
};

const limitRules = (usableBlocks: number): Readonly<Record<keyof LimitOptions, NumberRule>> => ({
  maxPinnedHandoffs: { fallback: 1024, minimum: 1, nullable: false },
  maxPinnedBlocks: { fallback: usableBlocks, minimum: 1, nullable: false },
  maxDeferred: { fallback: 65_536, minimum: 0, nullable: false },
  maxInFlightBytes: { fallback: Infinity, minimum: 1, nullable: false },
});

const optionNames: ReadonlySet<string> = new Set([
  ...['instance', 'incarnation', 'epoch', 'ticketSecret', 'deadlines', 'limits', 'clock'],
]);

/** @throws `OPTION_INVALID` naming the option, what was expected and what came */
export function compileOptions(options: StateHandoffOptions, usableBlocks: number): CompiledOptions {
  const given: unknown = options;
  if (!isRecord(given)) throw optionError('options', 'an object', given);
  requireKnownKeys('options', options, optionNames);
  const epoch = options.epoch ?? 0;
  if (!Number.isSafeInteger(epoch) || epoch < 0) throw optionError('options.epoch', 'an integer of at least 0', epoch);
  const clock = options.clock ?? systemClock;
  if (typeof (clock as Partial<Clock>).now !== 'function')
    throw optionError('options.clock', 'an object with now()', clock);
  return {
    instance: name('options.instance', options.instance),
    incarnation: name('options.incarnation', options.incarnation),
    epoch,
    ticketSecret: secret(options.ticketSecret),
    deadlines: numbers('options.deadlines', options.deadlines ?? {}, deadlineRules),
    limits: numbers('options.limits', options.limits ?? {}, limitRules(usableBlocks)),
    clock,
  };
}

function name(path: string, value: string | undefined): string {
  if (value === undefined) return randomUUID();
  if (typeof value !== 'string' || !/^[\w.:@-]{1,128}$/.test(value)) {
    throw optionError(path, '1 to 128 letters, digits or any of . _ : @ -', value);
  }
  return value;
}

function secret(value: string | null | undefined): string | null {
  if (value === undefined || value === null) return null;
  // What came is not shown: it may be a secret with a typing error.
  if (typeof value !== 'string' || value.length < 16)
    throw optionError(
      'options.ticketSecret',
      'at least 16 characters',
      typeof value === 'string' ? 'fewer' : typeof value,
    );
  return value;
}

function numbers<K extends string>(
  path: string,
  given: Readonly<Partial<Record<K, number | null>>>,
  rules: Readonly<Record<K, NumberRule>>,
): Record<K, number> {
  if (typeof given !== 'object' || given === null) throw optionError(path, 'an object', given);
  requireKnownKeys(path, given, new Set(Object.keys(rules)));
  const compiled = {} as Record<K, number>;
  for (const key of Object.keys(rules) as K[]) {
    const rule = rules[key];
    const value = given[key];
    if (value === undefined) compiled[key] = rule.fallback;
    else if (value === null && rule.nullable) compiled[key] = Infinity;
    else if (typeof value === 'number' && value >= rule.minimum) compiled[key] = value;
    else
      throw optionError(
        `${path}.${key}`,
        `a number of at least ${rule.minimum}${rule.nullable ? ' or null' : ''}`,
        value,
      );
  }
  return compiled;
}

function requireKnownKeys(path: string, given: object, known: ReadonlySet<string>): void {
  for (const key of Object.keys(given)) {
    if (!known.has(key)) throw optionError(`${path}.${key}`, `one of ${[...known].join(', ')}`, key);
  }
}

function optionError(path: string, expected: string, got: unknown): Error {
  return argumentError(path, expected, got, 'OPTION_INVALID');
}
