/**
 * Two llama.cpp processes and one to compare with, for the tests of examples/llama: a model that is loaded once, prompts of
 * a wanted length, and settings of small engines. Engine and model lie in the cache already (`npm run test:llama` sees to it).
 */
import { join } from 'node:path';
import { provideAssets, type Assets } from '../../examples/llama/assets.js';
import { loadModel, type LlamaModel } from '../../examples/llama/llama.js';
import type { EngineSetting } from '../../examples/llama/messages.js';
import type { LlamaRequest, Observation } from '../../examples/llama/observation.js';
import { ReferenceProcess } from '../../examples/llama/reference-process.js';
import { LlamaRouter, type RouterOptions, type Stopped } from '../../examples/llama/router.js';

/** Where the compiled workers lie. */
const folder = join(__dirname, '..', '..', 'dist', 'examples', 'llama');

export const blockTokens = 16;

const opened: { end(): Promise<void> }[] = [];

afterAll(async () => {
  await Promise.all(opened.map((each) => each.end()));
});

/** Nothing is fetched: what is missing is an error. */
export function assetsOf(modelFile: string | null = null): Promise<Assets> {
  return provideAssets(modelFile, (line) => {
    throw new Error(`npm run test:llama provides engine and model; not ready: ${line}`);
  });
}

let model: LlamaModel | null = null;

export async function loadedModel(): Promise<LlamaModel> {
  const { libraryFolder, modelFile } = await assetsOf();
  return (model ??= loadModel(libraryFolder, modelFile));
}

/** A small engine: 8 blocks of 16 tokens on each of two lanes, unless said otherwise. */
export async function settingOf(changes: Partial<EngineSetting> = {}): Promise<EngineSetting> {
  return {
    ...(await assetsOf()),
    dtype: 'float16',
    blockTokens,
    blocks: 49,
    lanes: 1,
    shared: false,
    maxSequenceLength: 512,
    chunk: 64,
    transport: 'host',
    corrupt: false,
    ...changes,
  };
}

export interface PairOptions {
  readonly prefill?: Partial<EngineSetting>;
  readonly decode?: Partial<EngineSetting>;
  readonly onToken?: RouterOptions['onToken'];
}

/** A router with both processes running; they end with the test file. */
export async function openPair({ prefill, decode, onToken }: PairOptions = {}): Promise<LlamaRouter> {
  const router = new LlamaRouter({
    prefill: await settingOf(prefill),
    decode: await settingOf({ lanes: 2, ...decode }),
    folder,
    ...(onToken === undefined ? {} : { onToken }),
  });
  opened.push(router);
  await router.open();
  return router;
}

/** The engine without a handoff; it ends with the test file. */
export async function openReference(changes: Partial<EngineSetting> = {}): Promise<ReferenceProcess> {
  const reference = new ReferenceProcess(await settingOf({ blocks: 2, ...changes }), folder);
  opened.push(reference);
  return reference;
}

const text =
  'The old lighthouse stands on a rock at the end of the bay. Every evening the keeper climbs the stairs, cleans the glass ' +
  'and lights the lamp. Ships pass far out at sea, and their captains count the seconds between two flashes. In winter the ' +
  'wind is so strong that the keeper ties a rope around his waist before he opens the door. He writes down the weather, the ' +
  'hour and the name of every ship that he can see. On quiet nights he plays the violin, and the seals come closer to listen. ';

/** Exactly `length` tokens of English that begin with `head`. */
export function promptOf(llama: LlamaModel, length: number, head = ''): Int32Array {
  const tokens = llama.tokenize(head + text.repeat(1 + Math.ceil(length / 80)), true);
  if (tokens.length < length) throw new Error(`expected a text of ${length} tokens, got ${tokens.length}`);
  // A native array is none of this realm's under Jest.
  return Int32Array.from(tokens.subarray(0, length));
}

export function request(id: string, prompt: Int32Array, limit = 8): LlamaRequest {
  return { id, prompt, limit };
}

/** Compares each with the engine without a handoff; the observations that differ, by what differs. */
export async function differencesOf(
  reference: ReferenceProcess,
  seen: readonly Observation[],
): Promise<Record<string, string | null>> {
  const differences: Record<string, string | null> = {};
  for (const each of seen) {
    each.reference = await reference.run(each.request);
    if (each.isIdentical !== true) differences[each.request.id] = each.difference ?? 'no result';
  }
  return differences;
}

/** What two workers did not give back by their end; nothing, when all is well. */
export function missingAfter(ends: Record<'prefill' | 'decode', Stopped>): string[] {
  return Object.entries(ends).flatMap(([role, { leftovers, blocksFree, blocksUsable }]) => [
    ...leftovers.map((each) => `${role}: ${each}`),
    ...(blocksFree === blocksUsable ? [] : [`${role}: ${blocksFree} of ${blocksUsable} blocks`]),
  ]);
}
