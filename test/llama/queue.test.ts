/** Decode's queue with llama.cpp behind it: first come first served, aborts at every place, and memory that comes back. */
import type { Observation } from '../../examples/llama/observation.js';
import {
  differencesOf,
  loadedModel,
  openPair,
  openReference,
  promptOf,
  request,
  missingAfter,
} from '../support/llama-pair.js';

test('who finds no room waits in line, and gets it in the order of arrival', async () => {
  const llama = await loadedModel();
  // One lane, and blocks for one prompt of 40 tokens and a bit.
  const router = await openPair({ decode: { lanes: 1, blocks: 6 } });
  const seen = [0, 1, 2, 3, 4].map((index) =>
    router.submit(request(`q${index}`, promptOf(llama, 40, `${index}. `), 16), true),
  );
  await router.until('all tickets', () => seen.every(({ prefilled }) => prefilled !== null));
  router.handOver(seen);
  await router.settled();
  expect(seen.filter(({ isDeferred }) => isDeferred).length).toBeGreaterThanOrEqual(2);
  const turns = seen.map(({ reserved }) => reserved!.turn);
  expect(turns).toEqual([...turns].sort((a, b) => a - b));
  expect(await differencesOf(await openReference(), seen)).toEqual({});
  expect(missingAfter(await router.stop())).toEqual([]);
});

test('an abort while decode generates, while the state waits for a lane, and while the prompt waits to be computed', async () => {
  const llama = await loadedModel();
  let running: Observation | null = null;
  const router = await openPair({
    decode: { lanes: 1 },
    onToken: (id) => {
      if (id === 'running' && running?.tokenTimes.length === 4) router.abort('running');
    },
  });
  running = router.submit(request('running', promptOf(llama, 40, 'A '), 400));
  await router.until('the first token on decode', () => running!.tokenTimes.length >= 2);
  expect(running.isSettled).toBe(false);
  await router.settled();
  expect(running.failure).toMatchObject({ code: 'ABORTED' });

  const busy = router.submit(request('busy', promptOf(llama, 30, 'B '), 60));
  await router.until('a lane that is taken', () => busy.tokenTimes.length >= 2);
  const landed = router.submit(request('landed', promptOf(llama, 30, 'C '), 8));
  await router.until('state that waits for the lane', () => landed.landed !== null || busy.isSettled);
  expect(busy.isSettled).toBe(false);
  router.abort('landed');
  const computed = router.submit(request('computed', promptOf(llama, 300, 'D '), 8));
  const waiting = router.submit(request('waiting', promptOf(llama, 30, 'E '), 8));
  router.abort('waiting');
  router.abort('computed');
  await router.settled();
  expect(landed.failure).toMatchObject({ code: 'ABORTED' });
  expect(computed.failure).toMatchObject({ code: 'ABORTED' });
  expect(waiting.failure).toMatchObject({ code: 'ABORTED' });
  expect(waiting.prefilled).toBeNull();
  expect(busy.finished?.tokens.length).toBe(60);
  expect(await differencesOf(await openReference(), [busy])).toEqual({});
  expect(missingAfter(await router.stop())).toEqual([]);
});
