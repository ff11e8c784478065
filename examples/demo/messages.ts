/**
 * What the router and the workers of the demo say to each other: JSON over Node's IPC channel, one table of fields a message. Both
 * ends check what comes against the table; a message that does not fit ends the process that got it, with the field
 * named. Tensors never travel here; a ticket does, as the text of `encodeTicket`.
 */
import { badInput } from '../engine/bad-input.js';

/** Checks one field and gives it its type. @throws `ARGUMENT_INVALID` naming the field */
type Check<Value> = (value: unknown, path: string) => Value;
type Fields = Readonly<Record<string, Check<unknown>>>;
export type Schema = Readonly<Record<string, Fields>>;
type Values<F extends Fields> = { readonly [Name in keyof F]: ReturnType<F[Name]> };

/** Any message of a schema. */
export type Message<S extends Schema> = {
  [Kind in keyof S]: { readonly kind: Kind } & Values<S[Kind]>;
}[keyof S];

export const integer =
  (minimum: number, maximum = Number.MAX_SAFE_INTEGER): Check<number> =>
  (value, path) => {
    if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < minimum || value > maximum) {
      throw badInput(path, `an integer in [${minimum}, ${maximum}]`, value);
    }
    return value;
  };
export const number: Check<number> = (value, path) => {
  if (typeof value !== 'number' || !Number.isFinite(value)) throw badInput(path, 'a number', value);
  return value;
};
export const text =
  (lengthMax: number): Check<string> =>
  (value, path) => {
    if (typeof value !== 'string' || value.length > lengthMax) {
      throw badInput(path, `text of at most ${lengthMax} characters`, value);
    }
    return value;
  };
export const flag: Check<boolean> = (value, path) => {
  if (typeof value !== 'boolean') throw badInput(path, 'true or false', value);
  return value;
};
export const oneOf =
  <Name extends string>(...names: readonly Name[]): Check<Name> =>
  (value, path) => {
    const name = names.find((each) => each === value);
    if (name === undefined) throw badInput(path, `one of ${names.join(', ')}`, value);
    return name;
  };
export const nullable =
  <Value>(check: Check<Value>): Check<Value | null> =>
  (value, path) =>
    value === null ? null : check(value, path);
export const list =
  <Value>(check: Check<Value>, lengthMax: number): Check<readonly Value[]> =>
  (value, path) => {
    if (!Array.isArray(value) || value.length > lengthMax) {
      throw badInput(path, `a list of at most ${lengthMax}`, value);
    }
    return value.map((each: unknown, index) => check(each, `${path}[${index}]`));
  };
export const record =
  <F extends Fields>(fields: F): Check<Values<F>> =>
  (value, path) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) throw badInput(path, 'a map', value);
    for (const name of Object.keys(value)) {
      if (name !== 'kind' && !Object.hasOwn(fields, name)) throw badInput(`${path}.${name}`, 'no such field', name);
    }
    const entries = Object.entries(fields).map(([name, check]) => [
      name,
      check((value as Record<string, unknown>)[name], `${path}.${name}`),
    ]);
    return Object.fromEntries(entries) as Values<F>;
  };
/** Checked by the library's own parser (`parseInstanceCard`). */
export const foreign: Check<unknown> = (value) => value;

const tokensMax = 1 << 20;
export const id = text(64);
const token = integer(0, 2 ** 31 - 1);
export const tokens = list(token, tokensMax);
const logProbs = nullable(list(number, tokensMax));
/** SHA-256 of one row of logits, in hexadecimal. */
const digests = list(text(64), tokensMax);
export const handoff = record({
  instance: text(256),
  incarnation: text(256),
  handoffId: integer(0),
  epoch: integer(0),
});

/** A rank among those of one engine, or of several that share experts. */
const ranks = record({
  tp: integer(1, 64),
  pp: integer(1, 64),
  ep: integer(1, 64),
  expertTp: integer(1, 64),
  stages: nullable(list(integer(0, 64), 64)),
  dp: integer(1, 64),
  rank: integer(0, 4095),
  /** Of the sockets between them. */
  world: text(64),
  secret: text(64),
});

