/**
 * A handoff from any layout to any other: what the target generates is, bit for bit, what one engine of one rank
 * generates without a handoff. Real engines with all their ranks, real memory, the host transport, one process.
 */
import { layoutCases, somePairs, everyPair } from '../support/layout-cases.js';
import { runLayoutCase } from '../support/layout-handoff.js';

const pairs = process.env['STATE_HANDOFF_LAYOUTS'] === 'all' ? everyPair() : somePairs;

test.each(layoutCases(pairs))('$source/$sourceBlock to $target/$targetBlock, $kind, $situation', async (each) => {
  const outcome = await runLayoutCase(each);
  expect(outcome.warnings).toEqual([]);
  expect(outcome.differences).toEqual([]);
  // Stages without attention, too.
  expect(outcome.elementSizes).toEqual(outcome.elementSizes.map(() => 4));
  expect(outcome.bits).toBe(outcome.expected);
  expect(outcome.logProbs).toEqual(outcome.expectedLogProbs);
  // Both prompts of the situation begin with the same nine tokens.
  const cached = each.situation === 'cached prefix' ? Math.floor(9 / each.targetBlock) : 0;
  expect(outcome.cachedBlocks).toEqual(outcome.cachedBlocks.map(() => cached));
  expect(new Set(outcome.memory)).toHaveProperty('size', 1);
  expect(outcome.missing).toEqual(outcome.missing.map(() => 0));
});
