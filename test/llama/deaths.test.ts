/** Whole processes that die: the other one goes on, gets its memory back, and works with the successor. */
import {
  differencesOf,
  loadedModel,
  openPair,
  openReference,
  promptOf,
  request,
  missingAfter,
} from '../support/llama-pair.js';

test('a killed decode process: its pins come back on the attestation, and its successor answers', async () => {
  const llama = await loadedModel();
  const router = await openPair();
  const lost = router.submit(request('lost', promptOf(llama, 40, 'A '), 400));
  const waiting = router.submit(request('held', promptOf(llama, 40, 'B ')), true);
  await router.until('a running request', () => lost.tokenTimes.length >= 3 && waiting.prefilled !== null);
  await router.replace('decode');
  await router.until('all pins released', () => lost.isReleased && waiting.isReleased);
  expect(lost.failure).toEqual({ code: 'PROCESS_DIED', message: 'the decode process died' });
  const next = router.submit(request('next', promptOf(llama, 40, 'A ')));
  await router.settled([next]);
  expect(await differencesOf(await openReference(), [next])).toEqual({});
  expect(missingAfter(await router.stop())).toEqual([]);
});

test('a killed prefill process: what decode has goes on to its end, what it has not ends with an error', async () => {
  const llama = await loadedModel();
  const router = await openPair({ decode: { lanes: 1 } });
  const running = router.submit(request('running', promptOf(llama, 40, 'A '), 60));
  const late = router.submit(request('late', promptOf(llama, 40, 'B ')), true);
  const unborn = router.submit(request('unborn', promptOf(llama, 300, 'C ')));
  await router.until('a running request', () => running.tokenTimes.length >= 3 && late.prefilled !== null);
  await router.replace('prefill');
  // A ticket of the dead, which nobody can serve any more.
  router.handOver([late]);
  await router.settled();
  expect(unborn.failure).toEqual({ code: 'PROCESS_DIED', message: 'the prefill process died' });
  expect(late.failure?.code).toMatch(
    /^(?:HANDOFF_EXPIRED|HANDOFF_UNKNOWN|PEER_\w+|TRANSFER_\w+|NO_TRANSPORT|INSTANCE_\w+)$/,
  );
  expect(running.finished?.tokens.length).toBe(60);
  const next = router.submit(request('next', promptOf(llama, 40, 'B ')));
  await router.settled([next]);
  expect(await differencesOf(await openReference(), [running, next])).toEqual({});
  expect(missingAfter(await router.stop())).toEqual([]);
});
