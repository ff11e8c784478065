/**
 * The promise of the llama.cpp example: what decode generates after a handoff is, token for token and logit bit for logit bit,
 * what one engine generates alone; and decode evaluates no prompt token for it.
 */
import type { Observation } from '../../examples/llama/observation.js';
import type { LlamaRouter } from '../../examples/llama/router.js';
import {
  blockTokens,
  differencesOf,
  loadedModel,
  openPair,
  openReference,
  promptOf,
  request,
  missingAfter,
} from '../support/llama-pair.js';

// One token, one block more or less, one chunk more or less, several chunks; the last one is loaded in two pieces.
const lengths = [1, 15, 16, 17, 48, 63, 64, 65, 130, 270];

async function runAll(router: LlamaRouter, prompts: readonly (readonly [string, Int32Array])[]) {
  const seen: Observation[] = [];
  for (const [id, prompt] of prompts) {
    seen.push(router.submit(request(id, prompt)));
    await router.settled();
  }
  return seen;
}

test('ten prompts of ten lengths give the tokens and the logits of one engine, and decode evaluates none of their tokens', async () => {
  const llama = await loadedModel();
  const router = await openPair();
  // Each begins with a word of its own, so that no prefix is shared.
  const prompts = lengths.map((length, index) => [`p${length}`, promptOf(llama, length, `${index}: `)] as const);
  const seen = await runAll(router, prompts);
  expect(seen.map(({ failure }) => failure)).toEqual(lengths.map(() => null));
  expect(await differencesOf(await openReference(), seen)).toEqual({});
  const drawn = seen.reduce((sum, { finished }) => sum + finished!.tokens.length - 1, 0);
  expect(seen.at(-1)!.finished!.evaluatedTokens).toBe(drawn);
  for (const {
    movedBlocks,
    landed,
    request: { prompt },
  } of seen) {
    expect(movedBlocks).toBe(Math.ceil(prompt.length / blockTokens));
    expect(landed!.bytes).toBe(movedBlocks * blockTokens * 23_040);
  }
  expect(seen.at(-1)!.finished!.loads).toBe(2);
  expect(missingAfter(await router.stop())).toEqual([]);
});

test('a shared prefix is computed once, moves once, and changes no bit', async () => {
  const llama = await loadedModel();
  const router = await openPair({ decode: { lanes: 1 } });
  const long = promptOf(llama, 150);
  const other = Int32Array.from([...long.slice(0, 100), ...promptOf(llama, 60, 'Now something else. ')]);
  const apart = promptOf(llama, 40, 'Apart: ');
  // As long as a chunk: all of it may lie in the lane, and its last token is evaluated all the same, for its logits.
  const whole = promptOf(llama, 64, 'Whole: ');
  const [first, second, third, again, chunk, chunkAgain] = await runAll(router, [
    ['first', long],
    ['second', other],
    ['apart', apart],
    ['again', long],
    ['chunk', whole],
    ['chunk again', whole],
  ]);
  expect(first!.prefilled).toMatchObject({ computedTokens: 150, savedBlocks: 10 });
  // 100 tokens are the same: one chunk of 64 stays in prefill's llama.cpp, six blocks of 16 on either side.
  expect(second!.prefilled).toMatchObject({ computedTokens: 96, savedBlocks: 4 });
  expect(second!.reserved!.cachedBlocks).toBe(6);
  expect(second!.movedBlocks).toBe(4);
  expect(second!.finished!.keptTokens).toBe(96);
  // Decode's lane held something else in between: what is cached in blocks is copied again, and does not move again.
  expect(third!.reserved!.cachedBlocks).toBe(0);
  expect(again!.reserved!.cachedBlocks).toBe(9);
  expect(again!.movedBlocks).toBe(1);
  expect(again!.finished!.keptTokens).toBe(0);
  expect(chunkAgain!.prefilled).toMatchObject({ computedTokens: 64, savedBlocks: 0 });
  expect(chunkAgain!.movedBlocks).toBe(0);
  const seen = [first!, second!, third!, again!, chunk!, chunkAgain!];
  expect(await differencesOf(await openReference(), seen)).toEqual({});
  expect(missingAfter(await router.stop())).toEqual([]);
});

test('a flipped bit of state that has landed is found out', async () => {
  const llama = await loadedModel();
  const router = await openPair({ decode: { corrupt: true } });
  const [seen] = await runAll(router, [['flipped', promptOf(llama, 40)]]);
  expect(await differencesOf(await openReference(), [seen!])).toEqual({ flipped: 'the logits of token 1 differ' });
});

test('requests evaluated together replay in one engine, placed as they were; how many tokens agree is a figure', async () => {
  const llama = await loadedModel();
  const router = await openPair({ decode: { lanes: 3, shared: true } });
  const seen = [20, 33, 48].map((length) =>
    router.submit(request(`b${length}`, promptOf(llama, length, `${length}: `), 12), true),
  );
  await router.until('all tickets', () => seen.every(({ prefilled }) => prefilled !== null));
  router.handOver(seen);
  await router.settled();
  const evaluations = router.operations.filter(({ what }) => what === 'evaluate');
  expect(Math.max(...evaluations.map(({ rows }) => rows.length))).toBeGreaterThan(1);
  const reference = await openReference({ lanes: 3, shared: true });
  const requests = seen.map((each) => each.request);
  const replay = await reference.replay(requests, router.operations);
  expect(replay.requests.map(({ drawn }) => drawn)).toEqual(seen.map((each) => each.finished!.tokens.length - 1));
  for (const { drawn, agreeing } of replay.requests) expect(agreeing).toBeGreaterThan(drawn / 2);
  // What decode did not draw is no token that agrees: the last of each request is another one here.
  const lastOf = new Map(evaluations.flatMap(({ rows }) => rows.map((row) => [row.id, row] as const)));
  const altered = router.operations.map((operation) => ({
    ...operation,
    rows: operation.rows.map((row) => (row === lastOf.get(row.id) ? { ...row, drawn: row.drawn === 0 ? 1 : 0 } : row)),
  }));
  const again = await (await openReference({ lanes: 3, shared: true })).replay(requests, altered);
  for (const [index, { id, drawn, agreeing }] of again.requests.entries()) {
    expect({ id, drawn }).toEqual({ id: requests[index]!.id, drawn: replay.requests[index]!.drawn });
    expect(agreeing).toBeLessThan(drawn);
  }
});
