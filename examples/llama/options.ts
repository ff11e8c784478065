/** The command line of the llama.cpp demo, read and checked before anything is fetched or started. */
import { parseArgs } from 'node:util';
import { badInput } from '../engine/bad-input.js';

export interface LlamaDemoOptions {
  /** A GGUF file; null: the pinned one. */
  readonly modelFile: string | null;
  /** Empty: the demo's own questions. */
  readonly questions: readonly string[];
  /** Tokens to generate a request at most. */
  readonly tokens: number;
  readonly blockTokens: number;
  readonly batched: boolean;
  /** Requests go through the coordinator that ships with the package. */
  readonly coordinator: boolean;
  readonly json: boolean;
  readonly help: boolean;
  /** Not in the help: flips one bit of transferred state, so that a test sees that it is noticed. */
  readonly corrupt: boolean;
}

export const help = `state-handoff demo with llama.cpp: one process prefills, another decodes, a third one checks

usage: npm run demo:llama -- [flags]

  --model FILE        a GGUF file of your own (attention in every layer, with a chat template); default: SmolLM2-135M-Instruct
  --prompt TEXT       ask this instead of the demo's own questions; may be repeated
  --tokens N          tokens to generate a request, 2 to 512; default 48
  --block-size N      tokens per block, 16 to 64; default 32
  --batched           evaluate the tokens of all running requests together
  --coordinator       behind the coordinator that ships with the package, a process of its own
  --json              print the result as JSON, and progress to standard error
  --help              print this

Engine and model are fetched once, checked by SHA-256, and kept in ~/.cache/state-handoff (or in STATE_HANDOFF_CACHE).
Exit status: 0 when everything went as expected and, unless batched, all output is identical to that of one engine without
a handoff; 1 when not; 2 for a flag that makes no sense, or when engine or model cannot be had; 141 when nobody
reads its output to the end.
`;

/** @throws `ARGUMENT_INVALID` naming the flag, what was expected and what came */
export function parseOptions(argv: readonly string[]): LlamaDemoOptions {
  const { values } = readFlags(argv);
  const integer = (name: 'tokens' | 'block-size', fallback: number, minimum: number, maximum: number): number => {
    const text = values[name];
    if (text === undefined) return fallback;
    const number = /^\d{1,6}$/.test(text) ? Number(text) : NaN;
    if (number >= minimum && number <= maximum) return number;
    throw badInput(`--${name}`, `an integer in [${minimum}, ${maximum}]`, text);
  };
  const questions = values.prompt ?? [];
  if (questions.some((question) => question.trim() === '')) throw badInput('--prompt', 'a text that is not empty', '');
  return {
    modelFile: values.model ?? null,
    questions,
    tokens: integer('tokens', 48, 2, 512),
    blockTokens: integer('block-size', 32, 16, 64),
    batched: values.batched ?? false,
    coordinator: values.coordinator ?? false,
    json: values.json ?? false,
    help: values.help ?? false,
    corrupt: values.corrupt ?? false,
  };
}

function readFlags(argv: readonly string[]) {
  const flag = { type: 'boolean' } as const;
  const text = { type: 'string' } as const;
  try {
    return parseArgs({
      args: [...argv],
      options: {
        model: text,
        prompt: { ...text, multiple: true },
        tokens: text,
        'block-size': text,
        batched: flag,
        coordinator: flag,
        json: flag,
        help: flag,
        corrupt: flag,
      },
    });
  } catch (error) {
    throw badInput('flags', 'those of --help', (error as Error).message);
  }
}
