/**
 * The first half of the random pairs of layouts; the other lies in layouts-second.test.ts, so that two workers share them.
 *
 * Goal: from any parallel layout to any other, every target byte is right and every other byte untouched; and no number
 * of a plan can be changed without the checks or the bytes telling. Method: random pairs, a seed each, through the planner
 * and the real host transport (test/support/layout-rig.ts). `npm run test:layouts` runs 20,000 pairs; a failure names its
 * pair, and STATE_HANDOFF_LAYOUT_PAIR=number replays that one.
 */
import { layoutPair } from '../support/layout-pair.js';
import { testLayouts } from '../support/layout-share.js';

testLayouts('first');

test('the pairs are of every kind', () => {
  const pairs = Array.from({ length: 1_000 }, (_, seed) => layoutPair(seed + 1));
  const share = (holds: (pair: (typeof pairs)[number]) => boolean): number => pairs.filter(holds).length / pairs.length;
  const kinds: Readonly<Record<string, readonly [share: number, least: number]>> = {
    tensor: [share(({ source, target }) => source.tp > 1 && target.tp > 1 && source.tp !== target.tp), 0.1],
    stages: [share(({ source, target }) => source.stages.length > 1 && target.stages.length > 1), 0.2],
    emptyStages: [share(({ source }) => source.stages.some((end, at) => end === (source.stages[at - 1] ?? 0))), 0.1],
    sharedHeads: [share(({ model, source }) => source.tp > model.heads), 0.05],
    copies: [share(({ source }) => source.copies > 1), 0.05],
    spread: [share(({ balance }) => balance === 'spread'), 0.1],
    manyHeads: [share(({ model }) => model.heads >= 16), 0.05],
    latents: [share(({ model }) => model.heads === 1 && model.planes === 1), 0.02],
    scales: [share(({ model }) => model.scaleBytes !== null), 0.1],
    hybrid: [share(({ model }) => model.ssm !== null), 0.1],
    unlikeBlocks: [share(({ source, target }) => source.tokens !== target.tokens), 0.2],
    largeBlocks: [share(({ source }) => source.tokens === 64), 0.01],
    cached: [share(({ skip }) => skip > 0), 0.2],
    orders: [share(({ source, target }) => source.kvAxes.join() !== target.kvAxes.join()), 0.3],
    apart: [share(({ source, target }) => source.planesApart !== target.planesApart), 0.2],
    perLayer: [share(({ source, target }) => source.perLayer !== target.perLayer), 0.2],
    padding: [share(({ target }) => target.padding > 0), 0.05],
  };
  for (const [kind, [found, least]] of Object.entries(kinds)) expect([kind, found > least]).toEqual([kind, true]);
});
