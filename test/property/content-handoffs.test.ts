/**
 * Goal: whatever either side's layout, a whole handoff brings every byte to its place, and nothing is left held. Method:
 * random pairs of layouts, a seed each (tensor ranks that divide heads or share them, empty stages in every place, blocks of 1
 * to 64 tokens, any order of axes, padding, contents, proposals, either balance), and three prompts over each: the second
 * continues what the first left cached, the third is cached but for its last block. `npm run test:layouts` runs 400 pairs;
 * STATE_HANDOFF_CONTENT_PAIR=number runs that one alone.
 */
import { SeededRandom } from '../../lib/testing/seeded-random.js';
import type { ContentModel, ContentSide } from '../support/content-engine.js';
import { data, latent, rope, scale } from '../support/content-parts.js';
import { ContentInstance, expectedTokens } from '../support/content-world.js';

const layers = 5;
const one = process.env['STATE_HANDOFF_CONTENT_PAIR'];
const count = one !== undefined ? 1 : process.env['STATE_HANDOFF_LAYOUTS'] === 'all' ? 400 : 30;
const chunk = 10;

function drawModel(random: SeededRandom): ContentModel {
  if (random.chance(0.2)) return { layers, kvHeads: 1, headDim: 6, parts: [latent, rope] };
  return {
    ...{ layers, headDim: 3, kvHeads: random.pick([1, 2, 4, 6]) },
    parts: random.chance(0.5) ? [data, scale] : [data],
  };
}

function drawSide(random: SeededRandom, { kvHeads }: ContentModel): ContentSide {
  const cuts = Array.from({ length: random.pick([0, 0, 1, 2, 3]) }, () => random.int(0, layers));
  return {
    tp: random.pick([1, 2, 3, 4, 6].filter((tp) => kvHeads % tp === 0 || tp % kvHeads === 0)),
    stages: [...cuts.sort((a, b) => a - b), layers],
    blockSize: random.pick([1, 2, 3, 4, 6, 64]),
    axes: random.shuffle(['plane', 'layer', 'block', 'token', 'head', 'dim']),
    perLayer: random.chance(0.3),
    padding: random.chance(0.3) ? random.int(1, 7) : 0,
  };
}

async function handOver(seed: number): Promise<void> {
  const random = new SeededRandom(seed);
  const model = drawModel(random);
  const [from, to] = [drawSide(random, model), drawSide(random, model)];
  const speculative = random.pick([0, 0, 1, 3]);
  const balance = random.pick(['first', 'spread'] as const);
  const source = await ContentInstance.create('prefill', model, from, {}, speculative);
  const target = await ContentInstance.create('decode', model, to, { balance }, speculative);
  try {
    target.leader.on('kvReadDone', ({ source: ref }) => source.leader.releaseHandoffBlocks(ref!));
    const whole = Array.from({ length: random.int(1, 40) }, (_, at) => 40 + 3 * at);
    const prompts = [whole.slice(0, random.int(1, whole.length)), whole, whole];
    for (const [index, prompt] of prompts.entries()) {
      const finished = await target.takeOver(`r${index}`, prompt, source.prefill(`r${index}`, prompt));
      expect(finished.generatedTokens).toEqual(expectedTokens(prompt));
      expect(target.ranks.flatMap(({ engine }) => engine.faults)).toEqual([]);
    }
    for (let steps = 0; steps < 3; steps++) await source.step();
    expect([...source.missing, ...target.missing].filter((missing) => missing !== 0)).toEqual([]);
    expect([...source.warnings, ...target.warnings]).toEqual([]);
  } finally {
    await target.close();
    await source.close();
  }
}

const first = one === undefined ? 1 : Number(one);
test.each(Array.from({ length: Math.ceil(count / chunk) }, (_, index) => first + index * chunk))(
  'pairs of layouts from %i on',
  async (from) => {
    for (let seed = from; seed < Math.min(from + chunk, first + count); seed++) {
      try {
        await handOver(seed);
      } catch (error) {
        throw new Error(`content pair ${seed}: ${(error as Error).message}`, { cause: error });
      }
    }
  },
  300_000,
);
