/** The command line of the demo: one table of flags, read and checked before anything is started. */
import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import type { ModelKind, RankShape } from '../engine/index.js';
import { badInput } from '../engine/bad-input.js';
import { checkEngines, enginesOf } from './engine-shapes.js';
import { demoModel } from './engine-setting.js';

/** A prompt of the user's own. */
export interface GivenPrompt {
  readonly name: string;
  readonly text: string;
}

export interface DemoOptions {
  readonly models: readonly ModelKind[];
  /** Null: the model's own number. */
  readonly layers: number | null;
  /** Blocks of the decode engine's pool. */
  readonly blocks: number;
  readonly blockSize: number;
  /** Proposals beside each token; null: none for `attention` and `moe`, 2 for `hybrid`. */
  readonly proposals: number | null;
  readonly seed: number;
  readonly tokens: number;
  readonly transport: string;
  /** Each entry is one engine, or several that share experts. */
  readonly prefill: readonly RankShape[];
  readonly decode: readonly RankShape[];
  /** The shipped coordinator, as a process, in place of the router's own relaying. */
  readonly coordinator: boolean;
  /** Kills a prefill and a decode engine in the middle of the run. */
  readonly chaos: boolean;
  /** SSM groups of a hybrid model: as many as the widest tensor parallelism needs. */
  readonly ssmGroups: number;
  /** Where to draw the plan. */
  readonly svg: string | null;
  /** Empty: the demo's own scenario. */
  readonly prompts: readonly GivenPrompt[];
  readonly json: boolean;
  readonly help: boolean;
  /** Not in the help: flips one bit of transferred state, so that a test sees that it is noticed. */
  readonly corrupt: boolean;
}

const kinds: readonly ModelKind[] = ['attention', 'hybrid', 'moe'];
const transports = ['host', 'nixl', 'auto'];

export const help = `state-handoff demo: a router, a prefill process and a decode process on this machine

usage: npm run demo -- [flags]

  --model KIND        attention, hybrid (attention + SSM) or moe; default: attention, then hybrid
  --layers N          layers of the model, 1 to 16 (hybrid, moe: at least 2); default 4
  --proposals N       tokens that the model proposes ahead (MTP), 0 to 4; default 0, hybrid 2
  --blocks N          blocks of the decode engine's pool, 16 to 1024; default 48
  --block-size N      tokens per block, 2 to 256; default 16
  --tokens N          tokens to generate a request, 2 to 256; default 24
  --seed N            of the model's weights, 0 to 4294967295; default 1
  --transport NAME    ${transports.join(', ')}; default host
  --prefill SIZES     ranks of the prefill engine, a process each: tp=2,pp=1 (tensor and pipeline parallel), and ep, dp,
                      expt_tp for experts over dp engines in lockstep; default one rank
  --decode SIZES      the same for the decode engine; several engines: tp=2+pp=2
  --prefill-stages N,N
  --decode-stages N,N layers of each pipeline stage of that side, 0 allowed; default as even as can be
  --inference-shards SPEC
                      both sides at once: role=prefill,tp=2+role=decode,pp=2
  --coordinator       behind the shipped coordinator, a process of its own; by default with two engines a side
  --chaos             with --coordinator: a prefill and a decode engine are killed in the middle of the run
  --svg FILE          draw which rank gives what to which rank
  --prompt TEXT       run this prompt instead of the scenario; may be repeated
  --prompt-file FILE  run the text of this file instead of the scenario; may be repeated
  --json              print the result as JSON, and progress to standard error
  --help              print this

Exit status: 0 when everything went as expected and all output is identical to that of one engine without a handoff;
1 when not; 2 for a flag that makes no sense; 141 when nobody reads its output to the end.
`;

const flags = ['--json', '--help', '--coordinator', '--chaos', '--corrupt'] as const;
const integers = {
  '--layers': [1, 16],
  '--proposals': [0, 4],
  '--blocks': [16, 1024],
  '--block-size': [2, 256],
  '--tokens': [2, 256],
  '--seed': [0, 2 ** 32 - 1],
} as const;
const names = { '--model': kinds, '--transport': transports } as const;
const texts = ['--prefill', '--decode', '--prefill-stages', '--decode-stages', '--inference-shards', '--svg'];
const valued = [...Object.keys(integers), ...Object.keys(names), ...texts, '--prompt', '--prompt-file'];

/**
 * @param argv - the arguments after the program's name; `--flag value` and `--flag=value` mean the same
 * @throws `ARGUMENT_INVALID` naming the flag, what was expected and what came
 */