const engine = record({
  kind: oneOf('attention', 'hybrid', 'moe'),
  layers: nullable(integer(1, 64)),
  proposals: integer(0, 16),
  seed: integer(0, 2 ** 32 - 1),
  blockSize: integer(1, 4096),
  /** Blocks of the pool, the dummy block included. */
  blocks: integer(2, 1 << 24),
  /** Prompt tokens of one step. */
  chunk: integer(1, tokensMax),
  maxRequests: integer(1, 4096),
  transport: text(64),
  ssmGroups: integer(1, 64),
  /** Both sides know it; the router that carries the tickets does not have to. */
  ticketSecret: text(64),
  ranks,
  /** Where the coordinator listens; null: the router carries the messages itself. */
  coordinator: nullable(text(256)),
  /** What a coordinator knows the engine by (`--inference-shards`). */
  identity: text(64),
  /** Decode: flips one bit of the first request's state once it has landed, to show that a wrong byte is found out. */
  corrupt: flag,
});
/** What a worker builds its engine from. */
export type EngineSetting = ReturnType<typeof engine>;

const sampling = record({
  num_tokens_to_generate: integer(0, tokensMax),
  termination_id: integer(-1, 2 ** 31 - 1),
});
const command = {
  start: { engine },
  /** Say what is left, close, and end. */
  stop: {},
} satisfies Schema;
/** What every worker says. */
export const answer = {
  /** The card of an instance comes from its leading rank; null from the others. */
  ready: { processId: integer(1), card: foreign },
  stopped: {
    /** Pins, imports and quarantined imports that are still there; nothing, if all is well. */
    leftovers: list(text(512), 4096),
    blocksFree: integer(0),
    blocksUsable: integer(0),
    counters: list(record({ name: text(128), value: number }), 256),
  },
  /** `isConsequence`: because another process is gone. */
  failure: { message: text(4096), isConsequence: flag },
  /** Now and then while it computes: tokens that have run through its model so far. */
  busy: { tokens: integer(0) },
} satisfies Schema;

/** Behind a coordinator: a leading rank knows this request under the coordinator's number, and speaks of it by that. */
const labelled = { labelled: { id, label: id } } satisfies Schema;

/** Router to prefill. */
export const prefillCommands = {
  ...command,
  prompt: { id, prompt: tokens, sampling },
  release: { handoff },
} satisfies Schema;

/** Prefill to router. */
export const prefillAnswers = {
  ...answer,
  ...labelled,
  prefilled: {
    id,
    ticket: text(8 * 1024 * 1024),
    /** Of the first token. */
    logits: text(64),
    blocks: integer(0),
    /** Prompt tokens that were not found in prefill's own cache. */
    computedTokens: integer(0),
  },
  failed: { id, code: text(64), message: text(4096) },
  released: { id },
} satisfies Schema;

/** Router to decode. */
export const decodeCommands = {
  ...command,
  handoff: {
    id,
    prompt: tokens,
    sampling,
    ticket: text(8 * 1024 * 1024),
    /** The engine says that earlier work may still touch the target: the transfer does not start before an abort. */
    holdTransfer: flag,
  },
  abort: { id },
  /** No transfer is held back any more. */
  letGo: {},
} satisfies Schema;

/** Decode to router. */
export const decodeAnswers = {
  ...answer,
  ...labelled,
  /** No room: waits in line. */
  deferred: { id },
  /** Room for all of it is reserved. `turn` counts the looks at the queue; an earlier one means reserved earlier. */
  reserved: { id, turn: integer(0), blocks: integer(0), cachedBlocks: integer(0) },
  /** All bytes of this rank are here. */
  landed: { id, bytes: integer(0), milliseconds: number, transport: text(64) },
  admitted: { id },
  token: { id, index: integer(0), token },
  finished: {
    id,
    tokens,
    reason: oneOf('length', 'stop'),
    logProbs,
  },
  /** How a request that ran here was computed; comes before its result. */
  computed: {
    id,
    /** Of the tokens that were drawn here: all but the first. */
    logits: digests,
    proposed: integer(0),
    accepted: integer(0),
  },
  failed: { id, code: text(64), message: text(4096) },
  /** The source is not read any more. */
  readDone: { id, handoff },
} satisfies Schema;

/** Router to the engine that compares. */
export const referenceCommands = { ...command, run: { id, prompt: tokens, sampling } } satisfies Schema;

/** From the engine that compares. */
export const referenceAnswers = {
  ...answer,
  result: { id, tokens, reason: oneOf('length', 'stop'), logProbs, logits: digests },
} satisfies Schema;

/** @throws `ARGUMENT_INVALID` naming the field, what was expected and what came */
export function parseMessage<S extends Schema>(schema: S, value: unknown, path: string): Message<S> {
  const kind = (value as { kind?: unknown } | null)?.kind;
  if (typeof kind !== 'string' || !Object.hasOwn(schema, kind)) {
    throw badInput(`${path}.kind`, `one of ${Object.keys(schema).join(', ')}`, kind);
  }
  return { kind, ...record(schema[kind]!)(value, `${path}.${kind}`) } as unknown as Message<S>;
}
