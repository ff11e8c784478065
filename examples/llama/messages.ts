/**
 * What the processes of the llama.cpp demo say to each other: JSON over Node's IPC channel, in the form of the main demo
 * (examples/demo/messages.ts), which checks every message at both ends. Tensors never travel here; tickets do.
 */
import {
  answer,
  decodeAnswers as engineAnswers,
  flag,
  handoff,
  id,
  integer,
  list,
  number,
  oneOf,
  record,
  text,
  tokens,
  type Schema,
} from '../demo/messages.js';

const ticket = text(8 * 1024 * 1024);
/** SHA-256 of one row of logits, in hexadecimal. */
const digest = text(64);
const milliseconds = number;
const token31 = integer(0, 2 ** 31 - 1);

const engine = record({
  /** Where llama.cpp's libraries lie. */
  libraryFolder: text(4096),
  modelFile: text(4096),
  /** Identity of the model: name and SHA-256 of the file. */
  model: text(256),
  dtype: oneOf('float16', 'bfloat16', 'float32'),
  blockTokens: integer(1, 4096),
  /** Blocks of registered memory, the dummy block included. */
  blocks: integer(2, 1 << 20),
  lanes: integer(1, 64),
  /** Decode: all lanes in one cache and one evaluation. */
  shared: flag,
  maxSequenceLength: integer(64, 1 << 17),
  /** Prompt tokens of one evaluation. */
  chunk: integer(1, 4096),
  transport: text(64),
  /** Decode: flips one bit of the first state that lands, to show that a wrong byte is found out. */
  corrupt: flag,
});
/** What a worker builds its engine from. */
export type EngineSetting = ReturnType<typeof engine>;

/** An instance whose process has ended and cannot come back. */
const instance = { instance: text(256), incarnation: text(256) };
const command = { start: { engine }, stop: {} } satisfies Schema;
/** Its requests come from this coordinator from now on. Answered by `joined`. */
const join = { address: text(256) };

/** Router to prefill. */
export const prefillCommands = {
  ...command,
  /** `owner` is the decode instance that the result is for. */
  prompt: { id, prompt: tokens, owner: text(513) },
  abort: { id },
  release: { handoff },
  join,
  attestDead: instance,
  /** Answered by `memory`. */
  measure: {},
} satisfies Schema;

/** Prefill to router. */
export const prefillAnswers = {
  ...answer,
  prefilled: {
    id,
    ticket,
    firstToken: token31,
    /** Of the logits that the first token was drawn from. */
    logits: digest,
    computedTokens: integer(0),
    savedBlocks: integer(0),
    evaluateMs: milliseconds,
    saveMs: milliseconds,
  },
  failed: { id, code: text(64), message: text(4096) },
  released: { id },
  joined: {},
  memory: { residentBytes: integer(0) },
} satisfies Schema;

/** Router to decode. */
export const decodeCommands = {
  ...command,
  handoff: { id, prompt: tokens, limit: integer(0), ticket },
  abort: { id },
  join,
  attestDead: instance,
  /** Answered by `memory`. */
  measure: {},
} satisfies Schema;

const { deferred, reserved, landed, admitted, token, readDone, failed } = engineAnswers;

/** One operation on llama.cpp's memory (decode-engine.ts), flat; `rows` is empty unless it is an evaluation. */
const operation = record({
  what: oneOf('keep', 'load', 'evaluate'),
  lane: integer(0),
  id,
  from: integer(0),
  to: integer(0),
  rows: list(record({ lane: integer(0), id, token: token31, position: integer(0), drawn: token31 }), 64),
});
/** What a replay is made of. */
export type RecordedOperation = ReturnType<typeof operation>;

/** Decode to router. */
export const decodeAnswers = {
  ...answer,
  deferred,
  reserved,
  landed,
  admitted,
  token,
  finished: {
    id,
    tokens,
    reason: oneOf('length', 'stop'),
    /** Of the tokens that were drawn here: all but the first. */
    logits: list(digest, 1 << 16),
    keptTokens: integer(0),
    loads: integer(0),
    loadMs: milliseconds,
    /** Tokens that this process has evaluated since its start. */
    evaluatedTokens: integer(0),
  },
  failed,
  readDone,
  /** Lanes in one cache only: what was done since the last message of this kind. */
  operations: { operations: list(operation, 1 << 12) },
  joined: {},
  /** At the end: all tokens that were evaluated, and how many of them lay in a prompt. */
  evaluated: { tokens: integer(0), promptTokens: integer(0) },
  memory: { residentBytes: integer(0) },
} satisfies Schema;

/** Router to the engine that compares. */
export const referenceCommands = {
  ...command,
  /** Computes one request alone. */
  run: { id, prompt: tokens, limit: integer(0) },
  /** Does again what decode did, computing each prompt where decode loaded it. */
  replay: { prompts: list(record({ id, tokens }), 1 << 12), operations: list(operation, 1 << 20) },
} satisfies Schema;

/** From the engine that compares. */
export const referenceAnswers = {
  ...answer,
  result: { id, tokens, reason: oneOf('length', 'stop'), logits: list(digest, 1 << 16), evaluateMs: milliseconds },
  /** Given the same tokens before it, how many of the tokens that decode drew this engine draws, too. */
  replayed: { requests: list(record({ id, drawn: integer(0), agreeing: integer(0) }), 1 << 12) },
} satisfies Schema;