export function parseOptions(argv: readonly string[]): DemoOptions {
  const given = new Map<string, string>();
  const prompts: GivenPrompt[] = [];
  for (let index = 0; index < argv.length; index += 1) {
    const [name = '', inline] = splitOnce(argv[index]!);
    if ((flags as readonly string[]).includes(name)) {
      if (inline !== undefined) throw badInput(name, 'no value', inline);
      given.set(name, '');
      continue;
    }
    if (!valued.includes(name)) {
      const known = [...valued, ...flags].filter((each) => each !== '--corrupt').join(', ');
      throw badInput('flag', `one of ${known}`, argv[index]);
    }
    const value = inline ?? argv[(index += 1)];
    if (value === undefined || (inline === undefined && value.startsWith('--'))) {
      throw badInput(name, 'a value', value ?? 'nothing');
    }
    if (name === '--prompt') prompts.push({ name: `prompt-${prompts.length + 1}`, text: nonEmpty(name, value) });
    else if (name === '--prompt-file') prompts.push({ name: basename(value), text: readPrompt(value) });
    else if (given.has(name)) throw badInput(name, 'at most one value', value);
    else given.set(name, value);
  }
  const integer = (name: keyof typeof integers, fallback: number): number =>
    integerFlag(name, given.get(name), fallback);
  const model = nameFlag<ModelKind>('--model', kinds, given.get('--model'));
  const models: readonly ModelKind[] = model === null ? ['attention', 'hybrid'] : [model];
  const layers = given.has('--layers') ? integer('--layers', 0) : null;
  if (layers === 1 && models.some((kind) => kind !== 'attention')) {
    throw badInput('--layers', `at least 2 for ${models.join(' and ')}`, layers);
  }
  const coordinator = given.has('--coordinator');
  const chaos = given.has('--chaos');
  if (chaos && !coordinator) throw badInput('--chaos', '--coordinator beside it', 'nothing');
  if (chaos && prompts.length > 0) throw badInput('--chaos', "the demo's own prompts", '--prompt');
  const engines = enginesOf(given, coordinator ? 2 : 1);
  for (const [side, shapes] of Object.entries(engines)) {
    if (chaos && shapes.length < 2) throw badInput(`--${side}`, 'at least two engines for --chaos', shapes.length);
  }
  const ssmGroups = Math.max(2, ...[...engines.prefill, ...engines.decode].map(({ tp }) => tp));
  const seed = integer('--seed', 1);
  for (const kind of models) checkEngines(demoModel({ kind, layers, seed, proposals: 0, ssmGroups }), engines);
  return {
    models,
    layers,
    ...engines,
    coordinator,
    chaos,
    ssmGroups,
    svg: given.get('--svg') ?? null,
    blocks: integer('--blocks', 48),
    blockSize: integer('--block-size', 16),
    proposals: given.has('--proposals') ? integer('--proposals', 0) : null,
    seed,
    tokens: integer('--tokens', 24),
    transport: nameFlag('--transport', transports, given.get('--transport')) ?? 'host',
    prompts,
    json: given.has('--json'),
    help: given.has('--help'),
    corrupt: given.has('--corrupt'),
  };
}

function splitOnce(argument: string): [string, string?] {
  const at = argument.startsWith('--') ? argument.indexOf('=') : -1;
  return at < 0 ? [argument] : [argument.slice(0, at), argument.slice(at + 1)];
}

function integerFlag(name: keyof typeof integers, value: string | undefined, fallback: number): number {
  if (value === undefined) return fallback;
  const [minimum, maximum] = integers[name];
  const number = /^\d{1,10}$/.test(value) ? Number(value) : NaN;
  if (!(number >= minimum && number <= maximum)) throw badInput(name, `an integer in [${minimum}, ${maximum}]`, value);
  return number;
}

function nameFlag<Name extends string>(flag: string, known: readonly Name[], value: string | undefined): Name | null {
  if (value === undefined) return null;
  const name = known.find((each) => each === value);
  if (name === undefined)
    throw badInput(flag, known.length === 1 ? `'${known[0]}'` : `one of ${known.join(', ')}`, value);
  return name;
}

function nonEmpty(flag: string, text: string): string {
  if (text.length === 0) throw badInput(flag, 'a text that is not empty', text);
  return text;
}

function readPrompt(file: string): string {
  try {
    return nonEmpty('--prompt-file', readFileSync(file, 'utf8'));
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ARGUMENT_INVALID') throw error;
    throw badInput('--prompt-file', `a file that can be read (${code ?? 'unknown error'})`, file);
  }
}
