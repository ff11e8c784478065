/** Fifty requests at once, twice: all are answered, all memory comes back, and neither process grows by what a request holds. */
import {
  differencesOf,
  loadedModel,
  openPair,
  openReference,
  promptOf,
  request,
  missingAfter,
} from '../support/llama-pair.js';

/** Less than the state of 50 prompts, or the logits of 50 answers, would take. */
const growthMax = 24 * 2 ** 20;

test('fifty concurrent requests leave the memory of both processes flat', async () => {
  const llama = await loadedModel();
  // The prompts of a round fill prefill's blocks but one: what a page's first use adds is there after the first round.
  const router = await openPair({ prefill: { blocks: 126 }, decode: { lanes: 4, blocks: 17 } });
  const round = async (name: string) => {
    const seen = Array.from({ length: 50 }, (_, index) =>
      router.submit(request(`${name}${index}`, promptOf(llama, 17 + (index % 4) * 8, `${name}${index}: `), 16), true),
    );
    await router.until('all tickets', () => seen.every(({ prefilled }) => prefilled !== null));
    router.handOver(seen);
    await router.settled(seen);
    return seen;
  };
  // The first round is as large as the second: what is kept for later is there after it.
  const first = await round('a');
  const before = await router.measure();
  const second = await round('b');
  const after = await router.measure();
  for (const { failure, finished } of [...first, ...second]) {
    expect(failure).toBeNull();
    expect(finished!.tokens.length).toBeLessThanOrEqual(16);
  }
  expect(after.prefill - before.prefill).toBeLessThan(growthMax);
  expect(after.decode - before.decode).toBeLessThan(growthMax);
  expect(second.some(({ isDeferred }) => isDeferred)).toBe(true);
  expect(await differencesOf(await openReference(), second.slice(-2))).toEqual({});
  expect(missingAfter(await router.stop())).toEqual([]);
});
