/** What the llama.cpp demo asks: one system prompt, several questions, and what must come of each. */
import { badInput } from '../engine/bad-input.js';
import type { LlamaModel } from './llama.js';
import type { LlamaRequest } from './observation.js';
import type { LlamaDemoOptions } from './options.js';

const systemPrompt =
  'You are a patient guide at a small museum of nature. Visitors of every age ask you questions, and you answer in plain ' +
  'English, with short sentences and one good example. You never invent names, numbers or places. When you do not know ' +
  'something, you say so and suggest where the visitor may look. You stay friendly, you do not use lists, and you end ' +
  'your answer when the question is answered.';

const questions = [
  ['sky', 'Why is the sky blue during the day and red in the evening?'],
  ['bees', 'How do bees find flowers, and how do they tell the other bees?'],
  ['river', 'Where does the water of a river come from when it has not rained for weeks?'],
  ['moon', 'Why do we always see the same side of the moon?'],
  ['birds', 'How do small birds stay warm on a winter night?'],
  ['leaves', 'Why do the leaves of some trees turn yellow in autumn?'],
] as const;

export interface DemoRequest extends LlamaRequest {
  readonly question: string;
  /** Aborted after this many tokens; null: never. */
  readonly abortAfter: number | null;
  /** Whether its prompt begins like one that decode has already. */
  readonly sharesPrefix: boolean;
}

export interface Stage {
  readonly title: string;
  readonly requests: readonly DemoRequest[];
  /** Decode gets all tickets at once. */
  readonly together: boolean;
  /** Then at least one has to wait for room. */
  readonly waits: boolean;
}

export interface Scenario {
  readonly stages: readonly Stage[];
  readonly lanes: number;
  readonly maxSequenceLength: number;
  /** Blocks of decode's pool, the dummy block included: few enough that somebody waits. */
  readonly decodeBlocks: number;
  readonly prefillBlocks: number;
}

const lanes = 3;
const abortAfter = 6;
/** Tokens that decode may still generate while it does not know that it should not. */
const abortMargin = 64;
const lengthMax = 4096;

/** @throws `ARGUMENT_INVALID` for a question that is too long */
export function scenarioOf(llama: LlamaModel, options: LlamaDemoOptions): Scenario {
  const { tokens, blockTokens, coordinator } = options;
  const request = (id: string, question: string, sharesPrefix: boolean): DemoRequest => {
    const chat = [
      ['system', systemPrompt],
      ['user', question],
    ] as const;
    const prompt = llama.tokenize(llama.chat(chat, true), true);
    if (prompt.length > lengthMax - tokens) {
      throw badInput('--prompt', `a text of at most ${lengthMax - tokens} tokens`, prompt.length);
    }
    return { id, question, prompt, limit: tokens, abortAfter: null, sharesPrefix };
  };
  const stages =
    options.questions.length > 0 ? givenStages(options.questions, request) : ownStages(tokens, coordinator, request);
  const requests = stages.flatMap((stage) => stage.requests);
  const lengths = requests.map(({ prompt }) => prompt.length);
  const largest = Math.ceil((Math.max(...lengths) + 1) / blockTokens);
  const longest = Math.max(...requests.map(({ prompt, limit }) => prompt.length + limit));
  // Lanes in units that llama.cpp rounds to.
  const maxSequenceLength = Math.ceil((longest + 1) / 256) * 256;
  const all = lengths.reduce((sum, length) => sum + Math.ceil(length / blockTokens), 0);
  return { stages, lanes, maxSequenceLength, decodeBlocks: 1 + largest + 1, prefillBlocks: 1 + all };
}

type Make = (id: string, question: string, sharesPrefix: boolean) => DemoRequest;

function givenStages(given: readonly string[], request: Make): Stage[] {
  const requests = given.map((question, index) => request(`prompt-${index + 1}`, question, index > 0));
  return [
    { title: 'your first prompt', requests: requests.slice(0, 1), together: false, waits: false },
    ...(requests.length > 1
      ? [{ title: 'the others, all at once', requests: requests.slice(1), together: true, waits: false }]
      : []),
  ];
}

function ownStages(tokens: number, coordinator: boolean, request: Make): Stage[] {
  const [first, ...others] = questions.map(([id, question], index) => request(id, question, index > 0));
  return [
    { title: 'nothing cached yet', requests: [first!], together: false, waits: false },
    {
      title: coordinator
        ? 'the same system prompt, more visitors: the coordinator lets in as many as there are lanes'
        : 'the same system prompt, more visitors than decode has room for: they wait in line',
      requests: others,
      together: true,
      // With fewer tokens a request may be over before the next ticket is read. A coordinator keeps the line itself.
      waits: tokens >= 16 && !coordinator,
    },
    {
      title: 'one is aborted in the middle of its answer, the other does not notice',
      requests: [
        {
          ...request('gone', 'How deep is the sea, and who lives at the bottom of it?', true),
          abortAfter,
          // However few are asked for, its answer is not over before decode hears of the abort.
          limit: tokens + abortMargin,
        },
        request('beside', 'How long does a tree live, and how can I see its age?', true),
      ],
      together: false,
      waits: false,
    },
  ];
}
