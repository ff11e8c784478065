/**
 * What the demo does with one model, and what must come of it: stages of requests that are submitted at once. Pure:
 * from options and texts to requests; the router carries them out and checks what each one expects.
 */
import { encode, type ModelKind } from '../engine/index.js';
import { badInput } from '../engine/bad-input.js';
import type { DemoOptions } from './options.js';

export interface Expectation {
  readonly end: 'length' | 'stop' | 'aborted';
  /** Generated tokens. */
  readonly tokens: number;
  /** Prompt blocks that decode has already; null: whatever. */
  readonly cachedBlocks: number | null;
  /** Whether a forward pass runs on decode. */
  readonly runsOnDecode: boolean;
}

export interface DemoRequest {
  readonly id: string;
  /** What a reader is to see. */
  readonly shows: string;
  readonly prompt: Int32Array;
  readonly tokens: number;
  /** Ends at the first token of that earlier request, which has the same prompt. */
  readonly stopsLike: string | null;
  /** Aborted once its target is reserved, while its transfer waits for the decode engine. */
  readonly aborts: boolean;
  /** Behind a coordinator: its transfer waits until the router lets go. */
  readonly held: boolean;
  /** It may lose an engine; then it must fail with that reason. */
  readonly mayFail: boolean;
  readonly expects: Expectation;
}

export interface Stage {
  readonly title: string;
  readonly requests: readonly DemoRequest[];
  /** Prefilled first, then handed over in one go. */
  readonly together: boolean;
  /** The next one is submitted when the one before is over. */
  readonly oneByOne: boolean;
  /** A prefill and a decode engine are killed once those that are held have arrived and another one generates. */
  readonly kills: boolean;
  /** At least so many must wait for room, and all get theirs in the order they came. */
  readonly waitingMin: number;
}

export interface Scenario {
  readonly kind: ModelKind;
  readonly proposals: number;
  readonly blocks: number;
  readonly chunk: number;
  readonly maxRequests: number;
  readonly stages: readonly Stage[];
}

/** Texts by file name, without the ending. */
export type Texts = ReadonlyMap<string, string>;

const maxRequests = 8;

/** @throws `ARGUMENT_INVALID` when the pool is too small for the scenario, or a prompt too long */
export function scenarioOf(kind: ModelKind, options: DemoOptions, texts: Texts): Scenario {
  const proposals = options.proposals ?? (kind === 'hybrid' ? 2 : 0);
  return options.prompts.length > 0
    ? givenPrompts(kind, options, proposals)
    : ownPrompts(kind, options, proposals, texts);
}

/** Blocks that generating takes beyond a prompt, counted generously. */
function growthOf({ tokens, blockSize }: DemoOptions, proposals: number): number {
  return Math.ceil((tokens + proposals + 1) / blockSize) + 1;
}

function givenPrompts(kind: ModelKind, options: DemoOptions, proposals: number): Scenario {
  const { blockSize, tokens } = options;
  const growth = growthOf(options, proposals);
  const requests = options.prompts.map(({ name, text }, index): DemoRequest => {
    const prompt = encode(text, true);
    if (prompt.length > 4096)
      throw badInput(`prompt ${name}`, 'at most 4096 tokens (bytes of UTF-8, and one to begin with)', prompt.length);
    return {
      id: `${index + 1}-${name}`.slice(0, 24),
      shows: 'your prompt',
      prompt,
      tokens,
      stopsLike: null,
      aborts: false,
      held: false,
      mayFail: false,
      expects: { end: 'length', tokens, cachedBlocks: null, runsOnDecode: true },
    };
  });
  const largest = Math.max(...requests.map(({ prompt }) => Math.ceil(prompt.length / blockSize))) + growth;
  return {
    kind,
    proposals,
    blocks: Math.max(options.blocks, 1 + largest),
    chunk: 128,
    maxRequests,
    stages: [
      { title: 'your prompts, all at once', requests, together: false, oneByOne: false, kills: false, waitingMin: 0 },
    ],
  };
}

function ownPrompts(kind: ModelKind, options: DemoOptions, proposals: number, texts: Texts): Scenario {
  const { blocks, blockSize, tokens } = options;
  const usable = blocks - 1;
  const growth = growthOf(options, proposals);
  // A sixth of the pool for each request, so that nobody waits or is evicted before the last stage.
  const promptBlocks = Math.min(Math.floor(usable / 6) - growth, Math.floor(4096 / blockSize));
  if (promptBlocks < 2) {
    const least = 6 * (growth + 2) + 1;
    throw badInput('--blocks', `at least ${least} with --block-size ${blockSize} and --tokens ${tokens}`, blocks);
  }
  const full = promptBlocks * blockSize;
  const half = Math.floor(blockSize / 2);
  const usual = { tokens, stopsLike: null, aborts: false, held: false, mayFail: false };
  const whole = (cachedBlocks: number): Expectation => ({ end: 'length', tokens, cachedBlocks, runsOnDecode: true });
  const request = (id: string, shows: string, prompt: Int32Array, changes: Partial<DemoRequest> = {}): DemoRequest => ({
    id,
    shows,
    prompt,
    ...usual,
    expects: whole(0),
    ...changes,
  });
  const text = (name: string): string => texts.get(name)!;

  const cold = tokensOf(text('lighthouse'), full);
  const burstBlocks = Math.floor(usable / 3) - growth + 1;
  // As many lines as the coordinator can choose from; the router gives those that are to wait one line.
  const lines = options.coordinator ? options.decode.reduce((sum, { dp }) => sum + dp, 0) : 1;
  const burst = Array.from({ length: 6 * lines }, (_, index) =>
    request(
      `crowd-${index + 1}`,
      'a third of the pool each',
      tokensOf(`${index + 1}. ${text('orchard')}`, Math.min(burstBlocks * blockSize, 4096) - 1),
      { held: true },
    ),
  );
  const unknown: Expectation = { end: 'length', tokens, cachedBlocks: null, runsOnDecode: true };
  const shaken = { mayFail: true, expects: unknown };
  const chaos: Stage[] = [
    {
      title: 'a prefill and a decode engine are killed in the middle of it',
      together: false,
      oneByOne: false,
      kills: true,
      waitingMin: 0,
      requests: [
        // Short and long ones by turns: engines finish them at different times, so that they meet in all combinations.
        ...Array.from({ length: 8 }, (_, index) =>
          request(
            `held-${index + 1}`,
            'imported when the engines die',
            tokensOf(`${index + 1}: ${text('river')}`, index % 2 === 0 ? blockSize + 1 : full),
            { ...shaken, held: true },
          ),
        ),
        ...Array.from({ length: 4 }, (_, index) =>
          request(
            `running-${index + 1}`,
            'generated when the engines die',
            tokensOf(`${index + 1}; ${text('clockmaker')}`, full - half),
            shaken,
          ),
        ),
      ],
    },
    {
      title: 'the engines that are left go on',
      together: false,
      oneByOne: false,
      kills: false,
      waitingMin: 0,
      requests: Array.from({ length: 3 }, (_, index) =>
        request(`after-${index + 1}`, 'as if nothing had happened', tokensOf(`${index}; ${text('postcard')}`, full), {
          expects: unknown,
        }),
      ),
    },
  ];
  const stages: Stage[] = [
    {
      title: 'nothing cached yet',
      together: false,
      oneByOne: false,
      kills: false,
      waitingMin: 0,
      requests: [
        request('cold', 'a cold prompt of whole blocks', cold),
        request('partial', 'its last block is partly filled', tokensOf(text('clockmaker'), full - half)),
        request('long', 'longer than one prefill chunk', tokensOf(text('river'), 2 * full + half)),
      ],
    },
    {
      title: 'what decode has already does not move again',
      together: false,
      // A coordinator weighs a cached beginning against load: without load it counts alone.
      oneByOne: options.coordinator,
      kills: false,
      waitingMin: 0,
      requests: [
        request(
          'shared',
          'begins like "cold": only the rest moves',
          joined(cold, tokensOf(text('postcard'), blockSize + half)),
          {
            expects: whole(promptBlocks),
          },
        ),
        request('stop', 'same prompt as "cold"; its first token is a stop token', cold, {
          stopsLike: 'cold',
          expects: { end: 'stop', tokens: 1, cachedBlocks: promptBlocks, runsOnDecode: false },
        }),
        request('none', 'num_tokens_to_generate is 0', tokensOf(`0. ${text('postcard')}`, full - half), {
          tokens: 0,
          expects: { end: 'length', tokens: 0, cachedBlocks: 0, runsOnDecode: false },
        }),
        request('one', 'num_tokens_to_generate is 1', tokensOf(`1: ${text('postcard')}`, full - half), {
          tokens: 1,
          expects: { end: 'length', tokens: 1, cachedBlocks: null, runsOnDecode: false },
        }),
      ],
    },
    {
      title: 'an abort in the middle of a handoff',
      together: false,
      oneByOne: false,
      kills: false,
      waitingMin: 0,
      requests: [
        request('abort', 'aborted with source pinned and target reserved', tokensOf(`8. ${text('clockmaker')}`, full), {
          aborts: true,
          held: true,
          expects: { end: 'aborted', tokens: 0, cachedBlocks: 0, runsOnDecode: false },
        }),
        request('beside', 'goes on as if nothing had happened', tokensOf(`9. ${text('lighthouse')}`, full - 1)),
      ],
    },
    {
      title: 'more requests than decode has room for: they wait in line',
      together: true,
      oneByOne: false,
      kills: false,
      waitingMin: 3 * lines,
      requests: burst,
    },
  ];
  return {
    kind,
    proposals,
    blocks,
    chunk: full,
    maxRequests,
    stages: options.chaos ? [stages[0]!, ...chaos] : stages,
  };
}

/** The first `count` tokens of a text, which is repeated when it is shorter. */
function tokensOf(text: string, count: number): Int32Array {
  const once = encode(text);
  const tokens = new Int32Array(count);
  for (let i = 0; i < count; i += 1) tokens[i] = once[i % once.length]!;
  return tokens;
}

function joined(a: Int32Array, b: Int32Array): Int32Array {
  const both = new Int32Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}
